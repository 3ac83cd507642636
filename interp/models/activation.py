"""The MLP's activation, a few tokens at a time.

Hugging Face writes some activations (GPT-2's `gelu_new`) as eight elementwise steps, each over the whole tensor.
On a CPU, once that tensor is larger than the cache, the eight trips to memory cost as much as a third of the
matrix products around them. Going through all steps piece by piece gives the same bits in under half the time.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

PIECE = 1 << 16
"""Numbers in a piece: with its temporaries it stays in a core's cache."""
LANES = 32
"""Numbers that a vector loop takes at once; pieces of whole lanes leave no remainder that rounds another way."""
_ELEMENTWISE = ("transformers.activations", "torch.nn.modules.activation")


def activate(module: nn.Module, x: Float[Tensor, "... d_mlp"]) -> Float[Tensor, "... d_mlp"]:
    """`module(x)`, to the bit."""
    if not in_pieces(module, x):
        out: Tensor = module(x)
        return out
    flat = x.view(-1, x.shape[-1])
    rows = max(1, PIECE // x.shape[-1])
    whole = torch.empty_like(flat)
    for start in range(0, len(flat), rows):
        whole[start : start + rows] = module(flat[start : start + rows])
    return whole.view(x.shape)


def in_pieces(module: nn.Module, x: Tensor) -> bool:
    """Whether pieces pay and change nothing: a large CPU tensor, no graph, nobody counting the calls."""
    return (
        x.numel() >= 4 * PIECE
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and x.is_contiguous()
        and x.shape[-1] % LANES == 0
        and type(module).__module__ in _ELEMENTWISE
        and not (module._forward_hooks or module._forward_pre_hooks)
    )
