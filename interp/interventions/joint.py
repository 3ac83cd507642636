"""A pair of sides that goes along with a pass of edits: its rows walk up the layers beside the rows that read them.

In each block the pair's tokens come first, the base run's before the donor's. A site keeps their rows before it edits
the others', and the other rows ask for their keys and values, for their z and for what edits patch in only when the
block has come that far. Of the donor only the columns are run from which on it is another than the base run: what
lies before reads the same tokens, and its keys and values are the base run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.interventions.base import Base
from interp.interventions.entry import Entry
from interp.interventions.packed_tap import AtPlaces
from interp.interventions.pair import Pair
from interp.interventions.reading import Reader
from interp.interventions.segment import Segment
from interp.models.attention import KeyValue
from interp.models.forward import embed
from interp.models.grid import Grid

if TYPE_CHECKING:
    from interp.interventions.plan import Item


class SideTap(AtPlaces):
    """Keeps the rows of some sides at the sites that are wanted of them, as a pass of edits comes by."""

    reads_only = True

    def __init__(self, segment: SideSegment) -> None:
        self.segment, pair = segment, segment.pair
        kept = [a for a in pair.wanted if 0 in segment.sides or str(a) in pair.given]
        self.places: set[tuple[str, int | None]] = {(a.site, a.layer) for a in kept}

    def set_rows(self, items: Sequence[Item]) -> None:
        """Its rows are always the same."""

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        self.edit(site, layer, x)
        return x

    def edit(self, site: str, layer: int | None, x: Tensor) -> None:
        """Nothing is edited: the value is kept, apart from the pass's memory."""
        if self.wants(site, layer):
            self.places.remove((site, layer))
            self.segment.pair.keep(str(Address(site, layer)), x.clone(), self.segment.sides, self.segment.start)

    def columns(self, narrow: bool) -> int:
        """How many columns each row holds: all of the segment's, in every block."""
        return self.segment.held.columns.shape[-1]


class SideSegment(Segment):
    """Rows of one side or of both as a segment of a pass: all columns from `start` on, up to the last block's z.

    What edits are given in the last block is taken from all columns, so queries and z are computed there for all.
    """

    def __init__(self, base: Base, pair: Pair, reader: Reader, sides: tuple[int, ...], start: int, first: int) -> None:
        self.base, self.pair, self.sides, self.start, self.first, self.tail = base, pair, sides, start, first, None
        self.readers = (reader, reader.other)
        self.prompts = pair.both if len(sides) == 2 else (pair.mine, pair.theirs)[sides[0]]
        columns = torch.arange(start, self.prompts.width, device=self.prompts.device)
        self.held = Held(self.prompts, columns, start == 0, start=start)
        self.grid_of_all = Grid(pair.net, self.held, pair.net.dtype, start)
        self.tap = SideTap(self)
        self.narrow = False
        """Whether only the metric's columns are left."""

    @property
    def ends_early(self) -> bool:
        """Whether only the metric's columns need go on after the last block's z."""
        return self.read is not None and self.pair.ends_early

    @cached_property
    def read(self) -> Held | None:
        """The columns that the metric reads, counted from `start`; None for all."""
        columns = [self.readers[side].columns for side in self.sides]
        if any(c is None for c in columns):
            return None
        rows = len(self.pair.mine)
        each = torch.cat([c.expand(rows, -1) for c in columns if c is not None])
        return Held(self.prompts, each - self.start, False)

    def narrowed(self, x: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "batch kept *rest"]:
        """Only the metric's columns."""
        if self.narrow or self.read is None:
            return x
        return self.read.take(x)

    def grid(self, packed: int, tail: bool = False) -> Grid:
        """Where the rows stand."""
        return self.grid_of_all

    def columns(self, tail: bool = False) -> int:
        """How many columns each row holds."""
        held = self.read if self.narrow and self.read is not None else self.held
        return held.columns.shape[-1]

    def prefix(self, layer: int) -> KeyValue | None:
        """The base run's keys and values of the columns before `start`."""
        return self.base.prefix(self.start, layer)

    def outside(self, entry: Entry, group: Sequence[Item]) -> Tensor:
        """The residual before the first block."""
        return embed(self.pair.net, self.held.take(self.prompts.tokens), self.grid_of_all, self.tap)


def side_segments(base: Base, pair: Pair, reader: Reader) -> list[SideSegment]:
    """Both sides of a pair, whose first is `base`, as segments that stand before all others: in one, or the donor apart
    from where it differs on."""
    start = donor_start(pair, reader)
    parts = [((0, 1), 0)] if start == 0 else [((0,), 0), ((1,), start)]
    return [SideSegment(base, pair, reader, sides, first, n - len(parts)) for n, (sides, first) in enumerate(parts)]


def donor_start(pair: Pair, reader: Reader) -> int:
    """The first column of the donor that is run where it goes along: before it both sides are the same."""
    if reader.columns is None or reader.other.columns is None:
        return 0
    return min(pair.common, reader.other.first_column)


def finish(segments: Sequence[SideSegment], rows: Sequence[Float[Tensor, "batch kept d_model"]]) -> None:
    """Read the metric's view of both sides off what the unembedding receives."""
    pair, readers = segments[0].pair, segments[0].readers
    x = torch.cat(list(rows))
    mine, theirs = readers[0].views(x.view(2, -1, *x.shape[1:]))
    pair.finish((mine, replace(theirs, side=readers[1].side)), readers[0])
