"""Cells on disk: whole or not there, once, the same bytes for the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from interp.registry import UserError
from interp.results import store
from interp.results.frames import Table, example_rows, typed
from interp.results.schemas import AUDIT, EFFECT, Column
from interp.results.store import cell_path, find_cell, list_cells, partial_path, publish, read_cell, save, slug


def table(shift: float = 0.0, rows: int = 3) -> Table:
    keys = [{"layer": i, "site": "z"} for i in range(rows)]
    frame = typed([{**k, "effect": k["layer"] + shift + 1 / 3, "n": 8, "reason": "a|b" if k["layer"] else None}
                   for k in keys], EFFECT)  # fmt: skip
    examples = example_rows(keys, np.arange(rows * 2.0).reshape(rows, 2) + shift)
    artifacts = {"pattern.safetensors": {"L0": np.eye(3)}, "circuit.json": {"b": 1, "a": [np.int64(2)]}, "x/y.txt": "é"}
    return Table(frame, examples=examples, artifacts=artifacts, notes={"drawn": "prompts"})


def place(out: Path, digest: str = "0123456789abcdef") -> Path:
    return cell_path(out, "ablation", "org/gpt2", "data/pairs.csv", digest)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_layout_and_reading(tmp_path: Path) -> None:
    cell = publish(place(tmp_path), table(), {"experiment": "ablation", "config": {"n": 8}})
    assert cell.path == tmp_path / "ablation" / "gpt2.pairs.csv-0123456789"
    assert [*everything(cell.path)] == [
        "artifacts/circuit.json", "artifacts/pattern.safetensors", "artifacts/x/y.txt", "examples.parquet",
        "run.json", "table.csv", "table.parquet",
    ]  # fmt: skip
    assert os.listdir(cell.path.parent) == [cell.path.name]
    pd.testing.assert_frame_equal(cell.table(), table().frame)
    pd.testing.assert_frame_equal(cell.examples(), table().examples)  # type: ignore[arg-type]
    run = cell.run()
    assert (run["schema"], run["schema_version"], run["rows"], run["notes"]) == ("effect", 1, 3, {"drawn": "prompts"})
    assert run["config"] == {"n": 8}
    assert np.array_equal(load_file(cell.artifacts()["pattern.safetensors"])["L0"], np.eye(3))
    assert json.loads(cell.artifacts()["circuit.json"].read_text()) == {"a": [2], "b": 1}
    csv = (cell.path / "table.csv").read_text()
    assert csv == "site,layer,effect,n,reason\nz,0,0.33333,8,\nz,1,1.3333,8,a|b\nz,2,2.3333,8,a|b\n"


def test_permissions_are_those_of_any_new_folder(tmp_path: Path) -> None:
    cell = publish(place(tmp_path), table(), {})
    (tmp_path / "plain").mkdir()
    assert cell.path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_same_numbers_same_bytes(tmp_path: Path) -> None:
    one = publish(place(tmp_path / "a"), table(), {})
    time.sleep(0.01)
    other = publish(place(tmp_path / "b"), table(), {})
    assert everything(one.path) == everything(other.path)
    assert everything(publish(place(tmp_path / "c"), table(1e-9), {}).path) != everything(one.path)


def test_large_tables_are_summarised_for_people(tmp_path: Path) -> None:
    cell = publish(place(tmp_path), table(rows=3000), {})
    lines = (cell.path / "table.csv").read_text().splitlines()
    assert len(lines) == 1001
    assert lines[1].startswith("z,2000,")
    assert len(cell.table()) == 3000


def test_published_once(tmp_path: Path) -> None:
    """Two writers of one cell: the first one's files stay, the second is told so."""
    first = publish(place(tmp_path), table(), {})
    before = everything(first.path)
    second = publish(place(tmp_path), table(5.0), {})
    assert (first.reused, second.reused) == (False, True)
    assert everything(second.path) == before
    assert os.listdir(first.path.parent) == [first.path.name]


