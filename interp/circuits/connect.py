"""Which edges lie on a path from the input to the logits.

An edge counts where its source is reached from the input and one of the slot's readers reaches the logits,
all through kept edges; any slot of a head (q, k or v) leads on. Under the corrupt ablation edges that do not
are idle, since what they carry is the ablated value; under mean or zero they are not quite.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.graph import Graph


def connected(graph: Graph, mask: Bool[Tensor, "source slot"]) -> Bool[Tensor, "source slot"]:
    """The mask without edges that lie on no kept path from the input to the logits."""
    kept = mask.cpu().numpy()
    own = [[graph.slot_index[s] for s in graph.slots_of(n)] for n in graph.sources]
    reached = torch.zeros(len(graph.sources), dtype=torch.bool).numpy()
    reached[0] = True
    for i in range(1, len(own)):
        reached[i] = bool((kept[:, own[i]] & reached[:, None]).any())
    leads = torch.zeros(len(graph.slots), dtype=torch.bool).numpy()
    leads[-1] = True
    for i in range(len(own) - 1, 0, -1):
        if bool((kept[i] & leads).any()):
            leads[own[i]] = True
    return mask & torch.from_numpy(reached)[:, None].to(mask.device) & torch.from_numpy(leads)[None].to(mask.device)
