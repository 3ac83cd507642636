"""Edits in a packed pass: each intervention's are made in its own rows of a tensor that holds many.

PackedTap   interventions that hold the same columns: `[intervention·prompt, pos, …]`
RaggedTap   several such, their tokens one after the other: `[token, 1, …]`
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import mul
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from interp.hooks.context import EditContext, Held
from interp.hooks.edits import Edit
from interp.hooks.sites import SITES
from interp.interventions.base import Base
from interp.interventions.entry import BEFORE_QUERIES

if TYPE_CHECKING:
    from interp.interventions.plan import Item

OWN = frozenset(("resid_pre", "z"))
"""Sites whose tensor, of several interventions, is the pass's own memory: edits are made in place."""


class AtPlaces:
    """A tap that knows beforehand where it has something to do."""

    places: Collection[tuple[str, int | None]]
    """The sites, each with its layer."""

    def wants(self, site: str, layer: int | None) -> bool:
        return (site, layer) in self.places


class PackedTap(AtPlaces):
    """Applies each intervention's edits to its own rows of a packed tensor.

    A tensor may hold fewer interventions than `set_rows` named: the first ones, before others join them.
    """

    def __init__(self, base: Base, held: Held, tail: Held | None) -> None:
        self.base, self.held, self.tail = base, held, tail
        self.places: dict[tuple[str, int | None], list[tuple[int, Edit]]] = {}

    def set_rows(self, items: Sequence[Item]) -> None:
        """Say which interventions the rows of the coming tensors belong to."""
        self.places = {}
        for slot, item in enumerate(items):
            for address, edit in item.edits:
                self.places.setdefault((address.site, address.layer), []).append((slot, edit))

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        todo = self.places.get((site, layer))
        if not todo:
            return x
        count = len(x) // len(self.base.prompts)
        if count == 1:  # the plain run's own way, to the bit
            for slot, edit in todo:
                x = edit.apply(x, self.context(site, layer, edit)) if slot == 0 else x
            return x
        if site not in OWN and any(slot < count for slot, _ in todo):
            x = x.clone()
        self.edit(site, layer, x)
        return x

    def edit(self, site: str, layer: int | None, x: Tensor) -> None:
        """Make the edits in the tensor itself."""
        each = x.unflatten(0, (-1, len(self.base.prompts)))
        donors: dict[int, Tensor] = {}
        for slot, edit in self.places.get((site, layer), ()):
            if slot < len(each):
                ctx = self.context(site, layer, edit)
                if not taken(each[slot], edit, ctx, donors):
                    edit.apply_to(each[slot], ctx)

    def context(self, site: str, layer: int | None, edit: Edit) -> EditContext:
        """What an edit may ask of the columns that the site's tensor holds."""
        base, held = self.base.run if edit.needs_base else None, self.held_at(site, layer)
        return EditContext(SITES[site], layer, self.base.net.geometry, held, edit.selection, base)

    def held_at(self, site: str, layer: int | None) -> Held:
        """The columns a site's tensor holds: in the last block, from the queries on, only the metric's."""
        narrow = self.tail is not None and narrowed(site, layer, self.base.net.geometry.layers)
        return self.tail if narrow and self.tail is not None else self.held

    def columns(self, narrow: bool) -> int:
        """How many columns each row holds, and how many where only the metric's are left."""
        return (self.tail if narrow and self.tail is not None else self.held).columns.shape[-1]


def taken(x: Float[Tensor, "batch pos *rest"], edit: Edit, ctx: EditContext, donors: dict[int, Tensor]) -> bool:
    """Copy what an edit takes from another run: of one unit or all, at one column or all. `donors` are such runs'
    values at this site, looked up once for many edits.

    Where the edit is not as simple as that it says so, and writes nothing.
    """
    run, units, at = edit.taken_from, ctx.units, ctx.one_column
    if run is None or ctx.token_axis != 1 or ctx.held.rows is not None or not ctx.straight(run.prompts):
        return False
    if len(units) > 1 or any(len(index) > 1 for _, index in units) or (at is None and ctx.written() is not None):
        return False
    if id(run) not in donors:
        donors[id(run)] = ctx.held.take(run[str(ctx.address)])
    donor = donors[id(run)]
    if donor.shape != x.shape:
        return False
    for axis, (index,) in units:
        x, donor = x.select(axis, index), donor.select(axis, index)
    if at is not None:
        x, donor = x.select(1, at), donor.select(1, at)
    x.copy_(donor)
    return True


def narrowed(site: str, layer: int | None, layers: int) -> bool:
    """Whether a site lies where only the metric's columns are left: in the last block, from the queries on."""
    if layer is None:
        return site not in ("embed", "pos_embed")
    return layer == layers - 1 and site not in BEFORE_QUERIES


class RaggedTap(AtPlaces):
    """Leads to the tap of each segment; `counts` says how many interventions each holds, now and once all joined."""

    def __init__(self, taps: Sequence[PackedTap], rows: int, layers: int, *counts: Sequence[int]) -> None:
        self.taps, self.rows, self.layers, self.counts = taps, rows, layers, counts
        self.places = {place for tap in taps for place in tap.places}

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        if (site, layer) not in self.places:
            return x
        columns = [tap.columns(narrowed(site, layer, self.layers)) for tap in self.taps]
        tokens, size = x.shape[0], [self.rows * c for c in columns]
        counts = next((n for n in self.counts if sum(map(mul, n, size)) == tokens), None)
        if counts is None:
            raise ValueError(f"{site} of layer {layer} holds {tokens} tokens, which are no interventions' columns")
        doing = [tap.wants(site, layer) for tap in self.taps]
        if site not in OWN and any(doing):
            x = x.clone()
        start = 0
        for tap, does, n, held in zip(self.taps, doing, counts, columns, strict=True):
            end = start + n * self.rows * held
            if does and n:
                tap.edit(site, layer, x[start:end].view(n * self.rows, held, *x.shape[2:]))
            start = end
        return x
