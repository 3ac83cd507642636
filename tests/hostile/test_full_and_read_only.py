"""A results folder that is read-only, and a disk without space: one line, exit code 2, nothing half-written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from spoilt_input import mounted

from interp.cli import main

pytestmark = pytest.mark.slow

RUN = ("run", "ablation", "--preset", "smoke")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A results folder with one finished cell."""
    out = tmp_path / "out"
    assert main([*RUN, "--out", str(out)]) == 0
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def one_line(stderr: str, says: str) -> None:
    assert stderr.startswith("error: results cannot be written to ")
    assert says in stderr
    assert stderr.count("\n") == 1


def test_read_only(finished: Path) -> None:
    before = files(finished)
    mount = f"mount --bind {finished} {finished} && mount -o remount,ro,bind {finished}"
    done = mounted(mount, *RUN, "--seed", "1", "--out", finished)
    assert done.returncode == 2, done
    one_line(done.stderr, "Read-only file system")
    assert files(finished) == before
    # a finished cell is shown all the same
    shown = mounted(mount, *RUN, "--out", finished)
    assert shown.returncode == 0, shown.stderr
    assert "already there" in shown.stdout


def test_no_space_for_the_table(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    out.mkdir()
    mount = f"trap 'cp -a {out} {kept}' EXIT && mount -t tmpfs -o size=12k none {out}"
    done = mounted(mount, *RUN, "--out", out)
    assert done.returncode == 2, done
    one_line(done.stderr, "No space left on device")
    assert list(kept.rglob("*")) == []


def test_no_space_in_the_middle_of_rows(tmp_path: Path) -> None:
    """Rows that fitted are kept; the same command on a larger disk goes on from them."""
    out, kept, whole = (tmp_path / n for n in ("out", "kept", "whole"))
    out.mkdir()
    words = ("run", "path_patching", "--n", "16", "--set", "algorithm=edges", "--threads", "1", "--out")
    mount = f"trap 'cp -a {out} {kept}' EXIT && mount -t tmpfs -o size=16k none {out}"
    done = mounted(mount, *words, out)
    assert done.returncode == 2, done
    one_line(done.stderr, "No space left on device")
    (rows,) = kept.rglob("*.jsonl")
    assert [p for p in kept.rglob("*") if p.is_file()] == [rows]
    held = [line for line in rows.read_text().splitlines() if line.startswith('{"key"')]
    assert len(held) > 5
    assert main([*words, str(kept)]) == 0
    assert main([*words, str(whole)]) == 0
    (a,), (b,) = kept.rglob("table.parquet"), whole.rglob("table.parquet")
    assert a.read_bytes() == b.read_bytes()
    (run,) = kept.rglob("run.json")
    assert sum(part["rows"] for part in json.loads(run.read_text())["parts"]) >= len(held)
    shutil.rmtree(whole)


def test_a_place_where_no_folder_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--out", "/proc/no/such/place"]) == 2
    one_line(capsys.readouterr().err, "No such file or directory")
