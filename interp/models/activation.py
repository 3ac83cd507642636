"""The MLP's activation, a few tokens at a time.

Hugging Face writes some activations (GPT-2's `gelu_new`) as eight elementwise steps, each over the whole tensor.
On a CPU, once that tensor is larger than the cache, the eight trips to memory cost as much as a third of the
matrix products around them. Going through all steps piece by piece gives the same bits in under half the time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.models.again import hooked
from interp.models.linear import is_linear

PIECE = 1 << 16
"""Numbers in a piece: with its temporaries it stays in a core's cache."""
LANES = 32
"""Numbers that a vector loop takes at once; pieces of whole lanes leave no remainder that rounds another way."""
Activation = nn.Module | Callable[[Tensor], Tensor]
_HOMES = ("transformers.activations", "torch.nn.modules.activation")
_ELEMENTWISE = frozenset({
    "AccurateGELUActivation", "ClippedGELUActivation", "FastGELUActivation", "GELUActivation", "GELUTanh",
    "LaplaceActivation", "LinearActivation", "MishActivation", "NewGELUActivation", "PytorchGELUTanh",
    "QuickGELUActivation", "ReLUSquaredActivation", "SiLUActivation", "SqrtSoftplusActivation", "CELU", "ELU", "GELU",
    "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU",
    "Sigmoid", "Softplus", "Softsign", "Tanh", "Tanhshrink", "Threshold",
})  # fmt: skip
"""Activations each of whose outputs is a function of one input and of nothing else: not PReLU (a slope per channel),
not GLU or softmax (they read other numbers), not RReLU (drawn at random)."""


def activate(module: Activation, x: Float[Tensor, "... d_mlp"], spare: bool = False) -> Float[Tensor, "... d_mlp"]:
    """`module(x)`, to the bit. With `spare`, nobody else holds `x`, and its memory may take the result."""
    if not in_pieces(module, x):
        out: Tensor = module(x)
        return out
    flat = x.view(-1, x.shape[-1])
    rows = max(1, PIECE // x.shape[-1])
    whole = flat if spare else torch.empty_like(flat)
    for start in range(0, len(flat), rows):
        whole[start : start + rows] = module(flat[start : start + rows])
    return whole.view(x.shape)


def in_pieces(module: Activation, x: Tensor) -> bool:
    """Whether pieces pay and change nothing: a large CPU tensor, no graph, nobody counting the calls."""
    return (
        x.numel() >= 2 * PIECE
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and x.is_contiguous()
        and x.shape[-1] % LANES == 0
        and isinstance(module, nn.Module)
        and type(module).__module__ in _HOMES
        and type(module).__name__ in _ELEMENTWISE
        and not hooked([module])
    )


def gives_fresh(module: nn.Module | None) -> bool:
    """Whether a projection's output is nobody else's: a plain linear map, without a hook that may keep it."""
    return is_linear(module) and not hooked([module])
