"""The pool: a GPU and threads for each worker, and workers that never get ready."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from sweep_files import Sweeps

from experiments.faults.scene import Scene, reference
from interp.registry import UserError
from interp.sweep.backends import local
from interp.sweep.backends.base import Job
from interp.sweep.backends.local import run_local
from interp.sweep.run import Options, run_sweep


@pytest.mark.slow
def test_a_gpu_and_threads_for_each_worker(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", cells=2, resources={"gpus": 2, "device": "cpu", "cpus": 1})
    scene.env = {"CUDA_VISIBLE_DEVICES": "0,1,2,5,7"}
    holds = [scene.fault("hold", seed) for seed in (0, 1)]
    process = scene.start()
    seen = set()
    for seed in (0, 1):
        variables = Path(f"/proc/{scene.held(seed)}/environ").read_bytes().decode().split("\0")
        env = dict(v.partition("=")[::2] for v in variables)
        assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "1"
        seen.add(env["CUDA_VISIBLE_DEVICES"])
    for hold in holds:
        hold.unlink()
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert seen == {"0,1", "2,5"}
    assert re.search(r"2 now, [\d.]+ s with 2 worker\(s\), overhead", text)
    assert scene.seen(reference(tmp_path / "undisturbed", 2)).whole


def test_more_gpus_than_there_are(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    plan = sweeps.plan("cells: [{experiment: probe}]\nresources: {gpus: 2}")
    with pytest.raises(UserError, match=r"a worker needs 2 GPU\(s\), this machine shows 1"):
        run_sweep(plan, Options("local"))


def test_workers_that_end_before_they_are_ready(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sweeps.plan("cells: [{experiment: probe}]")
    plan.state.create()
    command = [sys.executable, "-c", "raise SystemExit('no such library')"]
    monkeypatch.setattr(local, "worker_command", lambda cells: command)
    with pytest.raises(UserError, match=r"end before they are ready \(exit code 1\): no such library"):
        run_local(Job(plan, [plan.cells[0].key], "run"))