def test_many_writers_at_once(tmp_path: Path) -> None:
    gate, cells = Barrier(8), []

    def write(i: int) -> None:
        gate.wait()
        cells.append(publish(place(tmp_path), table(float(i)), {"writer": i}))

    threads = [Thread(target=write, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(not c.reused for c in cells) == 1
    assert len(cells) == 8
    winner = cells[0].run()["writer"]
    pd.testing.assert_frame_equal(cells[0].table(), table(float(winner)).frame)
    assert os.listdir(tmp_path / "ablation") == [cells[0].path.name]


@pytest.mark.parametrize("call", [1, 3, 7])
def test_killed_while_writing(tmp_path: Path, call: int) -> None:
    """kill -9 in the first, a middle and the last file that is written: no cell, nothing listed.

    The next writer publishes, and sweeps what was left.
    """
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        sys.path[:0] = [{here!r}]
        from interp.results import store
        from test_store import place, table
        left, write = [{call}], store._write_bytes
        def dying(path, data):
            left[0] -= 1
            if left[0] == 0:
                path.write_bytes(data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, data)
        store._write_bytes = dying
        store.publish(place(Path({out!r})), table(), {{}})
    """).format(here=str(Path(__file__).parent), call=call, out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not place(tmp_path).exists()
    assert list_cells(tmp_path) == []
    cell = publish(place(tmp_path), table(), {})
    assert not cell.reused
    assert everything(cell.path) == everything(publish(place(tmp_path / "other"), table(), {}).path)
    assert os.listdir(tmp_path / "ablation") == [cell.path.name]


@pytest.mark.parametrize("fails_at", ["_write_bytes", "rename"])
def test_a_full_disk_leaves_the_rows_and_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    rows = partial_path(place(tmp_path)) / "rows.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text("kept")
    with monkeypatch.context() as m:
        m.setattr(store if fails_at == "_write_bytes" else os, fails_at, full)
        with pytest.raises(OSError, match="No space"):
            publish(place(tmp_path), table(), {})
    assert rows.read_text() == "kept"
    assert os.listdir(rows.parent) == ["rows.jsonl"]
    assert list_cells(tmp_path) == []
    publish(place(tmp_path), table(), {})
    assert not rows.exists()


@pytest.mark.parametrize("spoil", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"PAR1" + b[4:-4] + b"xxxx"])
def test_a_broken_table_is_named(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    cell = publish(place(tmp_path), table(), {})
    file = cell.path / "table.parquet"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(UserError, match=r"table\.parquet cannot be read as a table"):
        cell.table()


def test_a_notebooks_table_is_never_reused(tmp_path: Path) -> None:
    cells = [save(table(), tmp_path, experiment="patch", model="m", task=None, run={}) for _ in range(2)]
    assert len({c.path for c in cells}) == 2
    assert [c.run()["reproducible"] for c in cells] == [False, False]


def test_flags_and_own_schemas_survive(tmp_path: Path) -> None:
    own = AUDIT.plus("my_audit", Column("role", "name", "", key=True))
    frame = typed([{"role": "a", "passed": True}, {"role": "b", "passed": None, "value": 0.5}], own)
    cell = publish(place(tmp_path), Table(frame, own), {})
    pd.testing.assert_frame_equal(cell.table(), frame)
    read = cell.schema()
    assert (read.name, read.key, read.main, read.names) == (own.name, own.key, own.main, own.names)


def test_finding(tmp_path: Path) -> None:
    a = publish(place(tmp_path, "aaaa000000"), table(), {})
    b = publish(place(tmp_path, "aabb000000"), table(), {})
    assert list_cells(tmp_path) == [a, b]
    assert find_cell(tmp_path, a.name) == a
    assert find_cell(tmp_path, str(b.path)) == b
    assert find_cell(tmp_path, "aab") == b
    with pytest.raises(UserError, match="'aa' names 2 cells"):
        find_cell(tmp_path, "aa")
    with pytest.raises(UserError, match=r"unknown cell under .*did you mean"):
        find_cell(tmp_path, a.name[:-1] + "x")
    with pytest.raises(UserError, match="is no cell"):
        read_cell(tmp_path)


def test_artifacts_stay_inside_their_cell(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside its cell"):
        publish(place(tmp_path), Table(table().frame, artifacts={"../../x.txt": "no"}), {})
    assert list_cells(tmp_path) == []
    with pytest.raises(TypeError, match="must be text or bytes"):
        publish(place(tmp_path), Table(table().frame, artifacts={"x.bin": object()}), {})


@pytest.mark.parametrize(
    ("name", "safe"),
    [("../../etc/passwd", "passwd"), ("..", "-"), ("", "-"), (".hidden", "hidden"), ("a b\n|", "a_b__"), ("x/", "x")],
)
def test_slug(name: str, safe: str) -> None:
    assert slug(name) == safe
