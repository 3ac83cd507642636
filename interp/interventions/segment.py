"""Interventions of a pass that hold the same columns: from one column on, and after the last mixing the metric's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interp.hooks.context import Held
from interp.interventions.base import Base
from interp.interventions.entry import Entry
from interp.interventions.packed_tap import PackedTap
from interp.interventions.reading import Reader
from interp.models.attention import KeyValue
from interp.models.forward import embed
from interp.models.grid import Grid
from interp.models.net import Net

if TYPE_CHECKING:
    from interp.interventions.plan import Item


class Segment:
    """Columns from `first` on: their grids, the base run's tensors there, and the edits of who stands on them."""

    def __init__(self, base: Base, net: Net, reader: Reader, first: int, prefix: bool) -> None:
        self.base, self.net, self.first = base, net, first
        columns = torch.arange(first, base.prompts.width, device=base.prompts.device)
        self.held = Held(base.prompts, columns, first == 0, start=first)
        read = reader.columns if prefix else None
        narrow = read is not None and read.shape[-1] < len(columns)
        self.tail = Held(base.prompts, read.clamp(min=first), False) if narrow and read is not None else None
        self.tap = PackedTap(base, self.held, self.tail)
        self._grids: dict[tuple[int, bool], Grid] = {}

    def grid(self, packed: int, tail: bool = False) -> Grid:
        """Where `packed` copies of the prompts stand; with `tail`, at the metric's columns where those are fewer."""
        tail = tail and self.tail is not None
        held = self.tail if tail else self.held
        assert held is not None
        packed = packed if self.base.prompts.padded or held.columns.ndim == 2 else 1
        if (packed, tail) not in self._grids:
            if self.base.prompts.padded:
                columns = held.columns if held.columns.ndim == 1 else held.columns.repeat(packed, 1)
                held = Held(self.base.prompts.repeat(packed), columns, held.whole)
            elif held.columns.ndim == 2:
                held = Held(self.base.prompts.repeat(packed), held.columns.repeat(packed, 1), held.whole)
            self._grids[packed, tail] = Grid(self.net, held, self.net.dtype, self.first)
        return self._grids[packed, tail]

    def prefix(self, layer: int) -> KeyValue | None:
        """Keys and values of the columns before `first`, as the base run has them in a layer."""
        return self.base.prefix(self.first, layer)

    def columns(self, tail: bool = False) -> int:
        """How many columns each row holds."""
        held = self.tail if tail and self.tail is not None else self.held
        return held.columns.shape[-1]

    def expanded(self, full: Tensor, packed: int, axis: int = 1, tail: bool = False) -> Tensor:
        """A base tensor's held columns, once for every intervention."""
        held = self.tail if tail and self.tail is not None else self.held
        part = held.take(full, axis)
        if packed > 1:
            return part.repeat(packed, *(1,) * (part.ndim - 1))
        return part if held.whole else part.contiguous()

    def before_block(self, entry: Entry, group: Sequence[Item]) -> Tensor:
        """The residual with which interventions enter a block that they run whole."""
        if entry.site != "resid_post":
            return self.expanded(self.base.at("resid_pre", entry.layer), len(group))
        resid = self.expanded(self.base.at("resid_post", entry.layer - 1), len(group))
        self.tap.set_rows(group)
        return self.tap("resid_post", entry.layer - 1, resid)

    def outside(self, entry: Entry, group: Sequence[Item]) -> Tensor:
        """The residual of interventions that enter below the blocks, or above them."""
        base, layers, packed = self.base, self.net.geometry.layers, len(group)
        self.tap.set_rows(group)
        if entry.layer == -1:
            return embed(self.net, self.expanded(base.prompts.tokens, packed), self.grid(packed), self.tap)
        if entry.site == "resid_post":
            resid = self._to_tail(self.expanded(base.at("resid_post", layers - 1), packed), packed)
            return self.tap("resid_post", layers - 1, resid)
        return self._to_tail(self.expanded(base.final, packed), packed)

    def at_z(self, layer: int, group: Sequence[Item]) -> tuple[Tensor, Tensor]:
        """Residual and edited z of interventions that join a block's other rows there."""
        packed, last = len(group), layer == self.net.geometry.layers - 1
        self.tap.set_rows(group)
        z = self.tap("z", layer, self.expanded(self.base.at("z", layer), packed, tail=last))
        return self.expanded(self.base.at("resid_pre", layer), packed, tail=last), z

    def _to_tail(self, resid: Tensor, packed: int) -> Tensor:
        """Only the metric's columns of a residual that holds the segment's columns."""
        return resid if self.tail is None else self.grid(packed, tail=True).narrow(resid)
