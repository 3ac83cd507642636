"""Tables of pairs: formats, cells, bad rows together, BOS, several tokens, labels, encodings, changed files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from task_stand_ins import StandIn, bare, geometry, gpt2, toy

from interp.registry import UserError
from interp.tasks import load_task, task_from_table
from interp.tasks.bad_rows import BadRowsError, ranges
from interp.tasks.tokens import Codec

ROWS = [
    {"clean": "When Mary and John went", "corrupt": "When Mary and Paul went", "right": " Mary", "wrong": " John"},
    {"clean": "Then Anna and Mark met", "corrupt": "Then Anna and Paul met", "right": " Anna", "wrong": " Mark"},
]


def write_csv(path: Path, rows: list[dict], encoding: str = "utf-8") -> Path:
    with path.open("w", encoding=encoding, newline="") as f:
        out = csv.DictWriter(f, list(rows[0]))
        out.writeheader()
        out.writerows(rows)
    return path


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def ids(n: int, **more) -> list[dict]:
    """Rows of token ids."""
    return [{"clean": [i, 2, 3], "corrupt": [i, 4, 3], "right": i, "wrong": i + 1, **more} for i in range(n)]


def tokens(task, side: str = "clean") -> list[list[int]]:
    p = task.prompts(side)
    return [t[m].tolist() for t, m in zip(p.tokens, p.mask, strict=True)]


def test_every_format_gives_the_same_task(tmp_path: Path) -> None:
    files = [
        write_csv(tmp_path / "a.csv", ROWS),
        write_csv(tmp_path / "b.csv", ROWS, "utf-8-sig"),
        write_csv(tmp_path / "c.csv", ROWS, "utf-16"),
        write_csv(tmp_path / "d.csv", ROWS, "utf-16-le"),
        write_lines(tmp_path / "e.jsonl", ROWS),
        write_lines(tmp_path / "f.json", ROWS),
    ]
    (tmp_path / "g.json").write_text(json.dumps(ROWS, indent=1))
    tsv = "\n".join("\t".join(r.values()) for r in [dict(zip(ROWS[0], ROWS[0], strict=True)), *ROWS])
    (tmp_path / "h.tsv").write_text(tsv)
    tables = [*files, tmp_path / "g.json", tmp_path / "h.tsv", pd.DataFrame(ROWS), ROWS, (r for r in ROWS)]
    hashes = {task_from_table(t, toy()).hash() for t in tables}
    assert len(hashes) == 1
    task = task_from_table(ROWS, toy())
    encode = Codec.of(toy()).encode
    assert tokens(task) == [encode(r["clean"]) for r in ROWS]
    assert tokens(task, "corrupt") == [encode(r["corrupt"]) for r in ROWS]
    assert task.right.lists() == [[encode("Mary")], [encode("Anna")]]
    assert task.wrong.lists() == [[encode("John")], [encode("Mark")]]
    assert task.clean.text == tuple(r["clean"] for r in ROWS)


def test_ids_without_a_tokenizer_and_text_that_raises() -> None:
    task = task_from_table(ids(3), bare())
    assert tokens(task) == [[0, 2, 3], [1, 2, 3], [2, 2, 3]]
    assert task.right.lists() == [[[0]], [[1]], [[2]]]
    with pytest.raises(UserError, match="no tokenizer"):
        task_from_table(ROWS, bare())


def test_ids_in_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('clean,corrupt,right,wrong\n"[1, 2]","[3, 2]",5,"[6, 7]"\n"[1, 4]","[3, 4]","[[5, 6]]",7\n')
    task = task_from_table(path, bare())
    assert tokens(task)[0] == [1, 2]
    assert task.right.lists() == [[[5]], [[5, 6]]]
    assert task.wrong.lists() == [[[6], [7]], [[7]]]


def test_arrays_tensors_and_numbers_of_frames() -> None:
    frame = pd.DataFrame({"clean": [[1, 2], [1, 3]], "corrupt": [(4, 2), (4, 3)], "right": [5, 6], "wrong": [7.0, 8.0]})
    task = task_from_table(frame, bare())
    assert task.wrong.lists() == [[[7]], [[8]]]
    row = {"clean": torch.tensor([1, 2]), "corrupt": torch.tensor([3, 2]), "right": torch.tensor([5, 6]), "wrong": 7}
    assert task_from_table([row], bare()).right.lists() == [[[5], [6]]]


def test_digits_in_csv_are_ids_or_text_as_said(tmp_path: Path) -> None:
    row = {"clean": "In 17", "corrupt": "In 16", "right": "52", "wrong": "41"}
    path = write_csv(tmp_path / "t.csv", [row])
    with pytest.raises(BadRowsError, match="ids=True or ids=False"):
        task_from_table(path, gpt2())
    assert task_from_table(path, gpt2(), ids=True).right.lists() == [[[52]]]
    assert task_from_table(path, gpt2(), ids=False).right.lists() == [[[4309]]]
    # other formats say it by their types
    assert task_from_table([row], gpt2()).right.lists() == [[[4309]]]
    assert task_from_table([{**row, "right": 52, "wrong": 41}], gpt2()).right.lists() == [[[52]]]
    quoted = write_csv(tmp_path / "q.csv", [{**row, "right": '"52"', "wrong": '["41", "42"]'}])
    assert task_from_table(quoted, gpt2()).right.lists() == [[[4309]]]


def test_several_answers_and_answers_of_several_tokens() -> None:
    row = {**ROWS[0], "right": [" Mary", " Anna"], "wrong": " John went"}
    task = task_from_table([row], toy())
    encode = Codec.of(toy()).encode
    assert task.right.lists() == [[encode("Mary"), encode("Anna")]]
    assert task.wrong.lists() == [[encode("John went")]]
    assert not task.single
    assert len(task.clean) == 3
    with pytest.raises(BadRowsError, match="an answer has 2 tokens"):
        task_from_table([row], toy(), single_token=True)


def test_bidirectional_models_refuse_answers_of_several_tokens() -> None:
    row = {"clean": [1, 2], "corrupt": [3, 2], "right": [[5, 6]], "wrong": 7}
    with pytest.raises(BadRowsError, match="bidirectional"):
        task_from_table([row], bare(causal=False))


def test_bad_rows_are_reported_together_with_their_numbers() -> None:
    rows = [
        *ids(2),
        {"clean": [1, 2, 3, 4, 5, 6], "corrupt": [1, 2, 3, 4, 5], "right": 1, "wrong": 2},
        {"clean": [1, 2], "corrupt": [3, 2], "right": 50, "wrong": 2},
        {"clean": [1, 2], "corrupt": [3, 2], "right": 1, "wrong": 1},
        {"clean": [], "corrupt": [3, 2], "right": 1, "wrong": None},
        {"clean": [1, 2], "corrupt": [3, 2], "right": 1},
        "no dict",
        {"clean": [1, 99], "corrupt": [3, 2], "right": 1, "wrong": 2.5},
        {"clean": [1, 2, 3], "corrupt": [3, 2], "right": 1, "wrong": 2},
    ]
    with pytest.raises(BadRowsError) as caught:
        task_from_table(rows, bare())
    assert sorted(caught.value.rows) == [3, 4, 5, 6, 7, 8, 9, 10]
    message = str(caught.value)
    assert "8 of 10 rows are bad" in message
    assert "\n" not in message
    assert "rows 3, 10: clean and corrupt differ in length: 6 and 5 tokens" in message
    for part in ("vocabulary of 50: 50", "right and wrong", "'wrong'", "not a dict", "vocabulary of 50: 99"):
        assert part in message
    assert "clean" in caught.value.rows[6]
    assert "wrong: is empty" in caught.value.rows[6]


def test_skip_bad_drops_and_counts() -> None:
    rows = [*ids(3), {"clean": [1, 2], "corrupt": [1], "right": 1, "wrong": 2}, *ids(2)]
    task = task_from_table(rows, bare(), skip_bad=True)
    assert task.n == 5
    assert (task.meta["rows"], task.meta["dropped"], task.meta["dropped_rows"]) == (6, 1, [4])
    with pytest.raises(BadRowsError):
        task_from_table(rows[3:4], bare(), skip_bad=True)


def test_words_outside_the_vocabulary_are_bad_rows() -> None:
    rows = [ROWS[0], {**ROWS[1], "clean": "Then Zebulon and Mark met"}, {**ROWS[1], "right": " Zebulon"}]
    with pytest.raises(BadRowsError) as caught:
        task_from_table(rows, toy())
    assert sorted(caught.value.rows) == [2, 3]
    assert "Zebulon" in caught.value.rows[2]


def test_missing_columns_are_named_together(tmp_path: Path) -> None:
    rows = [{"clean": [1], "corupt": [2], "rigth": 3, "wrong": 4}]
    for table in (
        rows,
        pd.DataFrame(rows),
        write_csv(tmp_path / "t.csv", rows),
        write_lines(tmp_path / "t.jsonl", rows),
    ):
        with pytest.raises(UserError, match="no column 'corrupt', 'right'; did you mean corupt or rigth") as caught:
            task_from_table(table, bare())
        assert "'wrong'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\xef\xbb\xbf\n\n", "is empty"),
        ("a.csv", b"clean,corrupt,right,wrong\n", "no rows"),
        ("a.jsonl", b"  \n", "is empty"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b"[1, ", "not a JSON array"),
        ("a.csv", b"clean,clean\n1,2\n", "occur twice: 'clean'"),
        ("a.csv", b"a,b," * 20_000, "occur twice: 'a', 'b'"),
        ("a.jsonl", b'{"clean": [1], "clean": [2]}', "gives 'clean' more than once"),
        ("a.json", b'[{"clean": [1], "clean": [2]}]', "a row gives 'clean' more than once"),
        ("a.csv", b"clean,corrupt,right,wrong\n\xff\xfa\xfb,b,c,d\n", "neither UTF-8 nor UTF-16"),
        ("a.txt", b"hello", "name ends in one of"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=says):
        task_from_table(path, bare())


def test_no_such_file_and_no_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        task_from_table(tmp_path / "none.csv", bare())
    with pytest.raises(UserError, match="got int"):
        task_from_table(3, bare())
    with pytest.raises(UserError, match="empty"):
        task_from_table([], bare())


def test_csv_rows_with_other_cell_counts_and_lines_that_are_not_json(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("clean,corrupt,right,wrong\n[1],[2],3,4\n[1],[2],3\n")
    with pytest.raises(BadRowsError, match="row 2: does not have as many cells") as caught:
        task_from_table(path, bare())
    assert list(caught.value.rows) == [2]
    lines = write_lines(tmp_path / "t.jsonl", ids(2))
    lines.write_text(lines.read_text() + "{torn\n[1]\n")
    with pytest.raises(BadRowsError) as caught:
        task_from_table(lines, bare())
    assert caught.value.rows == {3: "is not JSON", 4: "is not a JSON object"}


@pytest.mark.parametrize("own", [False, True])
def test_bos_only_when_asked_and_recorded(own: bool) -> None:
    model = toy(own)
    plain, with_bos = (task_from_table(ROWS, model, bos=b) for b in (False, True))
    assert plain.meta["bos"] is False
    assert with_bos.meta["bos"] is True
    assert tokens(with_bos) == [[1, *row] for row in tokens(plain)]
    assert all(1 not in row for row in tokens(plain))
    assert with_bos.right.lists() == plain.right.lists()
    assert with_bos.hash() != plain.hash()


def test_labels_answer_pos_and_template() -> None:
    rows = [
        {**r, "label:A": 1, "label:LAST": -1, "label:NONE": None, "answer_pos": 1, "template": t}
        for r, t in zip(ids(3), ("x", "y", "x"), strict=True)
    ]
    task = task_from_table(rows, bare(), counterfactual=True)
    assert task.clean.answer.tolist() == [1, 1, 1]
    assert task.clean.labels["A"].tolist() == [1, 1, 1]
    assert task.clean.labels["LAST"].tolist() == [2, 2, 2]
    assert task.clean.labels["NONE"].tolist() == [-1, -1, -1]
    assert task.cluster.tolist() == [0, 1, 0]  # type: ignore[union-attr]
    assert task.counterfactual


def test_positions_move_with_an_added_bos(tmp_path: Path) -> None:
    rows = [{**r, "label:A": 1, "answer_pos": -2} for r in ROWS]
    for table in (rows, write_csv(tmp_path / "t.csv", rows)):
        plain, moved = (task_from_table(table, toy(), bos=b) for b in (False, True))
        assert plain.clean.labels["A"].tolist() == [1, 1]
        assert moved.clean.labels["A"].tolist() == [2, 2]
        assert plain.clean.answer.tolist() == [3, 3]
        assert moved.clean.answer.tolist() == [4, 4]


def test_positions_outside_the_prompt_are_bad_rows() -> None:
    rows = [*ids(1), {**ids(1)[0], "label:A": 3}, {**ids(1)[0], "answer_pos": -4}, {**ids(1)[0], "label:A": "x"}]
    with pytest.raises(BadRowsError) as caught:
        task_from_table(rows, bare())
    assert "label:A: position 3 lies outside a prompt of 3 tokens" in caught.value.rows[2]
    assert "answer_pos: position -4" in caught.value.rows[3]
    assert "whole number" in caught.value.rows[4]


def test_unequal_pairs_need_labels_in_every_row() -> None:
    unequal = {"clean": [1, 2, 3, 4], "corrupt": [1, 2], "right": 5, "wrong": 6, "label:A": [2, 1]}
    equal = {"clean": [1, 2], "corrupt": [3, 2], "right": 5, "wrong": 6, "label:A": 0}
    task = task_from_table([unequal, equal], bare())
    assert task.n == 2
    assert not task.aligned
    assert task.clean.labels["A"].tolist() == [2, 0]
    assert task.corrupt.labels["A"].tolist() == [1, 0]
    with pytest.raises(BadRowsError) as caught:
        task_from_table([unequal, {**equal, "label:A": None}], bare())
    assert list(caught.value.rows) == [1]


def test_an_early_answer_position_refuses_answers_of_several_tokens() -> None:
    row = {"clean": [1, 2, 3], "corrupt": [3, 2, 1], "right": [[5, 6]], "wrong": 7, "answer_pos": 1}
    with pytest.raises(BadRowsError, match="at the prompt's end"):
        task_from_table([row], bare())


def test_prompts_longer_than_the_context() -> None:
    with pytest.raises(BadRowsError, match="context of 2 tokens: 3"):
        task_from_table(ids(2), bare(n_ctx=2))


def test_exactly_n_rows_are_used(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", ids(32))
    everything = load_task(path, bare())
    four = load_task(str(path), bare(), n=4, seed=1)
    assert (everything.n, four.n, len(four.clean)) == (32, 4, 4)
    assert four.hash() == load_task(path, bare(), n=4, seed=1).hash()
    assert four.hash() not in (everything.hash(), load_task(path, bare(), n=4, seed=2).hash())
    with pytest.raises(UserError, match=r"n = 33 asked, but t\.jsonl has 32 good rows"):
        load_task(path, bare(), n=33)


def test_a_file_changed_in_place_is_another_task(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", ROWS)
    before = load_task(path, toy())
    write_csv(path, [ROWS[0], {**ROWS[1], "right": " Mary"}])
    after = load_task(path, toy())
    assert after.right.lists() != before.right.lists()
    assert after.hash() != before.hash()
    assert after.meta["source_sha256"] != before.meta["source_sha256"]


def test_a_split_column() -> None:
    rows = [{**r, "split": "train" if i % 2 else "test"} for i, r in enumerate(ids(6))]
    assert task_from_table(rows, bare(), split="train").n == 3
    assert task_from_table(rows, bare()).n == 6
    with pytest.raises(UserError, match="no rows with split 'dev'"):
        task_from_table(rows, bare(), split="dev")
    with pytest.raises(UserError, match="no column 'split'"):
        task_from_table(ids(2), bare(), split="train")


def test_functions_give_cells_and_their_errors_are_bad_rows() -> None:
    rows = [{"p": [1, 2], "a": 3}, {"p": [4, 2], "a": 5}, {"p": [], "a": 6}]
    build = {"clean": "p", "corrupt": lambda r: [r["p"][0] + 10, *r["p"][1:]], "right": "a", "wrong": None}
    with pytest.raises(BadRowsError, match="IndexError") as caught:
        task_from_table(rows, bare(), **build)
    assert list(caught.value.rows) == [3]
    task = task_from_table(rows[:2], bare(), **build)
    assert tokens(task, "corrupt") == [[11, 2], [14, 2]]
    assert task.wrong.lists() == [[], []]
    assert task.meta["columns"] == {"clean": "p", "corrupt": "function", "right": "a"}


def test_options_that_do_not_exist(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", ids(2))
    with pytest.raises(UserError, match="did you mean right"):
        load_task(path, bare(), rigth="r")


def test_a_text_of_several_lines_and_quotes_in_csv(tmp_path: Path) -> None:
    row = {**ROWS[0], "clean": 'One "day",\nMary', "corrupt": 'Two "day",\nMary'}
    path = write_csv(tmp_path / "t.csv", [row, {**row, "right": " Anna"}])
    task = task_from_table(path, gpt2())
    assert task.clean.text == (row["clean"], row["clean"])
    assert task.n == 2


def test_ranges() -> None:
    assert ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 19), min_size=1, max_size=5),
            st.integers(0, 19),
            st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=3), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_ids_survive_every_format(rows: list) -> None:
    import tempfile

    model = StandIn(None, geometry(20))
    table = [
        {"clean": p, "corrupt": p[::-1], "right": [[a, 0, a]], "wrong": [w for w in ws if w != [a, 0, a]] or [[a]]}
        for p, a, ws in rows
    ]
    want = task_from_table(table, model)
    assert tokens(want)[::1][0][: len(rows[0][0])] == rows[0][0]
    assert want.right.lists() == [[[a, 0, a]] for _, a, _ in rows]
    with tempfile.TemporaryDirectory() as folder:
        lines = write_lines(Path(folder) / "t.jsonl", table)
        as_json = [{k: json.dumps(v) for k, v in row.items()} for row in table]
        for path in (lines, write_csv(Path(folder) / "t.csv", as_json)):
            assert task_from_table(path, model).hash() == want.hash()


def test_a_function_that_draws_is_called_once_a_row() -> None:
    drawn = iter(["Then Anna and Paul met", "Then Anna and Luke met"])
    task = task_from_table([ROWS[1]], toy(), corrupt=lambda row: next(drawn))
    assert task.corrupt.text == ("Then Anna and Paul met",)
    assert tokens(task, "corrupt") == [Codec.of(toy()).encode("Then Anna and Paul met")]
