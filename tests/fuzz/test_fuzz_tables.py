"""Tables of pairs, spoilt: a task comes out whole, or a UserError."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from drawn_input import CELL, TEXT, frames, many, parses_or_says, spoilt
from hypothesis import given
from hypothesis import strategies as st

from interp.models.load import load_model
from interp.models.model import Model
from interp.tasks import task_from_table
from interp.tasks.values import Task
from tests.tiny import tiny

pytestmark = pytest.mark.long

ROWS = [
    {"clean": [7, 8, 7], "corrupt": [7, 9, 7], "right": [8], "wrong": [9], "label:A": 1, "answer_pos": -1},
    {"clean": [1, 2, 3, 4], "corrupt": [4, 3, 2, 4], "right": [[5]], "wrong": 6, "label:A": [0, 2], "answer_pos": 3},
]
WORDS = b'clean,corrupt,right,wrong,template\nthe cat sat,the dog sat,cat,dog,x\n"a ""b"", c","a ""d"", c",b,d,y\n'
CSV = b'clean,corrupt,right,wrong,label:A\n"[7, 8, 7]","[7, 9, 7]",8,9,1\n"[1, 2]","[3, 2]","[[5]]","[6, 7]",-1\n'
LINES = "\n".join(map(json.dumps, ROWS)).encode()
ARRAY = json.dumps(ROWS, indent=1).encode()
FILES = [(".csv", CSV), (".csv", WORDS), (".tsv", CSV.replace(b",", b"\t")), (".jsonl", LINES), (".json", ARRAY)]
FILES += [(suffix, data.decode().encode("utf-16")) for suffix, data in FILES[:3]]


@pytest.fixture(scope="module")
def words() -> Model:
    return load_model("attn-2l")  # type: ignore[return-value]


@pytest.fixture(scope="module")
def bare() -> Model:
    return tiny("gpt2")


def whole(task: Task | None, model: Model) -> None:
    """What was read can be run."""
    if task is None:
        return
    for prompts in (task.clean, task.corrupt):
        assert len(prompts) >= task.n > 0  # an answer of several tokens has a prompt each
        held = prompts.tokens[prompts.mask]
        assert 0 <= int(held.min()) <= int(held.max()) < model.geometry.d_vocab
        assert prompts.width <= model.geometry.n_ctx
    assert len(task.hash()) > 8
    assert repr(task)


@many
@given(st.data())
def test_files(bare: Model, words: Model, data: Any) -> None:
    model = data.draw(st.sampled_from([bare, words]))
    suffix, good = data.draw(st.sampled_from(FILES))
    content = data.draw(spoilt(good))
    skip = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t" + suffix)
        path.write_bytes(content)
        whole(parses_or_says(lambda: task_from_table(path, model, skip_bad=skip)), model)


@many
@given(frames(), st.booleans())
def test_frames(bare: Model, frame: Any, skip: bool) -> None:
    whole(parses_or_says(lambda: task_from_table(frame, bare, skip_bad=skip)), bare)


COLUMNS = st.sampled_from(["clean", "corrupt", "right", "wrong", "label:A", "answer_pos", "template", "split", "x"])


@many
@given(st.lists(st.dictionaries(COLUMNS, CELL) | CELL, max_size=4), st.booleans(), st.sampled_from([None, 0, 1, 9]))
def test_rows(words: Model, rows: Any, skip: bool, n: int | None) -> None:
    whole(parses_or_says(lambda: task_from_table(rows, words, skip_bad=skip, n=n)), words)


@many
@given(TEXT | CELL | st.binary() | st.just("x" * 5000 + ".csv") | st.just("a\0b.csv") | st.just("~nobody/x.csv"))
def test_what_is_no_table(bare: Model, table: Any) -> None:
    assert parses_or_says(lambda: task_from_table(table, bare)) is None
