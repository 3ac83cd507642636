"""What a sweep goes over: sites by layer, head, position, label, neuron, or several of these at once.

`by` names the axes along which a site is cut into parts, one intervention each: `layer` (the whole site),
`head` (kv heads where the site has them), `position` (real index), `label`, `neuron`; `head+position` cuts
both ways. Positions become labels of their own, so that prompts of unequal length share one sweep: a prompt
without that position has no value there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES, Site, resolve_all
from interp.registry import UserError, unknown

_POSITION = "position "
AXES = ("layer", "head", "position", "label", "neuron")


@dataclass(frozen=True)
class Unit:
    """One part of a site: its address, the keyword arguments of its selection, its columns in the table."""

    address: Address
    parts: dict[str, Any]
    key: dict[str, Any]

    @property
    def place(self) -> str | None:
        """The label this unit is bound to, if any."""
        return self.parts.get("pos")


def parse_by(by: str) -> tuple[str, ...]:
    """`head+position` to its axes; UserError for unknown ones."""
    axes = tuple(part.strip() for part in by.split("+"))
    for axis in axes:
        if axis not in AXES:
            raise unknown("axis to sweep by", axis, list(AXES))
    if {"position", "label"} <= set(axes):
        raise UserError("sweep by position or by label, not both")
    return axes


def units(
    geometry: Geometry,
    prompts: Prompts,
    sites: str | Iterable[str],
    by: str,
    labels: Sequence[str] | None = None,
) -> list[Unit]:
    """Every part of the sites, in the order of site, layer, head, position.

    Raises UserError where a site has no such axis, or the prompts carry no such label.
    """
    axes = parse_by(by)
    places = _places(prompts, axes, labels)
    found = []
    for address in resolve_all(sites, geometry):
        site = SITES[address.site]
        for unit, (pos, pos_key) in product(_unit_axis(site, geometry, axes), places):
            parts = {**unit, **pos}
            found.append(Unit(address, parts, {"site": site.name, "layer": address.layer, **unit, **pos_key}))
    return found


def _unit_axis(site: Site, geometry: Geometry, axes: tuple[str, ...]) -> list[dict[str, Any]]:
    if "head" in axes:
        for word, size in (("head", geometry.heads), ("kv_head", geometry.kv_heads)):
            if word in site.axes:
                return [{word: i} for i in range(size)]
        raise UserError(f"site {site.name} has no heads to sweep by; its axes are {' '.join(site.axes)}")
    if "neuron" in axes:
        if "d_mlp" not in site.axes:
            raise UserError(f"site {site.name} has no neurons to sweep by; its axes are {' '.join(site.axes)}")
        return [{"neuron": i} for i in range(geometry.d_mlp)]
    return [{}]


def _places(
    prompts: Prompts, axes: tuple[str, ...], labels: Sequence[str] | None
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    if "position" in axes:
        longest = int(prompts.lengths.max())
        return [({"pos": position_label(i)}, {"pos": i}) for i in range(longest)]
    if "label" in axes:
        own = [name for name in prompts.labels if not name.startswith(_POSITION)]
        chosen = own if labels is None else list(labels)
        if not chosen:
            raise UserError(
                "a sweep by label needs prompts that carry labels; in a table of pairs, a column label:NAME has them"
            )
        for label in chosen:
            prompts.real_index(label)
        return [({"pos": label}, {"pos_label": label}) for label in chosen]
    return [({}, {})]


def position_label(index: int) -> str:
    """The label under which a real position is selected."""
    return f"{_POSITION}{index}"


def with_positions(prompts: Prompts) -> Prompts:
    """The prompts with a label for every real position; −1 where a prompt is shorter."""
    lengths = prompts.lengths
    extra = {position_label(i): torch.where(lengths > i, i, -1).to(lengths) for i in range(int(lengths.max()))}
    return replace(prompts, labels={**prompts.labels, **extra})


def carries(prompts: Prompts, place: str) -> Bool[Tensor, " row"]:
    """Which prompts have a token of this label."""
    return prompts.labels[place] >= 0
