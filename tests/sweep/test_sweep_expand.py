"""Cells of a sweep: which there are, in which order, and that they are the cells `interp run` would make."""

from __future__ import annotations

import pytest
from sweep_files import Sweeps

from experiments.faults.probe import PROBE
from interp.cells import cell_hash, run_cell
from interp.registry import UserError
from interp.sweep.expand import expand
from interp.sweep.plan import Plan
from interp.sweep.spec import Resources, chosen_preset, read_file


def configs(plan: Plan) -> list[dict[str, object]]:
    return [dict(c.config) for c in plan.cells]


def test_grid_zip_and_list_by_hand(sweeps: Sweeps) -> None:
    plan = sweeps.plan(
        """
        defaults: {rows: 2, label: d}
        cells:
          - experiment: probe
            set: {label: s}
            grid: {seed: [1, 2]}
            zip: {rows: [3, 4], step: [0.1, 0.2]}
          - experiment: probe
            preset: smoke
            list: [{seed: 7}, {seed: 8, label: l}]
        """
    )
    assert configs(plan) == [
        {"seed": 1, "rows": 3, "step": 0.1, "label": "s"}, {"seed": 1, "rows": 4, "step": 0.2, "label": "s"},
        {"seed": 2, "rows": 3, "step": 0.1, "label": "s"}, {"seed": 2, "rows": 4, "step": 0.2, "label": "s"},
        {"seed": 7, "rows": 2, "label": "d"}, {"seed": 8, "rows": 2, "label": "l"},
    ]  # fmt: skip


def test_exclusions_are_counted_and_match_values_defaults_and_lists(sweeps: Sweeps) -> None:
    file = sweeps.write(
        """
        cells:
          - experiment: probe
            grid: {seed: [0, 1, 2, 3], rows: [1, 2]}
            exclude: [{when: {seed: 0, rows: 1}}]
          - experiment: probe
            set: {label: x}
            grid: {seed: [0, 1]}
        exclude:
          - {when: {seed: [2, 3]}, reason: too many}
          - {when: {rows: 4, seed: 1}, reason: four rows are the default}
          - {when: {experiment: other}}
        """
    )
    sweep, found = read_file(file)
    made = expand(sweep, found, chosen_preset(sweep, None))
    assert [(c.config["seed"], c.config.get("rows")) for c in made.cells] == [(0, 2), (1, 1), (1, 2), (0, None)]
    assert [(rule.when, count) for rule, count in made.excluded] == [
        ({"seed": [2, 3]}, 4), ({"rows": 4, "seed": 1}, 1), ({"experiment": "other"}, 0), ({"seed": 0, "rows": 1}, 1),
    ]  # fmt: skip


def test_the_same_cell_twice_is_run_once(sweeps: Sweeps) -> None:
    plan = sweeps.plan("cells: [{experiment: probe, grid: {rows: [4, 5]}}, {experiment: probe}]")
    # four rows are the default: the third cell is the first one
    assert len(plan.cells) == 2
    assert plan.repeated == 1


def test_a_preset_keeps_and_overrides(sweeps: Sweeps) -> None:
    text = """
        cells: [{experiment: probe, grid: {seed: [0, 1, 2]}, set: {rows: 9}, resources: {minutes: 5}}]
        presets: {quick: {only: {seed: [0, 2]}, override: {rows: 1}, resources: {cpus: 3}}}
        resources: {minutes: 99, cpus: 1, pack: 8}
        """
    plan = sweeps.plan(text, "quick")
    assert configs(plan) == [{"seed": 0, "rows": 1}, {"seed": 2, "rows": 1}]
    assert plan.resources == [Resources(minutes=5, cpus=3, pack=8)]
    assert len(sweeps.plan(text).cells) == 3


def test_places_and_hashes_are_those_of_a_single_run(sweeps: Sweeps) -> None:
    file = sweeps.folder / "pairs.csv"
    file.write_text("one")
    plan = sweeps.plan(f"cells: [{{experiment: probe, set: {{file: {file}, rows: 1}}}}]")
    (cell,) = plan.cells
    made = run_cell(PROBE, {"file": str(file), "rows": 1}, out=plan.out)
    assert plan.out / cell.place == made.path
    assert cell.digest == made.run()["hash"] == cell_hash(PROBE, PROBE.make_config(cell.config))
    assert plan.done() == {cell.key}
    file.write_text("two")
    again = sweeps.plan(f"cells: [{{experiment: probe, set: {{file: {file}, rows: 1}}}}]")
    assert again.cells[0].digest != cell.digest
    assert not again.done()


def test_a_file_is_read_once_however_many_cells_name_it(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    import interp.sweep.expand as room

    reads = []
    whole = room.named_files
    monkeypatch.setattr(room, "named_files", lambda config: reads.append(1) or whole(config))
    file = sweeps.folder / "pairs.csv"
    file.write_text("one")
    plan = sweeps.plan(f"cells: [{{experiment: probe, set: {{file: {file}}}, grid: {{seed: [0, 1, 2, 3]}}}}]")
    assert len({c.digest for c in plan.cells}) == 4
    assert len(reads) == 1


def test_dtype_of_resources_is_part_of_the_cell(sweeps: Sweeps) -> None:
    text = "cells: [{experiment: site_audit}]\nresources: {dtype: bfloat16}\n"
    assert configs(sweeps.plan(text)) == [{"dtype": "bfloat16"}]
    assert configs(sweeps.plan("cells: [{experiment: probe}]\nresources: {dtype: bfloat16}\n")) == [{}]


def test_a_sweep_without_cells_says_so(sweeps: Sweeps) -> None:
    with pytest.raises(UserError, match="has no cells"):
        sweeps.plan("cells: [{experiment: probe}]\nexclude: [{when: {seed: 0}}]")


def test_ten_thousand_cells(sweeps: Sweeps) -> None:
    """In processor seconds, since the machine that tests may be busy; the promise is 5 s and 200 MB."""
    import subprocess
    import sys

    sweeps.write(
        f"""
        cells:
          - experiment: [activation_patching, ablation]
            grid: {{task: [ioi, induction], seed: {list(range(500))}, n: [8, 16, 24, 32, 40]}}
        """
    )
    code = (
        "import time; from interp.sweep.plan import make_plan\n"
        f"plan = make_plan({str(sweeps.file)!r}, out={str(sweeps.folder / 'out')!r})\n"
        "groups = plan.groups([c.key for c in plan.cells], lambda r: 2)\n"
        "most = next(ln for ln in open('/proc/self/status') if ln.startswith('VmHWM')).split()[1]\n"
        "print(len(plan.cells), sum(len(g.cells) for g in groups), time.process_time(), int(most) / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cells, grouped, seconds, megabytes = (float(x) for x in done.stdout.split())
    assert cells == grouped == 10_000
    assert seconds < 5
    assert megabytes < 200
