"""`collect`, `report`, `plan` and `status`: what they say, and how fast."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sweep_files import Sweeps

from interp.cli import main
from interp.registry import UserError
from interp.results.frames import Table, typed
from interp.results.schemas import CURVE, EFFECT
from interp.results.store import publish
from interp.sweep.collect import collect, write_table
from interp.sweep.outlook import outlook
from interp.sweep.plan import Plan
from interp.sweep.run import Options, run_sweep
from interp.sweep.status import sweep_status
from interp.sweep.summary import report_text

INLINE = Options("inline", threads=1)


def kept(plan: Plan) -> Plan:
    plan.state.create()
    plan.save()
    return plan


def test_one_table_over_cells_of_several_kinds(sweeps: Sweeps) -> None:
    plan = kept(sweeps.plan("cells: [{experiment: probe, grid: {rows: [1, 2], label: [a]}, set: {seed: 3}}]"))
    first, second = (plan.out / c.place for c in plan.cells)
    effects = [{"site": "z", "layer": i, "effect": i / 2, "seed": 3} for i in range(3)]
    publish(first, Table(typed(effects, EFFECT)), {"experiment": "probe"})
    with pytest.raises(UserError, match="has not been run"):
        collect(type(plan.state)(plan.out, "other"))
    curve = [{"series": "s", "x": 1.0, "value": 0.5, "model": "m"}]
    publish(second, Table(typed(curve, CURVE), CURVE), {"experiment": "probe"})
    table = collect(plan.state)
    # all columns of both schemas, the varying setting (seed and label do not vary), and the cell
    assert table.column_names[:2] == ["cell", "set.rows"]
    assert set(table.column_names[2:]) == {*EFFECT.names, *CURVE.names}
    frame = table.to_pandas()
    assert frame["cell"].tolist() == [plan.cells[0].place] * 3 + [plan.cells[1].place]
    assert frame["set.rows"].tolist() == ["1", "1", "1", "2"]
    assert frame["layer"].tolist()[:3] == [0, 1, 2]
    assert frame["effect"].tolist()[:3] == [0, 0.5, 1]
    assert frame["value"].iloc[3] == 0.5
    assert frame["layer"].isna().iloc[3]
    assert frame["head"].isna().all()
    for ending in ("parquet", "csv"):
        path = sweeps.folder / f"deep/table.{ending}"
        write_table(table, path)
        assert [p.name for p in path.parent.iterdir() if p.suffix == f".{ending}"] == [path.name]
    assert pq.read_table(sweeps.folder / "deep/table.parquet").equals(table)


def test_collect_without_a_finished_cell_or_with_a_broken_one(sweeps: Sweeps) -> None:
    plan = kept(sweeps.plan("cells: [{experiment: probe}]"))
    with pytest.raises(UserError, match="no cell is finished"):
        collect(plan.state)
    run_sweep(plan, INLINE)
    path = plan.out / plan.cells[0].place / "table.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"table.parquet cannot be read.*computes it again"):
        collect(plan.state)


def test_a_thousand_tables_of_a_thousand_rows(sweeps: Sweeps) -> None:
    """In processor seconds; the promise is 5 s for 1,000 cells. Here 250 of them, in a quarter of it."""
    plan = kept(sweeps.plan(f"cells: [{{experiment: probe, grid: {{seed: {list(range(250))}}}}}]"))
    rows = [
        {"experiment": "probe", "site": "z", "layer": i // 100, "head": i % 100, "value": i / 7, "effect": i / 3,
         "stderr": i / 9, "ci_low": i / 11, "ci_high": i / 13, "normalized": i / 17, "n": 64, "unit": "logits"}
        for i in range(1000)
    ]  # fmt: skip
    first = publish(plan.out / plan.cells[0].place, Table(typed(rows, EFFECT)), {"experiment": "probe"})
    for cell in plan.cells[1:]:
        shutil.copytree(first.path, plan.out / cell.place)
    started = time.process_time()
    table = collect(plan.state)
    write_table(table, sweeps.folder / "all.parquet")
    assert time.process_time() - started < 5 / 4
    assert table.num_rows == 250_000
    assert table.column("effect").to_pylist()[-1] == 999 / 3


def test_status_over_ten_thousand_cells(sweeps: Sweeps) -> None:
    plan = sweeps.plan("cells: [{experiment: probe}]")
    plan.state.create()
    head = {"sweep": "some", "sha256": ""}
    lines = [head] + [
        {"key": f"{i:016x}", "experiment": "probe", "config": {"seed": i}, "place": f"probe/-.--{i:010x}",
         "digest": f"{i:064x}", "resources": 0}
        for i in range(10_000)
    ]  # fmt: skip
    plan.state.plan_file.write_text("".join(json.dumps(ln) + "\n" for ln in lines))
    for i in range(0, 10_000, 4):
        cell = plan.out / f"probe/-.--{i:010x}"
        cell.mkdir(parents=True)
        (cell / "run.json").write_text("{}")
    plan.state.fail(f"{1:016x}", {"error": "RuntimeError: no"})
    started = time.process_time()
    status = sweep_status(plan.state, plan.file)
    assert time.process_time() - started < 2
    assert (status.total, status.done, len(status.failed), status.waiting) == (10_000, 2500, 1, 7499)


def test_outlook_estimates_from_finished_cells(sweeps: Sweeps) -> None:
    text = "cells: [{experiment: probe, grid: {seed: [0, 1, 2, 3, 4]}}]\nresources: {cpus: 1, cpu_hour: 36}\n"
    plan = sweeps.plan(text)
    assert any("nothing is known" in line for line in outlook(plan))
    for seconds, cell in zip((10, 30, 20), plan.cells, strict=False):
        folder = plan.out / cell.place
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"wall_seconds": seconds}))
    lines = outlook(plan, "local", 2)
    assert lines[0] == f"some: 5 cells, 3 done, 2 to do, under {plan.out}"
    # the median is 20 s; two cells are left
    assert "  time: 40 s of computing, about 20 s with 2 at once" in lines
    assert "  cost: 0.40 at the prices of the file" in lines


def test_report_means_over_seeds_by_hand(sweeps: Sweeps) -> None:
    plan = kept(sweeps.plan("cells: [{experiment: probe, grid: {seed: [0, 1]}}]"))
    for seed, cell in enumerate(plan.cells):
        rows = [{"experiment": "probe", "model": "m", "task": "t", "site": "z", "layer": i, "seed": seed,
                 "effect": (i + 1.0) * (1 + seed)} for i in range(2)]  # fmt: skip
        publish(plan.out / cell.place, Table(typed(rows, EFFECT)), {"experiment": "probe", "wall_seconds": 2.0})
    page = report_text(plan.state, plan.file, collect(plan.state).to_pandas())
    assert "2 of 2 cells are done, 0 failed, 0 are not. They took 4 s" in page
    # layer 1: 2 and 4, mean 3, standard deviation 1.41
    assert "| z | 1 | 3 ± 1.4 | 2 |" in page
    assert page.index("| z | 1 |") < page.index("| z | 0 |")


def test_the_command_line(sweeps: Sweeps, capfd: pytest.CaptureFixture[str]) -> None:
    out = str(sweeps.folder / "out")
    file = str(sweeps.write("cells: [{experiment: probe, grid: {seed: [0, 1]}}]"))

    def sweep(*words: str, code: int = 0) -> str:
        assert main(["sweep", *words, "--out", out]) == code
        return capfd.readouterr().out

    assert "2 cells, 0 done, 2 to do" in sweep("plan", file)
    assert not Path(out).exists()
    assert "2 of 2 cells are published" in sweep("run", file, "--backend", "inline", "--threads", "1")
    assert "2 of 2 cells are published" in sweep("resume", file, "--backend", "inline")
    assert "some: 2 of 2 done, 0 running, 0 queued, 0 waiting, 0 failed" in sweep("status", file)
    assert "8 rows" in sweep("collect", file)
    assert Path(sweep("report", file).strip()).read_text().startswith("# Sweep some")
    assert "nothing is running" in sweep("cancel", file)
    key = json.loads((Path(out) / ".sweep/some/plan.jsonl").read_text().splitlines()[1])["key"]
    assert "nothing was printed" in sweep("logs", file, key)
    sweep("run", file, "--backend", "cloud", code=2)
    sweep("run", file, "--workers", "0", code=2)
