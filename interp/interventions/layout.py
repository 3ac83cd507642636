"""How the rows of a pass lie in one tensor: those of each segment together, segment after segment.

Rows of one segment are `[intervention·prompt, pos, …]`. Where several stand side by side their lengths differ, and
their tokens lie one after the other, `[token, 1, …]` (`models/ragged.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interp.hooks.taps import Tap
from interp.interventions.packed_tap import RaggedTap
from interp.interventions.segment import Segment
from interp.models.ragged import Columns, Ragged, end_to_end, parted

if TYPE_CHECKING:
    from interp.interventions.plan import Item

Standing = tuple[Segment, list["Item"]]
"""A segment, and the interventions that stand on it."""
Rows = dict[int, list[Tensor]]
"""Residuals `[intervention·prompt, pos, d_model]` in their order, by the first column they hold."""
Lying = tuple[Tensor, list[Tensor]]
"""Tokens of several segments as a block gave them, and the pieces of each."""


class Layout:
    """Interventions on their segments, in the order in which their rows lie."""

    def __init__(self, standing: Sequence[Standing], prompts: int, alone: bool | None = None) -> None:
        """`alone` says whether the rows are those of one segment only, where others will join them."""
        self.standing, self.prompts = list(standing), prompts
        self.alone = len(self.standing) == 1 if alone is None else alone

    def set_rows(self) -> None:
        """Tell each segment's tap whose rows it will see."""
        for segment, items in self.standing:
            segment.tap.set_rows(items)

    def tap(self, before: Layout, layers: int) -> Tap:
        """The tap of all rows; `before` are those that are there from the start."""
        if self.alone:
            return self.standing[0][0].tap
        counts = {s.first: len(items) for s, items in before.standing}
        return RaggedTap(
            [s.tap for s, _ in self.standing], self.prompts, layers,
            [counts.get(s.first, 0) for s, _ in self.standing], [len(items) for _, items in self.standing],
        )  # fmt: skip

    def columns(self, tail: bool = False) -> Columns:
        """Where the rows stand; with `tail`, at the metric's columns where those are fewer."""
        grids = tuple(s.grid(len(items), tail) for s, items in self.standing)
        return grids[0] if self.alone else Ragged(grids, tuple(len(items) * self.prompts for _, items in self.standing))

    def flat(self, rows: Rows, known: Lying | None = None) -> Tensor:
        """The rows in one tensor; `known` may be the very one that they are pieces of."""
        pieces = [piece for segment, _ in self.standing for piece in rows[segment.first]]
        if self.alone:
            return cat(pieces)
        if known is not None and len(pieces) == len(known[1]) and all(map(is_, pieces, known[1])):
            return known[0]
        return end_to_end(pieces)

    def parted(self, x: Tensor, tail: bool = False) -> Rows:
        """The rows of each segment; views."""
        if self.alone:
            return {s.first: [x] for s, _ in self.standing}
        rows, columns = zip(*((len(items) * self.prompts, s.columns(tail)) for s, items in self.standing), strict=True)
        return {s.first: [part] for (s, _), part in zip(self.standing, parted(x, rows, columns), strict=True)}


def cat(pieces: list[Tensor]) -> Tensor:
    """Rows one after the other; a single piece as it is."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def join(rows: Rows, more: Rows) -> None:
    """Put rows behind those of their segment."""
    for first, pieces in more.items():
        rows.setdefault(first, []).extend(pieces)
