"""Token matching through two heads: whether a later head finds the token that an earlier head moved.

    M = W_E W_QK^{h2} W_OV^{h1}ᵀ W_Eᵀ       through keys (an induction head reads what a previous-token head wrote)
    M = W_E W_OV^{h1} W_QK^{h2} W_Eᵀ       through queries
    M = W_E W_QK^{h2} W_Eᵀ                 by itself (a duplicate-token head)

M[query token, key token] is the score that the pair would get. The matching share is the part of query tokens
whose best key is the same token (chance: 1/number of tokens); the margin is how far the diagonal stands above
the row's mean, in standard deviations of the row.

It complements the composition scores, which compare whole norms: where a head writes most of its size for other
readers (straight to the logits, say), its composition may lie below the random baseline although all the later
head reads comes from it. Source: A Mathematical Framework (2021), section on induction heads. Limits: tokens
only; positions, denominators and what other layers add are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.models.model import Model
from interp.models.weights import embedding
from interp.registry import UserError
from interp.weights.circuits import ov_circuits, qk_circuits
from interp.weights.factored import Factored

Through = Literal["k", "q", "self"]
MOST_TOKENS = 1024


@dataclass(frozen=True, eq=False)
class Matching:
    """Shares and margins of all pairs `[l1, h1, l2, h2]` (NaN where l1 ≥ l2), or of all heads `[layer, head]`."""

    through: Through
    share: Float[Tensor, "*heads"]
    margin: Float[Tensor, "*heads"]
    tokens: Int[Tensor, " token"]


def matching(
    model: Model, through: Through | str, *, delta: int = 0, tokens: Int[Tensor, " token"] | None = None, seed: int = 0
) -> Matching:
    """Token matching of every pair of heads (`k`, `q`) or of every head by itself (`self`).

    `tokens`: which tokens take part; all by default, a seeded sample of 1,024 where there are more. `delta` is
    the rotary offset of the later head. Raises UserError as `qk_circuits` does.

    >>> import interp
    >>> matching(interp.load_model("attn-2l"), "self").share.shape  # layer, head
    torch.Size([2, 8])
    """
    if through not in ("k", "q", "self"):
        raise UserError(f"matching is through 'k', 'q' or 'self', got {through!r}")
    size = model.geometry.d_vocab
    if tokens is None:
        tokens = torch.arange(size)
        if size > MOST_TOKENS:
            shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
            tokens = shuffled[:MOST_TOKENS].sort().values
    e = embedding(model.net)[tokens.to(model.device)].double()
    qk, g = qk_circuits(model, delta=delta).double(), model.geometry
    if through == "self":
        share, margin = _read(qk.between(e, e.mT))
        return Matching("self", share, margin, tokens)
    ov = ov_circuits(model).double()
    grid = torch.full((2, g.layers, g.heads, g.layers, g.heads), torch.nan, dtype=torch.float64)
    for first in range(g.layers):
        moved = e @ ov[first].left @ ov[first].right
        for second in range(first + 1, g.layers):
            for h1 in range(g.heads):
                there = moved[h1]
                before, after = (e, there.mT) if through == "k" else (there, e.mT)
                share, margin = _read(qk[second].between(before, after))
                grid[0, first, h1, second], grid[1, first, h1, second] = share.cpu(), margin.cpu()
    return Matching("k" if through == "k" else "q", grid[0], grid[1], tokens)


def _read(circuits: Factored) -> tuple[Tensor, Tensor]:
    """Share and margin of each matrix of a stack, one at a time."""
    stack = circuits.left.shape[:-2]
    left, right = circuits.left.flatten(0, -3), circuits.right.flatten(0, -3)
    shares, margins = [], []
    for a, b in zip(left, right, strict=True):
        scores = a @ b
        own = scores.diagonal()
        hit = scores.argmax(1) == torch.arange(len(own), device=own.device)
        spread = scores.std(1).clamp(min=torch.finfo(scores.dtype).tiny)
        shares.append(hit.double().mean())
        margins.append(((own - scores.mean(1)) / spread).mean())
    return torch.stack(shares).view(stack), torch.stack(margins).view(stack)
