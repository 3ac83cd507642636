"""A large CSV: read in a time and memory that grow with the file and no faster, and errors that stay short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interp.models.load import load_model
from interp.registry import UserError
from interp.tasks import load_task, task_from_table
from interp.tasks.tokens import Codec

MEASURE = """
import json, sys, time
import interp
from interp.results.origin import peak_memory
model = interp.load_model("toy-ioi")
before, started = peak_memory(), (time.perf_counter(), time.process_time())
task = interp.load_task(sys.argv[1], model)
seconds, processor = time.perf_counter() - started[0], time.process_time() - started[1]
grown = (peak_memory() - before) / 2**20
print(json.dumps({"n": task.n, "seconds": seconds, "processor": processor, "mb": grown}))
"""


def write(path: Path, megabytes: float) -> int:
    """A CSV of IOI pairs as text; how many rows."""
    model: Any = load_model("toy-ioi")
    task = load_task("ioi", model, n=64)
    codec = Codec.of(model)
    lines = []
    for i in range(64):
        cells = [codec.decode(p.tokens[i][p.mask[i]].tolist()) for p in (task.clean, task.corrupt)]
        cells += [codec.decode(a.lists()[i][0]) for a in (task.right, task.wrong)]
        lines.append(",".join(f'"{c}"' for c in cells) + "\n")
    block = "".join(lines)
    repeats = int(megabytes * 1e6 / len(block)) + 1
    with path.open("w", encoding="utf-8") as f:
        f.write("clean,corrupt,right,wrong\n")
        for _ in range(repeats):
            f.write(block)
    return 64 * repeats


def read(path: Path) -> dict[str, float]:
    """In a process of its own, whose memory is its own."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_two_megabytes(tmp_path: Path) -> None:
    rows = write(tmp_path / "t.csv", 2)
    found = read(tmp_path / "t.csv")
    assert found["n"] == rows
    assert found["mb"] < 150


@pytest.mark.long
def test_a_hundred_megabytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    rows = write(path, 100)
    assert path.stat().st_size > 100e6
    found = read(path)
    took = f"{found['processor']:.0f} s of the processor in {found['seconds']:.0f} s"
    with capsys.disabled():
        print(f"\n100 MB, {rows} rows: {took}, {found['mb']:.0f} MB over the loaded model")
    assert found["n"] == rows
    assert found["mb"] < 4000
    assert found["processor"] < 480  # what other processes take of the machine is no fault of the reader


def test_an_error_on_thousands_of_rows_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "clean,corrupt,right,wrong\n" + "".join(f"[{i}],[1],2,3\n[1],[2],3,4\n" for i in range(9000, 12000))
    )
    with pytest.raises(UserError) as caught:
        task_from_table(path, load_model("toy-ioi", tokenizer=False))
    assert len(caught.value.rows) == 3000  # type: ignore[attr-defined]
    assert len(str(caught.value)) < 1000
    assert "3000 of 6000 rows are bad: rows 1, 3, 5" in str(caught.value)
    assert "and 2990 more" in str(caught.value)


TEXTS = ("One day , David", " a", "a", "", "  two  spaces ", "<bos> x", "x <bos>", "é 語", "ünï\ncode\t.")


@pytest.mark.parametrize("name", ["toy-ioi", "attn-2l"])
def test_the_short_way_to_tokens_gives_the_same(name: str) -> None:
    tokenizer = load_model(name).tokenizer
    codec = Codec(tokenizer, 10**6)
    for text in TEXTS:
        for special in (False, True):
            assert codec._ids(text, special) == list(tokenizer.encode(text, add_special_tokens=special)), text
    tokenizer("a b c", truncation=True, max_length=2)
    assert codec._ids("One day , David") == list(tokenizer.encode("One day , David", add_special_tokens=False))
