"""Leaf modules as the forward function calls them: several in a row, scaled, one half of a fused one.

Each wraps modules of the checkpoint, which are called themselves (their hooks fire), and gives the weight and bias
of the whole, so that whoever reads weights sees what the forward pass computes. Nothing is copied or altered.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.models.again import heard, hooked
from interp.registry import UserError

PROBED = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest difference of a module from its weight matrix, as a share of the largest output, by dtype."""


def packed(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight `[q | k | v, d_model]` and bias of an `nn.MultiheadAttention`."""
    return module.in_proj_weight, module.in_proj_bias  # type: ignore[return-value]


def matrix(module: nn.Module) -> Tensor:
    """A projection's weight as `[in, out]`, whatever way its module stores it."""
    weight = module.weight
    if not isinstance(weight, Tensor):
        raise UserError(f"{type(module).__name__} has no weight matrix")
    while isinstance(getattr(module, "base_layer", None), nn.Module):  # an adapter shows the weight of what it adapts
        module = module.base_layer  # type: ignore[assignment]
    return weight if type(module).__name__ == "Conv1D" else weight.T


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
    x = torch.randn(1, 4, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        given, expected = heard(module, x), x @ weight if bias is None else x @ weight + bias
    allowed = PROBED.get(weight.dtype, 1e-5) * float(expected.abs().max())
    return given.shape == expected.shape and not bool(((given - expected).abs() > allowed).any())


def require_sum(module: nn.Module, parts: Float[Tensor, "*rows head d"], whole: Float[Tensor, "*rows d"]) -> None:
    """UserError where a module's output is not the sum of what its weight makes of the parts of its input."""
    bias = getattr(module, "bias", None)
    total = parts.detach().sum(-2) if bias is None else parts.detach().sum(-2) + bias
    size = max(float(parts.detach().abs().max()) * parts.shape[-2], float(whole.detach().abs().max()))
    if bool(((total - whole).abs() > PROBED.get(whole.dtype, 1e-5) * size).any()):
        raise UserError(NOT_ITS_WEIGHT.format(type(module).__name__))


NOT_ITS_WEIGHT = (
    "a {} computes something else than its weight and bias say (an adapter, a hook or a forward of its own), so its "
    "weight cannot be read as what it does: merge adapters into the weights, take hooks off; runs, and patching of "
    "sites that need no weights, work as it is"
)


class Scaled(nn.Module):
    """A module's output times a number, or divided by one."""

    def __init__(self, inner: nn.Module, times: float = 1.0, over: float = 1.0) -> None:
        super().__init__()
        self.inner, self.times, self.over = inner, times, over

    def forward(self, x: Tensor) -> Tensor:
        return self._scaled(self.inner(x))

    def _scaled(self, x: Tensor) -> Tensor:
        x = x * self.times if self.times != 1.0 else x
        return x / self.over if self.over != 1.0 else x

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        return self._scaled(matrix(self.inner).T)

    @property
    def bias(self) -> Tensor | None:
        bias = getattr(self.inner, "bias", None)
        return None if bias is None else self._scaled(bias)


def scaled(module: nn.Module, times: float = 1.0, over: float = 1.0) -> nn.Module:
    """The module itself where nothing is to be done."""
    return module if times == over == 1.0 else Scaled(module, times, over)


class Chain(nn.Module):
    """Modules one after the other; as a projection, the product of linear ones."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.inner:
            x = module(x)
        return x

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        product = matrix(self.inner[0])
        for module in list(self.inner)[1:]:
            product = product @ matrix(module)
        return product.T

    @property
    def bias(self) -> Tensor | None:
        first, *rest = (getattr(module, "bias", None) for module in self.inner)
        if first is not None or any(b is not None for b in rest[:-1]):
            raise UserError("a chain of projections has no bias but its last one's")
        return rest[-1] if rest else None


class Part(nn.Module):
    """One of `of` equal parts of a fused projection's output."""

    def __init__(self, inner: nn.Module, index: int, of: int) -> None:
        super().__init__()
        self.inner, self.index, self.of = inner, index, of

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).chunk(self.of, -1)[self.index]  # type: ignore[no-any-return]

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        return matrix(self.inner).chunk(self.of, 1)[self.index].T

    @property
    def bias(self) -> Tensor | None:
        bias = getattr(self.inner, "bias", None)
        return None if bias is None else bias.chunk(self.of)[self.index]


class Positions(nn.Module):
    """A position table that takes position ids by keyword and adds its own offset to them."""

    def __init__(self, inner: nn.Module, keyword: str, offset: int) -> None:
        super().__init__()
        self.inner, self.keyword, self.offset = inner, keyword, offset

    def forward(self, rows: Int[Tensor, ...]) -> Float[Tensor, "... d_model"]:
        return self.inner(None, **{self.keyword: rows - self.offset})  # type: ignore[no-any-return]

    @property
    def weight(self) -> Float[Tensor, "rows d_model"]:
        return self.inner.weight  # type: ignore[return-value]


class NormByHead(nn.Module):
    """Norms listed by head, inside a module that wants heads before positions."""

    bias = None

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        each = list(inner.norms)  # type: ignore[arg-type]
        self.eps = each[0].eps
        if any(norm.bias is not None for norm in each):
            raise UserError("norms listed by head are read without biases")

    def forward(self, x: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]

    @property
    def weight(self) -> Float[Tensor, "head d_head"]:
        return torch.stack([norm.weight for norm in self.inner.norms])  # type: ignore[union-attr]
