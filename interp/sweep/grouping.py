"""Groups: cells that share a model and run in one job, as many as its time limit holds.

A group's estimate fills at most `fill` of the job's minutes (a requeued job goes on where it stopped, so a
wrong estimate costs a requeue, not work), and where several jobs run at once no group is larger than a fair
share, so that none of them is still at work when the others are long done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interp.sweep.expand import SweepCell
from interp.sweep.spec import Group, Resources

UNKNOWN = 30.0
"""Seconds assumed for a cell nobody has run yet."""
SHARES = 4
"""Groups per worker at least, where the cells are many enough."""


@dataclass(frozen=True)
class CellGroup:
    """Cells run one after the other by one worker."""

    cells: tuple[SweepCell, ...]
    resources: Resources
    seconds: float
    """Estimate for all of them."""


def grouped(
    cells: Iterable[SweepCell],
    shared: Mapping[str, tuple[Any, ...]],
    resources: Sequence[Resources],
    group: Group,
    seconds: Callable[[SweepCell], float | None],
    at_once: Callable[[Resources], int],
    least: float = 1.0,
) -> list[CellGroup]:
    """Split cells into groups.

    `at_once` says how many workers run with these resources; a group is worth `least` seconds, where cells are
    many enough, so that the start of a job is small beside its work.
    """
    together: dict[tuple[Any, ...], list[SweepCell]] = {}
    for cell in cells:
        together.setdefault((cell.resources, *shared.get(cell.key, ())), []).append(cell)
    known = {cell.key: seconds(cell) for kind in together.values() for cell in kind}
    total = [0.0] * len(resources)
    for kind in together.values():
        for cell in kind:
            total[cell.resources] += known[cell.key] or UNKNOWN
    made = []
    for kind in together.values():
        index = kind[0].resources
        asked = resources[index]
        limit = asked.minutes * 60 * group.fill
        share = total[index] / (at_once(asked) * SHARES)
        made += _cut(kind, asked, known, min(limit, max(share, least)), group.most)
    return made


def _cut(
    cells: list[SweepCell], asked: Resources, known: Mapping[str, float | None], limit: float, most: int
) -> list[CellGroup]:
    groups: list[CellGroup] = []
    held: list[SweepCell] = []
    filled = 0.0
    for cell in cells:
        cost = known[cell.key] or UNKNOWN
        if held and (filled + cost > limit or len(held) >= most):
            groups.append(CellGroup(tuple(held), asked, filled))
            held, filled = [], 0.0
        held.append(cell)
        filled += cost
    if held:
        groups.append(CellGroup(tuple(held), asked, filled))
    return groups
