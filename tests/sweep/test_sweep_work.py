"""What a worker does with one cell, the inline backend, and what is recorded."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from sweep_files import Sweeps

from experiments.faults.probe import PROBE
from interp.cells import EXPERIMENTS, Config, Context, Experiment, Table, run_cell
from interp.registry import UserError
from interp.results.store import partial_path
from interp.sweep.backends.base import Job, worker_threads
from interp.sweep.cellfile import CellLine
from interp.sweep.claims import Claims, Owner
from interp.sweep.plan import Plan
from interp.sweep.run import Options, look_over, run_sweep
from interp.sweep.spec import Resources
from interp.sweep.state import read_lines
from interp.sweep.status import cell_log, sweep_status
from interp.sweep.whole import broken, digests, put_aside
from interp.sweep.work import Work, out_of_memory

INLINE = Options("inline", threads=1)
THREE = "cells: [{experiment: probe, set: {rows: 3}, grid: {seed: [0, 1, 2]}}]"


def work_of(plan: Plan) -> Work:
    plan.state.create()
    owner = Owner.here("run")
    return Work(plan.out, owner, Claims(plan.out, owner), state=plan.state, threads=1)


def line(plan: Plan, index: int = 0, **resources: Any) -> CellLine:
    """As the backends make it, with other resources where they are given."""
    made = Job(plan, [], "run").line(plan.cells[index])
    return made.model_copy(update={"resources": Resources(**resources)}) if resources else made


def test_inline_publishes_what_run_cell_does(sweeps: Sweeps) -> None:
    plan = sweeps.plan(THREE)
    outcome = run_sweep(plan, INLINE)
    assert outcome.complete
    assert (outcome.report.done, outcome.before, outcome.failed) == (3, 0, {})
    for cell in plan.cells:
        single = run_cell(PROBE, PROBE.make_config(cell.config), out=sweeps.folder / "single")
        assert (plan.out / cell.place / "table.parquet").read_bytes() == (single.path / "table.parquet").read_bytes()
    again = run_sweep(plan, INLINE)
    assert (again.report.done, again.before) == (0, 3)
    status = sweep_status(plan.state, plan.file)
    assert (status.done, status.total, status.waiting, status.over, status.changed) == (3, 3, 0, True, False)
    # nothing but the records is left beside the cells
    assert not list(plan.out.glob("probe/.*"))
    assert not [p for p in plan.out.glob(".claims/*") if p.is_file()]


def test_a_cell_in_other_hands_is_busy_and_a_published_one_is_reused(sweeps: Sweeps) -> None:
    plan = sweeps.plan(THREE)
    work = work_of(plan)
    held = Claims(plan.out, Owner.here()).take(plan.cells[0].key)
    assert held is not None
    assert work.cell(line(plan)).state == "busy"
    held.release()
    assert [work.cell(line(plan)).state for _ in range(2)] == ["done", "reused"]


def test_a_failure_is_recorded_with_traceback_and_log_and_forgotten_after_success(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: Config, context: Context) -> Table:
        os.write(1, b"said on standard output\n")
        if (sweeps.folder / "bad").exists():
            raise RuntimeError("the sky fell")
        return PROBE.run(config, context)

    monkeypatch.setitem(EXPERIMENTS._rows, "probe", Experiment("probe", 1, PROBE.config, run))
    plan = sweeps.plan(THREE)
    (sweeps.folder / "bad").touch()
    outcome = run_sweep(plan, INLINE)
    assert set(outcome.failed.values()) == {"RuntimeError: the sky fell"}
    assert not outcome.complete
    status = sweep_status(plan.state, plan.file)
    assert [f.about for f in status.failed] == ["RuntimeError: the sky fell"] * 3
    told = cell_log(plan.state, plan.cells[1].key)
    assert "said on standard output" in told
    assert 'raise RuntimeError("the sky fell")' in told
    (sweeps.folder / "bad").unlink()
    assert run_sweep(plan, INLINE).failed == {}
    assert sweep_status(plan.state, plan.file).failed == []
    assert "the sky fell" not in cell_log(plan.state, plan.cells[1].place)
    assert cell_log(plan.state, str(plan.state.out / plan.cells[1].place)) == cell_log(plan.state, plan.cells[1].place)
    with pytest.raises(UserError, match="unknown cell of sweep some"):
        cell_log(plan.state, "zzz")


def test_a_file_changed_after_planning_is_not_run_under_the_old_name(sweeps: Sweeps) -> None:
    file = sweeps.folder / "pairs.csv"
    file.write_text("one")
    plan = sweeps.plan(f"cells: [{{experiment: probe, set: {{file: {file}}}}}]")
    work = work_of(plan)
    file.write_text("two")
    event = work.cell(line(plan))
    assert event.state == "failed"
    assert "changed since the sweep was planned" in event.error
    assert not plan.done()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_ends_the_run_and_fails_no_cell(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def run(config: Config, context: Context) -> Table:
        if config.seed == 1:  # type: ignore[attr-defined]
            raise OSError(number, os.strerror(number), "somewhere")
        return PROBE.run(config, context)

    monkeypatch.setitem(EXPERIMENTS._rows, "probe", Experiment("probe", 1, PROBE.config, run))
    plan = sweeps.plan(THREE)
    outcome = run_sweep(plan, INLINE)
    assert os.strerror(number) in str(outcome.report.blocked)
    assert (outcome.report.done, outcome.failed) == (1, {})


def test_memory_that_runs_out_halves_the_pack(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    packs: list[int | None] = []

    def run(config: Config, context: Context) -> Table:
        packs.append(context.pack)
        if context.pack is None or context.pack > 5:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return PROBE.run(config, context)

    monkeypatch.setitem(EXPERIMENTS._rows, "probe", Experiment("probe", 1, PROBE.config, run))
    plan = sweeps.plan(THREE)
    work = work_of(plan)
    assert work.cell(line(plan, 0)).state == "done"
    assert packs == [None, 32, 16, 8, 4]
    assert json.loads((plan.out / plan.cells[0].place / "run.json").read_text())["pack"] == 4
    packs.clear()
    assert work.cell(line(plan, 1, pack=12)).state == "done"
    assert packs == [12, 6, 3]
    assert out_of_memory(MemoryError())
    assert not out_of_memory(ValueError("no"))


def test_memory_that_never_suffices_is_a_failure(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: Config, context: Context) -> Table:
        raise MemoryError("always")

    monkeypatch.setitem(EXPERIMENTS._rows, "probe", Experiment("probe", 1, PROBE.config, run))
    plan = sweeps.plan(THREE)
    assert work_of(plan).cell(line(plan, pack=2)).error == "MemoryError: always"


def test_device_dtype_and_device_map_reach_the_model(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    import interp.models.load as load

    asked: list[tuple[str, dict[str, Any]]] = []

    def stop(name: str, **options: Any) -> None:
        asked.append((name, options))
        raise RuntimeError("far enough")

    monkeypatch.setattr(load, "load_model", stop)
    text = "cells: [{experiment: site_audit, set: {model: m}}]\nresources: {dtype: bfloat16, "
    for more in ("device: cpu}", "device: cpu, device_map: auto}"):
        plan = sweeps.plan(text + more)
        assert work_of(plan).cell(line(plan)).error == "RuntimeError: far enough"
    assert asked == [
        ("m", {"device": "cpu", "dtype": "bfloat16"}), ("m", {"dtype": "bfloat16", "device_map": "auto"}),
    ]  # fmt: skip
    assert Resources(gpus=2).where == "cuda"
    assert Resources().where == "cpu"


def test_broken_cells_are_seen_and_put_aside(sweeps: Sweeps) -> None:
    plan = sweeps.plan("cells: [{experiment: probe, grid: {seed: [0, 1, 2, 3, 4]}}]")
    run_sweep(plan, INLINE)
    noted = plan.state.digests()
    paths = [plan.out / c.place for c in plan.cells]
    assert [broken(p, noted[c.key]) for p, c in zip(paths, plan.cells, strict=True)] == [None] * 5
    table = paths[0] / "table.parquet"
    table.write_bytes(table.read_bytes()[:-40])
    assert "cannot be read" in str(broken(paths[0]))
    # readable, but not the one that was published
    (paths[1] / "table.parquet").write_bytes((paths[2] / "table.parquet").read_bytes())
    assert broken(paths[1]) is None
    assert broken(paths[1], noted[plan.cells[1].key]) == "table.parquet is not what was published"
    # another table with a run.json of its own was published later, by another way: it is whole
    run = paths[2] / "run.json"
    run.write_text(run.read_text().replace('"pack": null', '"pack": 1'))
    assert broken(paths[2], noted[plan.cells[2].key]) is None
    run.write_text(run.read_text().replace('"rows": 4', '"rows": 5'))
    assert broken(paths[2]) == "table.parquet has 4 rows, run.json says 5"
    (paths[3] / "run.json").write_text("{")
    assert broken(paths[3]) == "run.json cannot be read"
    assert put_aside(paths[3])
    assert not put_aside(paths[3])
    # a whole one that took its place in between is not lost
    assert not put_aside(paths[4], noted[plan.cells[4].key])
    assert digests(paths[4])["table"] == noted[plan.cells[4].key]["table"]
    outcome = run_sweep(plan, INLINE)
    assert len(outcome.put_aside) == 3
    assert outcome.complete


def test_rows_left_beside_a_published_cell_are_cleared_up(sweeps: Sweeps) -> None:
    """A worker was stopped between publishing a cell and removing the rows it had streamed."""
    plan = sweeps.plan(THREE)
    run_sweep(plan, INLINE)
    whole, open_ = (partial_path(plan.out / c.place) for c in plan.cells[:2])
    for left in (whole, open_):
        left.mkdir()
        (left / "rows.jsonl").write_text("{}\n")
    shutil.rmtree(plan.out / plan.cells[1].place)
    look_over(plan)
    assert not whole.exists()
    # rows of a cell that is not published are what its resume goes on from
    assert (open_ / "rows.jsonl").exists()


def test_a_changed_file_is_told_and_an_unknown_sweep_too(sweeps: Sweeps) -> None:
    plan = sweeps.plan(THREE)
    with pytest.raises(UserError, match="has not been run"):
        sweep_status(plan.state, plan.file)
    run_sweep(plan, INLINE)
    sweeps.write(THREE.replace("[0, 1, 2]", "[0, 1]"))
    assert sweep_status(plan.state, plan.file).changed


def test_events_name_what_each_worker_did(sweeps: Sweeps) -> None:
    plan = sweeps.plan(THREE)
    run_sweep(plan, INLINE)
    (file,) = plan.state.at("events").glob("*.jsonl")
    entries = list(read_lines(file))
    assert [(e["key"], e["state"]) for e in entries] == [(c.key, "done") for c in plan.cells]
    assert entries[0]["table"] == digests(plan.out / plan.cells[0].place)["table"]


def test_threads_are_divided() -> None:
    assert worker_threads(Resources(), None, 2, 8) == 4
    assert worker_threads(Resources(), None, 16, 8) == 1
    assert worker_threads(Resources(cpus=3), None, 2, 8) == 3
    assert worker_threads(Resources(cpus=3), 5, 2, 8) == 5


def test_results_that_cannot_be_written_are_told_before_anything_runs(sweeps: Sweeps, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match="is a file, a folder was expected"):
        sweeps.plan(THREE)


def test_cells_of_one_model_load_it_once(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    import interp.models.load as load

    asked: list[str] = []
    real = load.load_model

    def counted(name: str, **options: Any) -> Any:
        asked.append(name)
        return real(name, **options)

    monkeypatch.setattr(load, "load_model", counted)
    plan = sweeps.plan("cells: [{experiment: ablation, set: {n: 4}, grid: {seed: [0, 1], ablation: [zero, mean]}}]")
    assert run_sweep(plan, INLINE).complete
    assert asked == ["toy-ioi"]
