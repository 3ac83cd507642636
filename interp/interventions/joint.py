"""A pair of sides that goes along with a pass of edits: its rows walk up the layers beside the rows that read them.

In each block the pair's tokens come first. A site keeps its rows before it edits the others', and the other rows ask
for its keys and values, for its z and for what edits patch in only when the block has come that far.
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

FIRST = -1
"""The pair's place among the first columns by which a pass orders its segments: before all of them."""


class PairTap(AtPlaces):
    """Keeps the pair's rows of the sites that it wants, as a pass of edits comes by."""

    reads_only = True

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.places: set[tuple[str, int | None]] = {(a.site, a.layer) for a in pair.wanted}

    def set_rows(self, items: Sequence[Item]) -> None:
        """Its rows are always the same."""

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        self.edit(site, layer, x)
        return x

    def edit(self, site: str, layer: int | None, x: Tensor) -> None:
        """Nothing is edited: the value is kept, apart from the pass's memory."""
        if self.wants(site, layer):
            self.places.remove((site, layer))
            self.pair.keep(str(Address(site, layer)), x.clone())

    def columns(self, narrow: bool) -> int:
        """How many columns each row holds: all, in every block."""
        return self.pair.both.width


class PairSegment(Segment):
    """The pair's rows as a segment of a pass: both sides with all their columns, up to the last block's z.

    What edits are given in the last block is taken from all columns, so queries and z are computed there for all.
    """

    def __init__(self, pair: Pair, reader: Reader) -> None:
        self.pair, self.first, self.tail = pair, FIRST, None
        self.readers = (reader, replace(reader, side="clean" if reader.side == "corrupt" else "corrupt"))
        self.grid_of_all = Grid.of(pair.net, pair.both, pair.net.dtype)
        self.tap = PairTap(pair)
        self.narrow = False
        """Whether only the metric's columns are left."""

    @property
    def ends_early(self) -> bool:
        """Whether only the metric's columns need go on after the last block's z."""
        return self.read is not None and self.pair.ends_early

    @cached_property
    def read(self) -> Held | None:
        """The columns that the metric reads; None for all."""
        columns = [reader.columns for reader in self.readers]
        if any(c is None for c in columns):
            return None
        rows = len(self.pair.mine)
        each = torch.cat([c.expand(rows, -1) for c in columns if c is not None])
        return Held(self.pair.both, each, False)

    def narrowed(self, x: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "batch kept *rest"]:
        """Only the metric's columns of both sides."""
        if self.narrow or self.read is None:
            return x
        return self.read.take(x)

    def finish(self, x: Float[Tensor, "batch kept d_model"]) -> None:
        """Read the metric's view of both sides off what the unembedding receives."""
        mine, theirs = self.readers[0].views(x.view(2, -1, *x.shape[1:]))
        self.pair.finish((mine, replace(theirs, side=self.readers[1].side)), self.readers[0])

    def grid(self, packed: int, tail: bool = False) -> Grid:
        """Where both sides stand."""
        return self.grid_of_all

    def columns(self, tail: bool = False) -> int:
        """How many columns each row holds."""
        return self.read.columns.shape[-1] if self.narrow and self.read is not None else self.pair.both.width

    def prefix(self, layer: int) -> KeyValue | None:
        """Nothing comes before."""
        return None

    def outside(self, entry: Entry, group: Sequence[Item]) -> Tensor:
        """The residual of both sides before the first block."""
        return embed(self.pair.net, self.pair.both.tokens, self.grid_of_all, self.tap)
