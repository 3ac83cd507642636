"""Groups and the pool's schedule: no cell twice, none forgotten, shared models together, limits kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interp.sweep.backends.schedule import Schedule
from interp.sweep.expand import SweepCell
from interp.sweep.grouping import UNKNOWN, CellGroup, grouped
from interp.sweep.spec import Group, Resources


def cells(count: int, resources: int = 0) -> list[SweepCell]:
    return [SweepCell(f"k{i}", "probe", {}, f"probe/-.--k{i}", f"k{i}", resources) for i in range(count)]


def test_by_model_and_by_time_limit() -> None:
    made = cells(10)
    shared = {c.key: ("small" if i < 4 else "large",) for i, c in enumerate(made)}
    # ten minutes, half of them to be filled: 300 s; a large cell takes 100 s, so three in a group
    seconds = {c.key: 10.0 if i < 4 else 100.0 for i, c in enumerate(made)}
    groups = grouped(made, shared, [Resources(minutes=10)], Group(), lambda c: seconds[c.key], lambda r: 1, 300.0)
    assert [[c.key for c in g.cells] for g in groups] == [
        ["k0", "k1", "k2", "k3"], ["k4", "k5", "k6"], ["k7", "k8", "k9"]
    ]  # fmt: skip
    assert [g.seconds for g in groups] == [40, 300, 300]


def test_unknown_cells_and_many_workers() -> None:
    made = cells(64)
    ask = Resources(minutes=600)
    one = grouped(made, {}, [ask], Group(), lambda c: None, lambda r: 1)
    # a quarter of the whole per worker
    assert [len(g.cells) for g in one] == [16] * 4
    assert one[0].seconds == 16 * UNKNOWN
    assert len(grouped(made, {}, [ask], Group(), lambda c: None, lambda r: 8)) == 32
    # a cluster's job is worth 300 s at least
    assert len(grouped(made, {}, [ask], Group(), lambda c: None, lambda r: 8, 300.0)) == 7
    assert max(len(g.cells) for g in grouped(made, {}, [ask], Group(most=3), lambda c: None, lambda r: 1)) == 3


def test_cells_of_other_resources_are_other_groups() -> None:
    made = [*cells(2), *cells(4, 1)[2:]]
    asked = [Resources(), Resources(gpus=1)]
    groups = grouped(made, {}, asked, Group(), lambda c: 1.0, lambda r: 1, 100.0)
    assert [(g.resources.gpus, len(g.cells)) for g in groups] == [(0, 2), (1, 2)]


@given(
    sizes=st.lists(st.integers(1, 6), max_size=6),
    moves=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["take", "take", "take", "die", "busy"])), max_size=80),
)
def test_schedule_gives_every_cell_out(sizes: list[int], moves: list[tuple[int, str]]) -> None:
    names = iter(range(1000))
    groups = [
        CellGroup(tuple(SweepCell(str(next(names)), "probe", {}, "", "") for _ in range(n)), Resources(), float(n))
        for n in sizes
    ]
    schedule = Schedule(groups)
    ended: list[str] = []
    for worker, move in [*moves, *[(0, "take")] * 100]:
        cell = schedule.next(worker)
        if cell is None:
            schedule.again()
        elif move == "die":
            schedule.back(worker, cell)
        elif move == "busy":
            schedule.later(cell)
        else:
            ended.append(cell.key)
    assert sorted(ended, key=int) == [str(i) for i in range(sum(sizes))]


def test_a_worker_keeps_its_group_then_takes_half_of_the_longest() -> None:
    made = cells(6)
    schedule = Schedule([CellGroup(tuple(made), Resources(), 6.0)])
    first = schedule.next(0)
    assert first is not None
    assert first.key == "k0"
    # five are left to worker 0; worker 1 takes the later two
    assert [c.key for c in iter(lambda: schedule.next(1), None)][:2] == ["k4", "k5"]
