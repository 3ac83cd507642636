"""What is handed to submitit, and what is read of its jobs, without a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from interp.sweep.backends import job as room
from interp.sweep.backends.job import DEATHS, ShellJob
from interp.sweep.backends.local import gpus
from interp.sweep.backends.queue import JobRecord, cancel_jobs, job_records, job_runs, job_states, live
from interp.sweep.backends.slurm import _parameters
from interp.sweep.claims import started_at
from interp.sweep.spec import Resources
from interp.sweep.state import State, write_json

pytest.importorskip("submitit")


def test_a_job_is_a_command_line(tmp_path: Path) -> None:
    assert ShellJob(["true"])() == 0
    with pytest.raises(RuntimeError, match="ended with code 3"):
        ShellJob(["sh", "-c", "exit 3"])()


def test_a_worker_that_is_killed_is_started_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    with pytest.raises(RuntimeError, match="code -9"):
        ShellJob(["sh", "-c", f"echo x >> {count}; kill -9 $$"])()
    assert count.read_text().count("x") == DEATHS + 1
    once = f"echo x >> {count}.2; [ $(wc -l < {count}.2) -gt 1 ] || kill -9 $$"
    assert ShellJob(["sh", "-c", once])() == 0


def test_checkpoint_stops_the_worker_and_asks_for_the_same_command(tmp_path: Path) -> None:
    """As submitit does it: in a signal handler, in the thread that waits for the worker."""
    job = ShellJob(["sh", "-c", f"trap 'touch {tmp_path}/told; exit 130' TERM; touch {tmp_path}/up; sleep 60 & wait"])
    again: list[Any] = []
    took: list[float] = []

    def announced(number: int, frame: object) -> None:
        started = time.monotonic()
        again.append(job.checkpoint())
        took.append(time.monotonic() - started)

    def announce() -> None:
        while not (tmp_path / "up").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, announced)
    thread = threading.Thread(target=announce)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="the worker ended with code 130"):
            job()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR2, before)
    assert (tmp_path / "told").exists()
    assert again[0].function.command == job.command
    # the worker's end is seen, not the end of its time of grace
    assert took[0] < room.GRACE / 2


def test_a_worker_that_the_cluster_stops_awaits_the_job_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(room.time, "sleep", slept.append)
    with pytest.raises(RuntimeError, match="code 130"):
        ShellJob(["sh", "-c", "exit 130"])()
    assert [s for s in slept if s != room.LOOK] == [room.END]


def test_resources_in_submitit_s_words() -> None:
    asked = Resources(
        gpus=2, cpus=4, memory_gb=8, minutes=1, partition="p", qos="q", array_parallelism=3, setup=["module load x"],
        slurm={"gres": "gpu:a100:1"},
    )  # fmt: skip
    assert _parameters(asked, "some", "slurm", ["interp", "run", "--cells", "a b"]) == {
        "timeout_min": 1, "name": "some", "gpus_per_node": 2, "cpus_per_task": 4, "nodes": 1, "tasks_per_node": 1,
        "mem_gb": 8, "slurm_partition": "p", "slurm_qos": "q", "slurm_array_parallelism": 3,
        "slurm_signal_delay_s": 20,
        "slurm_setup": [
            f"# task 0 runs the following (task N: the file that ends in -N.jsonl), in {Path.cwd()}:",
            "# interp run --cells 'a b'", "module load x",
        ],
        "slurm_additional_parameters": {"gres": "gpu:a100:1"},
    }  # fmt: skip
    assert _parameters(Resources(), "some", "local") == {"timeout_min": 60, "name": "some"}
    assert _parameters(Resources(minutes=600), "some", "slurm")["slurm_signal_delay_s"] == 90


def test_jobs_that_are_processes_of_this_machine(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    state = State(tmp_path, "some")
    started = started_at(process.pid)
    for name, start in (("1", started), ("2", "12345")):
        write_json(
            state.at("jobs", f"{name}.json"),
            {"id": str(process.pid), "cluster": "local", "run": "r", "group": "g", "folder": "f", "started": start},
        )
    first, second = job_records(state)
    assert job_states([first]) == {str(process.pid): "RUNNING"}
    assert job_states([second]) == {str(process.pid): "GONE"}
    assert not live("GONE")
    assert live("PENDING")
    assert cancel_jobs(State(tmp_path, "other")) == []
    process.kill()
    process.wait()
    assert job_states([first]) == {str(process.pid): "GONE"}


def test_a_queue_that_cannot_be_asked_says_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    states = job_states([JobRecord("1_0", "slurm", "", "", "")])
    assert states == {"1_0": "UNKNOWN"}
    # no answer is no proof that a job is gone
    assert live("UNKNOWN")
    assert job_runs("1_0", 0) is None


def test_gpus_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, seen in (("0,3", ["0", "3"]), ("", []), ("-1", []), ("GPU-ab", ["GPU-ab"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert gpus() == seen
