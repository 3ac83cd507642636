"""Claims: who has a cell, when a claim is void, and that no clock is asked."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from interp.sweep import claims as room
from interp.sweep.claims import Claim, Claims, Heart, Owner, alive_here, started_at
from interp.sweep.state import write_json


def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_claim_is_had_by_one_and_given_back(tmp_path: Path) -> None:
    mine, other = Claims(tmp_path, Owner.here()), Claims(tmp_path, Owner.here())
    held = mine.take("cell")
    assert held is not None
    assert other.take("cell") is None
    assert [(k, c.owner) for k, c in other.all()] == [("cell", mine.owner)]
    held.release()
    assert list(other.all()) == []
    assert other.take("cell") is not None


def test_of_many_that_ask_at_once_one_gets_it(tmp_path: Path) -> None:
    start, got = threading.Barrier(8), []

    def ask() -> None:
        own = Claims(tmp_path, Owner.here())
        start.wait()
        got.append(own.take("cell"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(g is not None for g in got) == 1


@pytest.mark.parametrize("change", ["gone", "number used again", "zombie"])
def test_a_claim_of_a_dead_process_is_void_and_counted(tmp_path: Path, change: str) -> None:
    me = Owner.here("run")
    process = None
    if change == "zombie":
        process = subprocess.Popen(["true"])
        while started_at(process.pid):
            time.sleep(0.01)
        dead = replace(me, pid=process.pid)
    else:
        dead = replace(me, pid=gone()) if change == "gone" else replace(me, started="1")
    assert alive_here(me)
    assert not alive_here(dead)
    write_json(tmp_path / ".claims" / "cell", {**asdict(dead), "crashes": 1})
    held = Claims(tmp_path, me).take("cell")
    assert held is not None
    # it died twice in this run; owners of other runs do not count
    assert held.claim.crashes == 2
    write_json(tmp_path / ".claims" / "cell", {**asdict(replace(dead, run="before")), "crashes": 1})
    other = Claims(tmp_path, me).take("cell")
    assert other is not None
    assert other.claim.crashes == 0
    if process is not None:
        process.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "x"}'])
def test_a_claim_that_says_nothing_is_void(tmp_path: Path, content: str) -> None:
    (tmp_path / ".claims").mkdir()
    (tmp_path / ".claims" / "cell").write_text(content)
    assert Claims(tmp_path, Owner.here()).take("cell") is not None


def test_release_leaves_a_claim_that_another_took_over(tmp_path: Path) -> None:
    held = Claims(tmp_path, Owner.here()).take("cell")
    assert held is not None
    write_json(tmp_path / ".claims" / "cell", {**asdict(Owner.here()), "crashes": 0})
    held.release()
    assert (tmp_path / ".claims" / "cell").exists()


def test_a_slurm_job_elsewhere(tmp_path: Path) -> None:
    asked = []

    def runs(job: str, restarts: int) -> bool | None:
        asked.append((job, restarts))
        return {"1_0": True, "1_1": False}.get(job)

    there = replace(Owner.here(), boot="another machine", job="1_0", restarts=2)
    claims = Claims(tmp_path, Owner.here(), runs)
    assert claims.alive(Claim(there))
    assert not claims.alive(Claim(replace(there, job="1_1")))
    assert asked == [("1_0", 2), ("1_1", 2)]
    # a job knows of itself: what it had before it was requeued is void
    inside = Claims(tmp_path, replace(Owner.here(), job="1_0", restarts=3), runs)
    assert not inside.alive(Claim(there))
    # no answer from the queue, no beat either: alive until patience ends
    assert claims.alive(Claim(replace(there, job="9")))


def test_elsewhere_without_a_job_the_beat_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "BEAT", 0.05)
    monkeypatch.setattr(room, "PATIENCE", 0.4)
    # neither side's time of day matters
    monkeypatch.setattr(time, "time", lambda: 0.0)
    there = replace(Owner.here(), boot="another machine")
    claims = Claims(tmp_path, Owner.here())
    with Heart(tmp_path, there):
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert claims.alive(Claim(there))
            time.sleep(0.05)
    assert claims.alive(Claim(there))
    time.sleep(0.5)
    assert not claims.alive(Claim(there))


def test_slurm_names_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"JOB_ID": "7", "ARRAY_JOB_ID": "5", "ARRAY_TASK_ID": "2", "RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    owner = Owner.here()
    assert (owner.job, owner.restarts, owner.host, owner.pid) == ("5_2", 1, "n2", os.getpid())
    assert owner.told() == f"job 5_2 on n2, process {os.getpid()}"
