"""Trackers: off by default; told of finished cells only; what goes wrong in one costs no cell."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sweep_files import Sweeps

from experiments.faults.scene import Scene
from interp.registry import UserError
from interp.sweep.run import Options, run_sweep
from interp.sweep.spec import read_file
from interp.sweep.track import tracker

INLINE = Options("inline", threads=1)
TWO = "cells: [{experiment: probe, set: {rows: 3}, grid: {seed: [0, 1]}}]\n"


class Calls(list[tuple[str, Any]]):
    """What a tracker was told, in order."""

    def wandb(self) -> ModuleType:
        outer = self

        class Run:
            def log(self, values: dict[str, float]) -> None:
                outer.append(("numbers", values))

            def finish(self) -> None:
                outer.append(("end", None))

        def init(**words: Any) -> Run:
            self.append(("run", words))
            return Run()

        return _module("wandb", init=init)

    def mlflow(self) -> ModuleType:
        @contextmanager
        def start_run(run_name: str) -> Any:
            self.append(("run", run_name))
            yield
            self.append(("end", None))

        return _module(
            "mlflow", start_run=start_run, set_experiment=lambda name: self.append(("sweep", name)),
            log_params=lambda values: self.append(("settings", values)),
            log_metrics=lambda values: self.append(("numbers", values)),
        )  # fmt: skip


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


def test_off_by_default(sweeps: Sweeps) -> None:
    assert read_file(sweeps.write(TWO))[0].track is None
    assert tracker(None, "some") is None
    with pytest.raises(UserError, match=r"line 2: track: .*'wandb' or 'mlflow'"):
        sweeps.plan(TWO + "track: tensorboard\n")


def test_one_that_is_not_installed(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"mlflow is not installed; pip install 'interp\[track\]'"):
        run_sweep(sweeps.plan(TWO + "track: mlflow\n"), INLINE)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_each_new_cell_is_told_once(name: str, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setitem(sys.modules, name, getattr(calls, name)())
    plan = sweeps.plan(f"{TWO}track: {name}\n")
    for _ in range(2):
        assert run_sweep(plan, INLINE).complete
    numbers = [value for kind, value in calls if kind == "numbers"]
    assert [kind for kind, _ in calls].count("end") == len(numbers) == 2
    # three rows, the wall time and the number of rows
    assert [len(n) for n in numbers] == [5, 5]
    assert all(n["rows"] == 3 and "effect/z.0.2" in n for n in numbers)
    folders = [Path(c.place).name for c in plan.cells]
    if name == "wandb":
        runs = [value for kind, value in calls if kind == "run"]
        assert [(r["project"], r["name"]) for r in runs] == [("some", f) for f in folders]
        assert runs[1]["config"] == {"experiment": "probe", "rows": 3, "seed": 1}
    else:
        assert [value for kind, value in calls if kind == "run"] == folders
        assert ("settings", {"experiment": "probe", "rows": 3, "seed": 1}) in calls


def test_a_tracker_that_fails_costs_no_cell(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def init(**words: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "wandb", _module("wandb", init=init))
    outcome = run_sweep(sweeps.plan(TWO + "track: wandb\n"), INLINE)
    assert outcome.complete
    assert outcome.failed == {}
    assert caplog.text.count("the tracker did not take cell") == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_tracker_itself_takes_a_cell(name: str, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, into a folder; in a process of its own, as trackers leave threads and handlers behind."""
    pytest.importorskip(name)
    monkeypatch.chdir(sweeps.folder)
    for key, value in {
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": f"file:{sweeps.folder}/mlruns",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    scene = Scene(sweeps.folder / "scene", cells=1)
    scene.yaml.write_text(scene.yaml.read_text() + f"track: {name}\n")
    done = scene.run()
    assert done.returncode == 0, done.stderr
    log = scene.state.log(scene.key(0))
    assert not log.exists() or "the tracker did not take" not in log.read_text()
    if name == "mlflow":
        (wall,) = sweeps.folder.glob("mlruns/*/*/metrics/rows")
        assert float(wall.read_text().split()[1]) == 4
        assert len(list(sweeps.folder.glob("mlruns/*/*/metrics/effect/z.0.*"))) == 4
    else:
        assert len(list(scene.folder.glob("wandb/offline-run-*/*.wandb"))) == 1
