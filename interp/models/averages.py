"""Mean activations over prompts, accumulated in float64 so that batch sizes do not matter."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES
from interp.hooks.values import Means
from interp.registry import UserError, unknown

KINDS = ("all", "position", "label", "template")


def average(
    prompts: Prompts,
    addresses: list[Address],
    by: str,
    chunks: Iterable[tuple[Prompts, dict[str, Tensor]]],
    geometry: Geometry,
) -> Means:
    """Sum captures over real tokens into the cells that `by` names, and divide by the counts.

    Raises UserError where `by` is unknown, or the prompts lack the labels or templates it needs.
    """
    labels = tuple(sorted(prompts.labels))
    cells = _cells(prompts, by, labels)
    sums: dict[str, Tensor] = {}
    counts: dict[str, Tensor] = {}
    kept: dict[str, torch.dtype] = {}
    for part, acts in chunks:
        for index in _indices(part, by, labels, cells):
            for address in addresses:
                given = acts[str(address)].dtype
                kept[str(address)] = given if given == torch.float64 else torch.float32
                _add(str(address), acts[str(address)], part, index, cells, by, sums, counts)
    values: dict[str, Tensor] = {}
    for name, total in sums.items():
        n = counts[name]
        shape = (*n.shape, *(1,) * (total.ndim - n.ndim)) if n.ndim else ()
        mean = total / n.clamp(min=1).view(shape)
        values[name] = _shaped(mean, by, cells).to(kept[name])
        counts[name] = _shaped(n, by, cells)
    return Means(
        by,
        values,
        counts,
        labels if by == "label" else (),
        len(prompts),
        prompts.digest(),
        geometry.layers,
    )


def _cells(prompts: Prompts, by: str, labels: tuple[str, ...]) -> tuple[int, ...]:
    longest = int(prompts.mask.sum(1).max())
    if by == "all":
        return (1,)
    if by == "position":
        return (longest,)
    if by == "label":
        if not labels:
            raise UserError("means by label need prompts that carry labels")
        return (len(labels),)
    if by == "template":
        if prompts.template is None:
            raise UserError("means by template need prompts that carry template ids")
        return (int(prompts.template.max()) + 1, longest)
    raise unknown("kind of mean", by, list(KINDS))


def _indices(part: Prompts, by: str, labels: tuple[str, ...], cells: tuple[int, ...]) -> list[Tensor]:
    """Cell of every column, `[batch, pos]`, −1 where a token belongs to none; one such map for each label."""
    real = part.positions
    if by == "label":
        maps = []
        for i, label in enumerate(labels):
            every = torch.arange(part.width, device=part.device)[None]
            maps.append(torch.where(every == part.column(label)[:, None], i, -1))
        return maps
    if by == "all":
        index = torch.zeros_like(real)
    elif by == "position":
        index = real
    else:
        assert part.template is not None
        index = part.template[:, None] * cells[1] + real
    return [index.masked_fill(~part.mask, -1)]


def _add(
    name: str,
    value: Tensor,
    part: Prompts,
    index: Tensor,
    cells: tuple[int, ...],
    by: str,
    sums: dict[str, Tensor],
    counts: dict[str, Tensor],
) -> None:
    site = SITES[Address.parse(name).site]
    size = 1
    for c in cells:
        size *= c
    keep = index >= 0
    if "query" in site.axes:
        if by not in ("position", "template"):
            raise UserError(f"means of {site.name} are taken by position or template, not by {by}: its keys are tokens")
        value = _keys_from_start(value, part, cells[-1]).transpose(1, 2)
    flat = value[keep].double()
    if name not in sums:
        sums[name] = flat.new_zeros(size, *flat.shape[1:])
        counts[name] = flat.new_zeros(size, dtype=torch.long)
    sums[name].index_add_(0, index[keep], flat)
    counts[name].index_add_(0, index[keep], torch.ones_like(index[keep]))


def _keys_from_start(value: Tensor, part: Prompts, longest: int) -> Tensor:
    """Keys shifted so that key 0 is the row's first real token, padded with 0 to `longest`."""
    keys = torch.arange(longest, device=value.device)[None] + part.starts[:, None]
    inside = keys < part.starts[:, None] + part.mask.sum(1)[:, None]
    index = keys.clamp(max=value.shape[-1] - 1)[:, None, None].expand(*value.shape[:3], -1)
    return value.gather(3, index) * inside[:, None, None]


def _shaped(t: Tensor, by: str, cells: tuple[int, ...]) -> Tensor:
    if by == "all":
        return t[0]
    return t.reshape(*cells, *t.shape[1:])
