"""Which cell a worker of the pool gets next.

A worker keeps to its group, whose cells share a model; then it takes a group nobody has begun, the longest
first; then the later half of the group with the most left, so that the workers end together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from interp.sweep.expand import SweepCell
from interp.sweep.grouping import CellGroup


class Schedule:
    """Cells that are still to be given out, by group."""

    def __init__(self, groups: Sequence[CellGroup]) -> None:
        ordered = sorted(groups, key=lambda g: -g.seconds)
        self._waiting = deque(deque(g.cells) for g in ordered)
        self._held: dict[int, deque[SweepCell]] = {}
        self._busy: deque[SweepCell] = deque()

    def next(self, worker: int) -> SweepCell | None:
        """The next cell for this worker, or None where all are given out."""
        held = self._held.setdefault(worker, deque())
        if not held:
            held = self._held[worker] = self._more()
        return held.popleft() if held else None

    def _more(self) -> deque[SweepCell]:
        if self._waiting:
            return self._waiting.popleft()
        longest = max(self._held.values(), key=len, default=deque())
        if len(longest) < 2:
            return deque([longest.popleft()]) if longest else deque()
        taken = [longest.pop() for _ in range(len(longest) // 2)]
        return deque(reversed(taken))

    def back(self, worker: int, cell: SweepCell) -> None:
        """A cell that its worker did not end (it died): the first that is given out again."""
        rest = self._held.pop(worker, deque())
        rest.appendleft(cell)
        self._waiting.appendleft(rest)

    def leave(self, worker: int) -> None:
        """A worker is gone; its group is free for the others."""
        rest = self._held.pop(worker, deque())
        if rest:
            self._waiting.appendleft(rest)

    def later(self, cell: SweepCell) -> None:
        """Another sweep has the cell in hand: it is looked at again when there is nothing else to do."""
        self._busy.append(cell)

    def again(self) -> bool:
        """Bring the cells back that others had in hand; False where there are none."""
        if not self._busy:
            return False
        self._waiting.append(self._busy)
        self._busy = deque()
        return True
