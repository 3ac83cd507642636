"""Every table of pairs in the shared data, under GPT-2's tokenizer, with the counts its notes state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from task_stand_ins import gpt2

from interp.tasks import task_from_table
from interp.tasks.bad_rows import BadRowsError

AGREEMENT = {
    "clean": "clean_prefix", "corrupt": "patch_prefix", "right": "clean_answer", "wrong": "patch_answer",
}  # fmt: skip
YEARS = [f"{y:02d}" for y in range(100)]


@pytest.mark.parametrize(
    ("name", "good", "total"), [("simple_test", 97, 120), ("simple_train", 413, 480), ("nounpp_test", 414, 480)]
)
def test_agreement_pairs_of_unequal_length_are_the_bad_rows(name: str, good: int, total: int, shared: Path) -> None:
    path = shared / "data" / "subject_verb" / f"{name}.json"
    with pytest.raises(BadRowsError, match=f"{total - good} of {total} rows are bad") as caught:
        task_from_table(path, gpt2(), **AGREEMENT)
    assert all("differ in length" in reason for reason in caught.value.rows.values())
    task = task_from_table(path, gpt2(), skip_bad=True, **AGREEMENT)
    assert task.n == good
    assert task.aligned
    assert task.meta["dropped"] == total - good
    # independent of our reader: the same rows by hand
    tok = gpt2().tokenizer
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    unequal = [
        i for i, r in enumerate(rows, 1) if len(tok.encode(r["clean_prefix"])) != len(tok.encode(r["patch_prefix"]))
    ]
    assert sorted(caught.value.rows) == unequal


def test_within_rc_is_whole(shared: Path) -> None:
    task = task_from_table(shared / "data" / "subject_verb" / "within_rc_test.json", gpt2(), **AGREEMENT)
    assert (task.n, task.single, task.aligned, task.meta["dropped"]) == (2400, True, True, 0)


def test_greater_than_is_whole(shared: Path) -> None:
    task = task_from_table(
        shared / "data" / "eap_ig" / "greater_than_data.csv", gpt2(), corrupt="corrupted",
        right=lambda row: [y for y in YEARS if y > row["label"]],
        wrong=lambda row: [y for y in YEARS if y <= row["label"]],
    )  # fmt: skip
    assert (task.n, task.single, task.aligned) == (1000, True, True)
    assert task.right.present.sum(1)[0] == 47  # 53 to 99 after 1352
    assert gpt2().tokenizer.decode(task.right.lists()[0][0]) == "53"


def names(row: dict) -> tuple[str, str]:
    """IO and S of a prompt that names both, S again."""
    both = re.findall(r"\b(\w+) and (\w+)\b", row["clean"])[0]
    s = max(both, key=row["clean"].count)
    return next(x for x in both if x != s), s


def test_ioi_names_from_the_prompts(shared: Path) -> None:
    task = task_from_table(
        shared / "data" / "eap_ig" / "ioi_llama.csv", gpt2(), corrupt="corrupted",
        right=lambda row: " " + names(row)[0], wrong=lambda row: " " + names(row)[1],
    )  # fmt: skip
    assert (task.n, task.single, task.aligned) == (499, True, True)


@pytest.mark.parametrize("ids", [None, True])
def test_answer_ids_of_another_tokenizer_are_row_errors(ids: bool | None, shared: Path) -> None:
    path = shared / "data" / "eap_ig" / "ioi_llama.csv"
    with pytest.raises(BadRowsError, match="token id outside the vocabulary of 50257") as caught:
        task_from_table(path, gpt2(), corrupt="corrupted", right="correct_idx", wrong="incorrect_idx", ids=ids)
    assert len(caught.value.rows) == 186


def test_coloured_objects_with_a_corruption_of_one_s_own(shared: Path) -> None:
    path = shared / "data" / "coloured_objects" / "cobjs_data_42.json"

    def corrupt(row: dict) -> str:
        answer = row["1"].strip().lower()
        return row["0"].replace(f"{answer} ", "grey " if answer != "grey" else "pink ")

    with pytest.raises(BadRowsError):
        task_from_table(path, gpt2(), clean="0", corrupt=lambda row: row["0"][:-1], right="1", wrong=None)
    task = task_from_table(path, gpt2(), clean="0", corrupt=corrupt, right="1", wrong=None, skip_bad=True)
    assert task.n > 500
    assert task.n + task.meta["dropped"] == 1000  # type: ignore[operator]
