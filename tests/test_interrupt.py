"""Ctrl-C in the middle of real work: it ends within a second (twice that on a busy machine) and keeps what is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interp.sweep.state import State, read_lines

pytestmark = pytest.mark.slow

PROMISED = 1.0
"""Seconds."""
EDGES = ("--model", "toy-ioi", "--task", "ioi", "--n", "64", "--plain", "--threads", "1", "--set", "algorithm=edges")


def interp(folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "INTERP_RESULTS": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "interp", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
        start_new_session=True,
    )  # fmt: skip


def interrupted(process: subprocess.Popen[str], ready: Callable[[], Any]) -> tuple[str, float]:
    """Ctrl-C once `ready`; what was printed, and how long the end took."""
    end = time.monotonic() + 120
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "it did not get so far"
        time.sleep(0.02)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    return text, time.monotonic() - started


def rows(folder: Path) -> list[dict[str, Any]]:
    """Rows that are streamed so far."""
    return [e for path in folder.glob("*/.partial-*/rows.jsonl") for e in read_lines(path) if "key" in e]


def test_a_run(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    text, took = interrupted(interp(cut, "run", "path_patching", *EDGES), lambda: len(rows(cut)) >= 20)
    kept = rows(cut)
    assert "interrupted; rows computed so far are kept, the same command resumes" in text
    assert "Traceback" not in text
    assert took < 2 * PROMISED
    assert len(kept) >= 20
    again = interp(cut, "run", "path_patching", *EDGES)
    assert again.communicate(timeout=300)[0]
    assert again.returncode == 0
    (run,) = cut.glob("path_patching/*/run.json")
    # what was kept is what the resume did not compute again
    counts = [part["rows"] for part in json.loads(run.read_text())["parts"]]
    assert sum(counts) > len(kept)
    assert not rows(cut)


def test_a_sweep(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    fixed = "{task: ioi, n: 64, plain: true, algorithm: edges}"
    file.write_text(f"cells:\n  - {{experiment: path_patching, set: {fixed}, grid: {{seed: [0, 1, 2]}}}}\n")
    out = tmp_path / "out"
    words = ("sweep", "run", str(file), "--out", str(out), "--workers", "2", "--threads", "1")

    def published() -> list[Path]:
        return list(out.glob("path_patching/*/run.json"))

    # in the middle of a cell, after at least one is done
    process = interp(out, *words)
    text, took = interrupted(process, lambda: published() and 20 <= len(rows(out)) < 150)
    assert process.returncode == 130, text
    assert "the same command resumes" in text
    assert took < 2 * PROMISED
    done, kept = published(), rows(out)
    assert done
    assert len(kept) >= 20
    assert not [p for p in out.glob(".claims/*") if p.is_file()]
    stamps = [p.stat().st_mtime_ns for p in done]
    again = interp(out, *words)
    assert "3 of 3 cells are published" in again.communicate(timeout=300)[0]
    assert [p.stat().st_mtime_ns for p in done] == stamps
    ended = [e for p in State(out, "some").at("events").glob("*.jsonl") for e in read_lines(p) if e["state"] == "done"]
    # none twice; one that was published at the very moment of the signal may not have been noted
    assert len(ended) == len({e["key"] for e in ended}) >= 2
    assert len(published()) == 3
