"""`interp run --cells FILE`: what a sweep's workers are, the same when it is typed by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sweep_files import Sweeps

from experiments.faults.scene import Scene, reference, wait_for
from interp.registry import UserError
from interp.sweep.backends.base import Job, worker_command
from interp.sweep.cellfile import CellLine, Head, head_text, keys_of, read_cells, stream_cells
from interp.sweep.plan import make_plan

PROBE = {"experiment": "probe", "config": {"seed": 1}}


def test_what_a_sweep_writes_is_what_is_read(sweeps: Sweeps) -> None:
    plan = sweeps.plan("cells: [{experiment: probe, grid: {seed: [0, 1]}, resources: {pack: 3}}]\nretries: 1")
    job = Job(plan, [], "run")
    file = sweeps.folder / "group.jsonl"
    lines = [job.line(cell) for cell in plan.cells]
    file.write_text(head_text(job.head(2)) + "".join(line.text() for line in lines))
    head, cells = read_cells(file)
    assert head == Head(sweep="some", out=str(sweeps.folder / "out"), run="run", threads=2, retries=1)
    assert cells == lines
    assert keys_of(file) == {c.key for c in plan.cells}
    with file.open() as stream:
        head, again = stream_cells(stream)
        assert (head, list(again)) == (job.head(2), lines)


def test_a_person_s_file_names_the_same_cells(sweeps: Sweeps) -> None:
    (planned,) = sweeps.plan("cells: [{experiment: probe, set: {seed: 1}}]").cells
    file = sweeps.folder / "cells.jsonl"
    file.write_text(json.dumps(PROBE) + "\n\n" + json.dumps({"experiment": "probe", "preset": "smoke"}))
    head, (one, smoke) = read_cells(file)
    assert head is None
    assert (one.key, one.place, one.digest, one.config) == (planned.key, planned.place, planned.digest, {"seed": 1})
    assert smoke.config == {"rows": 2}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([{"experiment": "probe", "resources": {"gpu": 1}}], "line 1: resources.gpu: Extra inputs"),
        ([{"sweep": "a", "out": "b", "threads": 0}], "line 1: threads: Input should be greater"),
        ([{"sweep": "a", "out": "b"}], "no cells in it"),
        ([PROBE, {"sweep": "a", "out": "b"}], "must be the first one"),
        ([{"experiment": "prob"}, {"experiment": "probe", "config": {"sed": 1}}], "did you mean"),
    ],
)
def test_what_is_wrong_is_told_by_line(sweeps: Sweeps, lines: list[dict[str, Any]], says: str) -> None:
    file = sweeps.folder / "cells.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=says):
        read_cells(file)


def test_the_command_is_the_one_of_the_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "interp"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    words = ["run", "--cells", "file"]
    assert worker_command("file") == [sys.executable, "-P", "-m", "interp", *words]
    script.touch(0o755)
    assert worker_command("file") == [str(script), *words]
    # experiments of the working directory are found by the workers where they are by the submitter
    monkeypatch.setattr(sys, "path", [os.getcwd()])
    assert worker_command("file") == [sys.executable, "-m", "interp", *words]


@pytest.mark.slow
def test_a_sweep_s_file_typed_by_hand(tmp_path: Path) -> None:
    """Stopped in the middle, typed again; then once more beside another that has a cell in hand."""
    scene = Scene(tmp_path / "scene", cells=3)
    file = _group_file(scene)
    words = [sys.executable, "-m", "interp", "run", "--cells", str(file)]
    hold = scene.fault("hold", 1)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=scene.environment(), cwd=tmp_path) as process:
        scene.held(1)
        process.send_signal(signal.SIGTERM)
        told = _told(process)
    assert process.returncode == 130
    assert [t["state"] for t in told] == ["ready", "done"]
    (scene.faults / "held-1").unlink()
    both = [
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=scene.environment(), cwd=tmp_path)
        for _ in range(2)
    ]
    scene.held(1)
    wait_for(lambda: scene.done() == 2, "the cell after the one that is held")
    hold.unlink()
    told = [t for process in both for t in _told(process)]
    assert [p.wait() for p in both] == [0, 0]
    assert sorted(t["cell"] for t in told if t["state"] == "done") == sorted(str(scene.path(s)) for s in (1, 2))
    assert scene.seen(reference(tmp_path / "undisturbed", 3)).whole


def _group_file(scene: Scene) -> Path:
    """As a cluster's job is given it."""
    from experiments.faults.probe import PROBE
    from interp.cells import EXPERIMENTS

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(EXPERIMENTS._rows, "probe", PROBE)
        plan = make_plan(scene.yaml)
        plan.state.create()
        plan.save()
        job = Job(plan, [], "run")
        file = scene.folder / "group.jsonl"
        file.write_text(head_text(job.head(1)) + "".join(job.line(cell).text() for cell in plan.cells))
    return file


def _told(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(line) for line in process.stdout]


def test_cells_on_standard_input(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene")
    lines = [PROBE, {"experiment": "probe", "config": {"seed": 2, "rows": 3}}, PROBE]
    done = subprocess.run(
        [sys.executable, "-m", "interp", "run", "--cells", "-", "--threads", "1", "--out", "out"],
        input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True,
        env=scene.environment(), cwd=tmp_path, check=False,
    )  # fmt: skip
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [t["state"] for t in told] == ["done", "done", "reused"], done.stderr
    assert json.loads((tmp_path / told[0]["cell"] / "run.json").read_text())["command"] == "interp run --cells -"
    assert CellLine.model_validate(PROBE).resources.where == "cpu"
