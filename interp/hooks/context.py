"""Where an edit stands: which site, which rows and columns of it are held, and how other runs line up with it.

A replayed pass may hold only some columns of the prompts (a suffix, or the answer positions). Everything an
edit needs to know of that is here, so that edits themselves are one expression.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.selection import Selection
from interp.hooks.sites import Site
from interp.hooks.values import Means, Run
from interp.registry import UserError


@dataclass(frozen=True, eq=False)
class Held:
    """The part of a batch that a pass holds: rows, and per row the columns (`[pos]`, or `[batch, pos]`)."""

    prompts: Prompts
    columns: Int[Tensor, ...]
    whole: bool
    """All columns, in order."""
    rows: Int[Tensor, " batch"] | None = None
    """Row of the original batch behind each row; None where they are the same."""
    start: int | None = None
    """The first held column, where all from it on are held."""
    masks: dict[object, Tensor | None] = field(default_factory=dict, repr=False)
    """Where selections write, by selection and axes: many edits of a sweep select the same tokens."""
    places: dict[int | str, int | None] = field(default_factory=dict, repr=False)
    """What `column` said of places."""

    @staticmethod
    def all(prompts: Prompts) -> Held:
        return Held(prompts, torch.arange(prompts.width, device=prompts.device), True)

    def column(self, place: int | str) -> int | None:
        """Where a place stands among the held columns; None where not in all rows alike, or at none of them."""
        if place not in self.places:
            of_rows = set(self.prompts.column(place).tolist())
            held = self.columns.tolist() if self.columns.ndim == 1 and len(of_rows) == 1 else []
            self.places[place] = next((held.index(c) for c in of_rows if c in held), None)
        return self.places[place]

    @property
    def per_row(self) -> Int[Tensor, "batch pos"]:
        """Column index of every held token."""
        return self.columns.expand(len(self.prompts), -1)

    def take(self, full: Tensor, axis: int = 1) -> Tensor:
        """The held columns of a full-width tensor whose token axis is `axis`."""
        if self.whole:
            return full
        if self.start is not None:
            return full.narrow(axis, self.start, full.shape[axis] - self.start)
        if self.columns.ndim == 1:
            return full.index_select(axis, self.columns)
        shape = [1] * full.ndim
        shape[0], shape[axis] = self.columns.shape
        index = self.columns.view(shape).expand(*(s if i != axis else -1 for i, s in enumerate(full.shape)))
        return full.gather(axis, index)

    def take_positions(self) -> Int[Tensor, "batch pos"]:
        """Real index of every held token."""
        return self.take(self.prompts.positions)


@dataclass(frozen=True, eq=False)
class EditContext:
    """What an edit or a user's function may ask: site, layer, prompts, held columns, the base run.

    `own(run)` is the value another run has where this part stands: same rows, same real tokens (or the same
    labels), same heads.
    """

    site: Site
    layer: int | None
    geometry: Geometry
    held: Held
    selection: Selection = field(default_factory=Selection)
    base: Run | None = None

    @cached_property
    def address(self) -> Address:
        return Address(self.site.name, self.layer)

    @property
    def prompts(self) -> Prompts:
        return self.held.prompts

    @property
    def token_axis(self) -> int:
        return self.site.token_axis

    @cached_property
    def units(self) -> list[tuple[int, tuple[int, ...]]]:
        """(axis index, indices) of the selected heads, kv heads, experts or neurons."""
        return self.selection.units(self.site, self.geometry)

    def pick(self, tensor: Tensor) -> Tensor:
        """The selected heads, kv heads, experts or neurons of a tensor with the site's axes."""
        for axis, index in self.units:
            if len(index) == 1:
                tensor = tensor.narrow(axis, index[0], 1)
            else:
                tensor = tensor.index_select(axis, torch.tensor(index, device=tensor.device))
        return tensor

    def put(self, tensor: Tensor, part: Tensor) -> Tensor:
        """A new tensor with the selected units replaced by `part`."""
        units = self.units
        if not units:
            return part
        (axis, index), rest = units[0], units[1:]
        if rest:
            raise UserError(f"select one kind of unit at a time, got {self.selection}")
        return tensor.index_copy(axis, torch.tensor(index, device=tensor.device), part)

    def written(self) -> Bool[Tensor, ...] | None:
        """Where the edit acts, broadcastable to the part; None means everywhere. Padding is never written."""
        key = (self.selection.pos, self.selection.key, self.site.axes)
        if key not in self.held.masks:
            self.held.masks[key] = self._written()
        return self.held.masks[key]

    @property
    def one_column(self) -> int | None:
        """The only held column where the edit acts, for all rows alike; None where there is no such."""
        sel = self.selection
        return self.held.column(sel.pos[0]) if sel.pos is not None and len(sel.pos) == 1 and sel.key is None else None

    def _written(self) -> Bool[Tensor, ...] | None:
        sel, held = self.selection, self.held
        keep: Tensor | None = None
        if sel.pos is not None:
            keep = self._at(sel.pos, held.per_row, self.token_axis)
        elif held.prompts.padded:
            keep = self._spread(held.take(held.prompts.mask), self.token_axis)
        if sel.key is not None:
            every = torch.arange(held.prompts.width, device=held.prompts.device).expand(len(held.prompts), -1)
            on_key = self._at(sel.key, every, self.site.axes.index("key"))
            keep = on_key if keep is None else keep & on_key
        return keep

    def _at(self, places: tuple[int | str, ...], columns: Tensor, axis: int) -> Tensor:
        first, *others = (columns == self.prompts.column(place)[:, None] for place in places)
        for hit in others:
            first |= hit
        return self._spread(first, axis)

    def _spread(self, flags: Bool[Tensor, "batch pos"], axis: int) -> Tensor:
        shape = [1] * len(self.site.axes)
        shape[0], shape[axis] = flags.shape
        return flags.view(shape)

    def own(self, run: Run, rows: Int[Tensor, " batch"] | None = None) -> Tensor:
        """The part's value in another run, aligned row by row and token by token.

        `rows` names the donor row of each original row. Raises UserError where a row's lengths differ and no
        label says which token stands for which.
        """
        wanted = self.held.rows
        if rows is not None:
            wanted = rows if wanted is None else rows[wanted]
        theirs = run.prompts if wanted is None else run.prompts.rows(wanted)
        if len(theirs) != len(self.prompts):
            raise UserError(f"the other run has {len(theirs)} prompts, this one {len(self.prompts)}: rows must pair up")
        donor = self.pick(run[str(self.address)])
        return self._align(donor if wanted is None else donor[wanted], theirs)

    def _align(self, donor: Tensor, theirs: Prompts) -> Tensor:
        mine = self.prompts
        if self.straight(theirs):
            return self.held.take(donor, self.token_axis)
        if not self.selection.labels or "key" in self.site.axes:
            _same_lengths(mine, theirs)
        source = self._donor_columns(theirs)
        aligned = Held(theirs, source, False).take(donor, self.token_axis)
        if "key" in self.site.axes and not mine.stands_like(theirs):
            keys = torch.arange(mine.width, device=mine.device)[None] - mine.starts[:, None] + theirs.starts[:, None]
            keys = keys.clamp(0, theirs.width - 1)
            aligned = Held(theirs, keys, False).take(aligned, self.site.axes.index("key"))
        return aligned

    def straight(self, theirs: Prompts) -> bool:
        """Whether other prompts' tokens stand in the same rows and columns, the selected labels at the same ones."""
        return self.prompts.stands_like(theirs, self.selection.labels)

    def _donor_columns(self, theirs: Prompts) -> Int[Tensor, "batch pos"]:
        mine, columns = self.prompts, self.held.per_row
        source = (columns - mine.starts[:, None] + theirs.starts[:, None]).clamp(0, theirs.width - 1)
        for place in self.selection.pos or ():
            here, there = mine.column(place), theirs.column(place)
            lost = ((here >= 0) & (there < 0)).nonzero().flatten().tolist()
            if lost:
                raise UserError(f"prompt {lost[0]} carries label {place!r}, its partner does not")
            source = torch.where(columns == here[:, None], there[:, None], source)
        return source

    def averaged(self, means: Means) -> Tensor:
        """The mean that stands where this part stands, `[batch, pos, …]` in the site's axis order."""
        values = means[str(self.address)]
        shape = [len(self.prompts), self.held.columns.shape[-1]]
        if means.by == "all":
            full = values.expand(*shape, *values.shape)
        elif means.by == "label":
            full = self._by_label(means, values, shape)
        else:
            full = self._by_position(means, values)
        if "query" in self.site.axes:  # stored [query, head, key]
            full = full.transpose(1, 2)
            full = torch.nn.functional.pad(full, (0, max(0, self.prompts.width - full.shape[-1])))
            keys = (torch.arange(self.prompts.width, device=full.device)[None] - self.prompts.starts[:, None]).clamp(0)
            full = Held(self.prompts, keys, False).take(full, 3)
        return self.pick(full)

    def _by_position(self, means: Means, values: Tensor) -> Tensor:
        real = self.held.take_positions()
        counts = means.counts[str(self.address)]
        if means.by == "template":
            if self.prompts.template is None:
                raise UserError("means by template need prompts that carry template ids")
            known, row = values.shape[1], self.prompts.template
            if int(row.max()) >= values.shape[0]:
                raise UserError(f"no mean for template {int(row.max())}; means cover {values.shape[0]} templates")
            values, counts = values.flatten(0, 1), counts.flatten(0, 1)
            index = row[:, None] * known + real.clamp(max=known - 1)
        else:
            known, index = values.shape[0], real.clamp(max=values.shape[0] - 1)
        keep = self.held.take(self.prompts.mask)
        needed = keep if self.selection.pos is None else keep & self._needed()
        missing = needed & ((real >= known) | (counts[index] == 0))
        if bool(missing.any()):
            at = int(real[missing][0])
            raise UserError(f"means by {means.by} saw no token at position {at} of {self.address}")
        return values[index]

    def _needed(self) -> Tensor:
        hit = self._at(self.selection.pos or (), self.held.per_row, self.token_axis)
        return hit.reshape(len(self.prompts), -1)

    def _by_label(self, means: Means, values: Tensor, shape: list[int]) -> Tensor:
        places = self.selection.pos
        if places is None or not all(isinstance(p, str) for p in places):
            raise UserError(f"means by label need positions selected by label; labels: {', '.join(means.labels)}")
        full = values.new_zeros(*shape, *values.shape[1:])
        for place in places:
            if place not in means.labels:
                raise UserError(f"no mean for label {place!r}; there are: {', '.join(means.labels)}")
            value = values[means.labels.index(str(place))]
            hit = self.held.per_row == self.prompts.column(place)[:, None]
            full = torch.where(hit.view(*hit.shape, *(1,) * value.ndim), value, full)
        return full


def _same_lengths(mine: Prompts, theirs: Prompts) -> None:
    ours, other = mine.mask.sum(1), theirs.mask.sum(1)
    bad = (ours != other).nonzero().flatten().tolist()
    if bad:
        raise UserError(
            f"pair {bad[0]} differs in length: {int(ours[bad[0]])} and {int(other[bad[0]])} tokens; "
            "select positions by a label that both carry"
        )
