"""Numbers of one site: range, zeros, NaN, Inf, and how far they are from overflow in fp16 and bf16.

Margins are log2(largest finite number of the format / largest absolute value here): 0 means at the edge, below 0
an overflow. NaN and Inf are counted and left out of range and margin. Forward values are the site's activation,
backward ones the loss's gradient there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = {"fp16": torch.finfo(torch.float16).max, "bf16": torch.finfo(torch.bfloat16).max}


@dataclass(frozen=True)
class SiteNumbers:
    """Statistics of one tensor."""

    address: str
    direction: str
    """forward or backward."""
    low: float
    high: float
    largest: float
    """Largest absolute value among finite ones."""
    rms: float
    zeros: float
    """Share of exact zeros."""
    nan: int
    inf: int
    margin_fp16: float
    """Bits left before fp16 overflows; infinite where all is 0."""
    margin_bf16: float
    drift: float | None = None
    """RMS difference from the same site in fp32, as a share of its RMS there."""


def numbers(address: str, direction: str, x: Tensor, reference: Tensor | None = None) -> SiteNumbers:
    """Statistics of a tensor, in float32 at least; `reference` is the same site in fp32.

    >>> n = numbers("L0.z", "forward", torch.tensor([0.0, -2.0, float("inf"), float("nan")]))
    >>> n.low, n.high, n.zeros, n.nan, n.inf, round(n.margin_fp16, 2)
    (-2.0, 0.0, 0.25, 1, 1, 15.0)
    """
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    counted = torch.isfinite(wide)
    if address.endswith("scores") and direction == "forward":
        # what may not be read holds the format's smallest number: a mask, no value of the model's
        counted &= x.detach() != torch.finfo(x.dtype).min
    finite = wide[counted]
    empty = finite.numel() == 0
    largest = 0.0 if empty else float(finite.abs().max())
    margins = {name: math.inf if largest == 0 else math.log2(top / largest) for name, top in LARGEST.items()}
    return SiteNumbers(
        address, direction, math.nan if empty else float(finite.min()), math.nan if empty else float(finite.max()),
        largest, 0.0 if empty else float(finite.square().mean().sqrt()), float((wide == 0).double().mean()),
        int(torch.isnan(wide).sum()), int(torch.isinf(wide).sum()), margins["fp16"], margins["bf16"],
        None if reference is None else _drift(wide, reference.detach(), counted),
    )  # fmt: skip


def _drift(x: Tensor, reference: Tensor, counted: Tensor) -> float | None:
    there = reference.to(x)
    shown = counted & torch.isfinite(there)
    size = float(there[shown].square().mean().sqrt()) if bool(shown.any()) else 0.0
    return float((x - there)[shown].square().mean().sqrt()) / size if size > 0 else None
