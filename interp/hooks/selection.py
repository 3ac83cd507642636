"""Selections: which part of a site is meant.

Heads, kv heads, experts and neurons are integers (negative ones count from the end). Positions are integers
that count a row's real tokens (−1 is its last) or labels (`"S2"`) that the prompts carry. On `scores` and
`pattern`, `pos` selects the query and `key` the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interp.registry import UserError

if TYPE_CHECKING:
    from interp.hooks.geometry import Geometry
    from interp.hooks.sites import Site

Place = int | str
UNITS = ("head", "kv_head", "expert", "neuron")
FARTHEST = 2**31
PARTS = (*UNITS, "pos", "key")


def _tuple(what: str, value: object, kinds: tuple[type, ...]) -> tuple[Any, ...] | None:
    if value is None:
        return None
    many = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    for one in many:
        if isinstance(one, bool) or not isinstance(one, kinds):
            raise UserError(f"{what} must be {' or '.join(k.__name__ for k in kinds)}, got {one!r}")
        if isinstance(one, int) and abs(one) >= FARTHEST:
            raise UserError(f"{what} is a number that lies outside any model and any prompt")
    if not many:
        raise UserError(f"{what} selects nothing: the list is empty")
    return tuple(many)


@dataclass(frozen=True)
class Selection:
    """A part of a site; None along an axis means all of it. Build with `select`."""

    head: tuple[int, ...] | None = None
    kv_head: tuple[int, ...] | None = None
    expert: tuple[int, ...] | None = None
    neuron: tuple[int, ...] | None = None
    pos: tuple[Place, ...] | None = None
    key: tuple[Place, ...] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels among the positions."""
        return tuple(p for p in self.pos or () if isinstance(p, str))

    def units(self, site: Site, geometry: Geometry) -> list[tuple[int, tuple[int, ...]]]:
        """(axis index, indices) of each selected unit axis; UserError where one does not fit the site."""
        sizes = {"head": geometry.heads, "kv_head": geometry.kv_heads, "expert": geometry.experts,
                 "neuron": geometry.d_mlp}  # fmt: skip
        found = []
        for unit in UNITS:
            chosen: tuple[int, ...] | None = getattr(self, unit)
            if chosen is None:
                continue
            axis = "d_mlp" if unit == "neuron" else unit
            if axis not in site.axes:
                raise UserError(_no_axis(unit, site))
            size = sizes[unit]
            outside = [i for i in chosen if not -size <= i < size]
            if outside:
                raise UserError(f"{unit} {outside[0]} of {site.name} lies outside the model's {size} {unit}s")
            found.append((site.axes.index(axis), tuple(i % size for i in chosen)))
        return found

    def check(self, site: Site, geometry: Geometry) -> None:
        """UserError where this selection does not fit the site."""
        self.units(site, geometry)
        if self.pos is not None and "pos" not in site.axes and "query" not in site.axes:
            raise UserError(f"site {site.name} has no positions to select")
        if self.key is not None and "key" not in site.axes:
            raise UserError(f"site {site.name} has no key axis; its axes are {' '.join(site.axes)}")

    def __str__(self) -> str:
        parts = ((name, getattr(self, name)) for name in (*UNITS, "pos", "key"))
        return ", ".join(f"{n}={v[0] if len(v) == 1 else list(v)}" for n, v in parts if v is not None)


def _no_axis(unit: str, site: Site) -> str:
    twin = {"head": "kv_head", "kv_head": "head"}.get(unit)
    hint = f"; select it by {twin}=" if twin in site.axes else ""
    return f"site {site.name} has no {unit} axis{hint} (its axes are {' '.join(site.axes)})"


def select(
    head: int | Iterable[int] | None = None,
    kv_head: int | Iterable[int] | None = None,
    expert: int | Iterable[int] | None = None,
    neuron: int | Iterable[int] | None = None,
    pos: Place | Iterable[Place] | None = None,
    key: Place | Iterable[Place] | None = None,
) -> Selection:
    """A selection from single values or lists.

    >>> str(select(head=2, pos=["S2", -1]))
    "head=2, pos=['S2', -1]"
    """
    return Selection(
        _tuple("head", head, (int,)), _tuple("kv_head", kv_head, (int,)), _tuple("expert", expert, (int,)),
        _tuple("neuron", neuron, (int,)), _tuple("pos", pos, (int, str)), _tuple("key", key, (int, str)),
    )  # fmt: skip
