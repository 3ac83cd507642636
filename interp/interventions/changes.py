"""What an edit changes of the base run: the first column where its new value is another, if there is one.

Of a pair of sides the tokens say where they may differ; else values are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import EditContext
from interp.hooks.edits import Edit
from interp.hooks.selection import Place, Selection
from interp.hooks.sites import SITES
from interp.hooks.values import Run
from interp.interventions.base import Base
from interp.interventions.entry import FINAL, Entry
from interp.interventions.pair import Pair


@dataclass(frozen=True, eq=False)
class Maps:
    """What is known of edits while a plan is made: many of a sweep ask the same."""

    differs: dict[tuple[Address, int, int], np.ndarray[Any, np.dtype[np.bool_]]] = field(default_factory=dict)
    """Where they differ from the base run, by address, donor and axes kept."""
    firsts: dict[tuple[int, tuple[int, ...], tuple[Place, ...] | None], int | None] = field(default_factory=dict)
    """The first column where one of these differs, by units and positions."""
    entries: dict[tuple[Address, ...], Entry] = field(default_factory=dict)
    """Where passes enter, by what is edited together."""


def first_change(address: Address, edit: Edit, base: Base, maps: Maps) -> int | None:
    """First column where the edit's value differs from the base run's; None where it changes nothing."""
    if edit.needs_base:
        return None
    if address.site in FINAL and str(address) not in base.run.acts:
        return 0
    site = SITES[address.site]
    ctx = EditContext(site, address.layer, base.net.geometry, base.held, edit.selection, base.run)
    donor = edit.taken_from
    if donor is not None and ctx.token_axis == 1 and ctx.straight(donor.prompts):
        pair = _said_by_tokens(edit.selection, donor, base)
        if pair is not None:
            return _first_of_units(pair.differs(address), (), ctx, maps)
        if len(ctx.units) < 2:
            return _first_of_donor(ctx, donor, base, maps)
    before = ctx.pick(base.at(address.site, address.layer))
    differs = edit.change(before, ctx).to(before.dtype) != before
    return _first(differs, ctx)


def _said_by_tokens(selection: Selection, donor: Run, base: Base) -> Pair | None:
    """The pair of which the tokens say where its sides may differ, for all units of a site alike: it need not have been
    run. But neurons are often 0 on both sides, so they are asked."""
    pair = base.pair
    known = pair is not None and pair.is_side(donor) and selection.neuron is None
    return pair if known else None


def _first_of_donor(ctx: EditContext, donor: Run, base: Base, maps: Maps) -> int | None:
    """First column where a donor's value is another than the base run's; a sweep asks this for hundreds of edits."""
    differs = _donor_differs(ctx, donor, base, maps)
    return _first_of_units(differs, ctx.units[0][1] if differs.ndim == 3 else (), ctx, maps)


def _first_of_units(
    differs: np.ndarray[Any, np.dtype[np.bool_]], index: tuple[int, ...], ctx: EditContext, maps: Maps
) -> int | None:
    """First column that is written and where any of the units differ; `differs` is for all units alike without them."""
    key = (id(differs), index, ctx.selection.pos)
    if key not in maps.firsts:
        differs = np.any(differs[:, :, index], 2) if index else differs
        at = ctx.one_column
        if at is not None:
            maps.firsts[key] = at if differs[:, at].any() else None
        else:
            where = ctx.written()
            columns = (differs if where is None else differs & where.flatten(1).cpu().numpy()).any(0)
            maps.firsts[key] = int(columns.argmax()) if columns.any() else None
    return maps.firsts[key]


def _donor_differs(ctx: EditContext, donor: Run, base: Base, maps: Maps) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where a donor differs from the base run, `[batch, pos]` or, for edits of units, `[batch, pos, unit]`.

    Shared by all edits of a site: they differ in units and positions.
    """
    kept = 3 if ctx.units else 2
    key = (ctx.address, id(donor), kept)
    if key not in maps.differs:
        mine, theirs = (run[str(ctx.address)] for run in (base.run, donor))
        differs = theirs.to(mine.dtype) != mine
        maps.differs[key] = (differs if differs.ndim == kept else differs.flatten(kept).any(kept)).cpu().numpy()
    return maps.differs[key]


def _first(differs: Bool[Tensor, ...], ctx: EditContext) -> int | None:
    """First column with a difference that is written; None where there is none."""
    where = ctx.written()
    if where is not None:
        differs = differs & (where.flatten(1) if differs.ndim == 2 else where)
    by_column = differs.movedim(ctx.token_axis, 0).flatten(1).any(1).tolist()
    return by_column.index(True) if True in by_column else None
