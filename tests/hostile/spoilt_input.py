"""What a command is given in the tests here, and what must not change when it refuses it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from interp.cli import main

TOKENS = "clean,corrupt,right,wrong\n" + '"[7, 8, 7, 3]","[7, 9, 7, 3]",8,9\n"[1, 2, 3, 5]","[4, 2, 3, 5]",6,7\n' * 3


@dataclass(frozen=True)
class Told:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


def interp(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Told:
    """The command line, in this process."""
    capsys.readouterr()
    code = main([str(w) for w in words])
    told = capsys.readouterr()
    return Told(code, told.out, told.err)


def refused(told: Told) -> str:
    """One line of bad input; the line."""
    assert told.code == 2, told
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1, told.err
    assert "Traceback" not in told.err
    assert len(told.err) < 2000
    return told.err


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything under a folder: size and time of change, folders too."""
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


def mounted(mount: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line in a mount namespace of its own, after the shell command `mount` there."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("`unshare -m` (a mount namespace of one's own) is not allowed here")
    script = f'{mount} && "$@"'
    command = ["unshare", "-m", "bash", "-c", script, "bash", sys.executable, "-m", "interp", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)
