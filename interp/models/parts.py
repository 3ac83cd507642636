"""Leaf modules as the forward function calls them: several in a row, scaled, one half of a fused one.

Each wraps modules of the checkpoint, which are called themselves (their hooks fire), and gives the weight and bias
of the whole, so that whoever reads weights sees what the forward pass computes. Nothing is copied or altered.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.registry import UserError


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
