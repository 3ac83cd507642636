"""Reading a projection's weight as what its module does: only where it does that.

A module may do more than its weight says (an adapter, a hook, a forward put on it). A run calls it and is right; what
multiplies by its weight instead would be wrong without a word, so that is asked first.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.models.again import heard, hooked
from interp.models.parts import Chain, Part, Scaled, matrix
from interp.registry import UserError

PROBED = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest difference of a module from its weight matrix, as a share of the largest output, by dtype."""
NOT_ITS_WEIGHT = (
    "a {} computes something else than its weight and bias say (an adapter, a hook or a forward of its own), so its "
    "weight cannot be read as what it does: merge adapters into the weights, take hooks off; runs, and patching of "
    "sites that need no weights, work as it is"
)


def is_linear(module: nn.Module | None) -> bool:
    """Whether a module is of a class that multiplies by its weight and adds its bias, and does nothing else.

    A name does not say so: adapters (LoRA) call their classes `Linear` too, and show the weight without themselves.
    """
    kind = type(module)
    return kind is nn.Linear or (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def linear(module: nn.Module) -> Float[Tensor, "in out"]:
    """`matrix`, to be read as what the module does; UserError where it does something else."""
    if not reads_as_linear(module):
        raise UserError(NOT_ITS_WEIGHT.format(type(module).__name__))
    return matrix(module)


def reads_as_linear(module: nn.Module) -> bool:
    """Whether a module gives x·W + b.

    One of a class that we do not know, or with a hook, is asked: it must do so for a few random x.
    """
    if isinstance(module, Scaled | Chain | Part):
        return all(reads_as_linear(m) for m in (module.inner if isinstance(module, Chain) else (module.inner,)))
    if is_linear(module) and not hooked([module]):
        return True
    weight, bias = matrix(module), getattr(module, "bias", None)
    if not weight.is_floating_point():  # quantised
        return False
    x = some_vectors(weight[:, 0])
    with torch.no_grad():
        return agree(heard(module, x), x @ weight if bias is None else x @ weight + bias)


def some_vectors(like: Float[Tensor, " d"]) -> Float[Tensor, "1 4 d"]:
    """A few vectors to ask a module with, always the same ones."""
    return torch.randn(1, 4, len(like), generator=torch.Generator().manual_seed(0)).to(like)


def agree(given: Tensor, said: Tensor) -> bool:
    """Whether a module gave what is said of it, up to rounding."""
    allowed = PROBED.get(said.dtype, 1e-5) * float(said.abs().max())
    return given.shape == said.shape and not bool(((given - said).abs() > allowed).any())


def require_sum(module: nn.Module, parts: Float[Tensor, "*rows head d"], whole: Float[Tensor, "*rows d"]) -> None:
    """UserError where a module's output is not the sum of what its weight makes of the parts of its input."""
    bias = getattr(module, "bias", None)
    total = parts.detach().sum(-2) if bias is None else parts.detach().sum(-2) + bias
    size = max(float(parts.detach().abs().max()) * parts.shape[-2], float(whole.detach().abs().max()))
    if bool(((total - whole).abs() > PROBED.get(whole.dtype, 1e-5) * size).any()):
        raise UserError(NOT_ITS_WEIGHT.format(type(module).__name__))
