"""Prompts: columns and real indices, checks, and what makes two batches the same."""

from __future__ import annotations

from dataclasses import replace
from gc import collect
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.registry import UserError
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.unchecked import unchecked

ROWS = [[1, 2, 3, 4], [5, 6], [7]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_columns_follow_the_padding(side: str) -> None:
    p = Prompts.of(ROWS, pad_side=side, labels={"S": torch.tensor([2, 0, -1])})
    starts = [0, 2, 3] if side == "left" else [0, 0, 0]
    assert p.starts.tolist() == starts
    assert p.lengths.tolist() == [4, 2, 1]
    assert p.column(-1).tolist() == [s + n - 1 for s, n in zip(starts, (4, 2, 1), strict=True)]
    assert p.column(0).tolist() == starts
    assert p.column("S").tolist() == [starts[0] + 2, starts[1], -1]
    assert p.answer_columns.tolist() == p.column(-1).tolist()
    for i, row in enumerate(ROWS):
        assert p.tokens[i][p.mask[i]].tolist() == row
        assert p.positions[i][p.mask[i]].tolist() == list(range(len(row)))
    with pytest.raises(UserError, match="position 1 lies outside prompt 2, which has 1 tokens"):
        p.real_index(1)
    with pytest.raises(UserError, match=r"unknown position label 'T'.*There are: S"):
        p.column("T")


def test_an_answer_suffix_does_not_move_the_last_token() -> None:
    p = Prompts.of([[1, 2, 3, 4], [5, 6, 7]], suffix=torch.tensor([1, 1]))
    assert p.lengths.tolist() == [3, 2]
    assert p.column(-1).tolist() == [2, 1]
    assert p.answer.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([[1, 0, 1]], "mask row 0 has padding between real tokens"),
        ([[0, 0, 0]], "mask row 0 has no real token"),
        ([[1, 1]], r"mask \(1, 2\) does not fit tokens \(1, 3\)"),
    ],
)
def test_masks_that_mean_nothing_are_refused(mask: list[list[int]], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Prompts.of(torch.tensor([[1, 2, 3]]), torch.tensor(mask))


def test_indices_outside_a_row_are_refused() -> None:
    with pytest.raises(UserError, match="answer of row 1 lies outside its prompt: position 2 of a row of 2 tokens"):
        Prompts.of(ROWS[:2], answer=torch.tensor([3, 2]))
    with pytest.raises(UserError, match="S of row 0 lies outside"):
        Prompts.of(ROWS[:2], labels={"S": torch.tensor([4, 0])})
    with unchecked(), pytest.raises(UserError, match="must be whole numbers"):
        Prompts.of(torch.ones(1, 3))
    with pytest.raises(UserError, match="pad_side must be 'left' or 'right', got 'up'"):
        Prompts.of(ROWS, pad_side="up")


def test_the_digest_knows_everything_that_changes_a_number() -> None:
    def make(**over: object) -> str:
        given = {"labels": {"S": torch.tensor([0, 0])}, "template": torch.tensor([0, 1]), **over}
        return Prompts.of([[1, 2], [3, 4]], **given).digest()  # type: ignore[arg-type]

    same = make()
    assert make() == same
    assert make(text=["a", "b"]) == same
    changed = [
        make(labels={"S": torch.tensor([0, 1])}),
        make(labels={"T": torch.tensor([0, 0])}),
        make(template=torch.tensor([1, 1])),
        make(answer=torch.tensor([0, 1])),
        make(suffix=torch.tensor([0, 1])),
        Prompts.of([[1, 2], [3, 5]]).digest(),
        Prompts.of([[1, 2], [3]]).digest(),
    ]
    assert len({same, *changed}) == len(changed) + 1
    assert Prompts.of([[1, 2], [3]], pad_id=0).digest() == Prompts.of([[1, 2], [3]], pad_id=9).digest()


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=5), st.data())
def test_rows_and_repeats_are_the_rows(rows: list[list[int]], data: st.DataObject) -> None:
    p = Prompts.of(rows, pad_side=data.draw(st.sampled_from(["left", "right"])), text=[str(r) for r in rows])
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))
    some = p.rows(index)
    assert [t[m].tolist() for t, m in zip(some.tokens, some.mask, strict=True)] == [rows[i] for i in index]
    assert some.text == tuple(str(rows[i]) for i in index)
    assert p.repeat(2).tokens.tolist() == p.tokens.tolist() * 2


def test_moving_to_where_they_are_keeps_what_is_known() -> None:
    right = Answers.of([[[1]], [[2]]])
    given = Prompts.of([[1, 2, 3], [4, 5]], labels={"A": torch.tensor([0, 1])}, template=torch.tensor([0, 1]))
    task = Task.of("t", given, given, right, right)
    assert all(
        here is part for here, part in ((given.to("cpu"), given), (right.to("cpu"), right), (task.to("cpu"), task))
    )
    moved = given.to("meta")
    parts = [moved.tokens, moved.mask, moved.answer, moved.labels["A"], moved.template, right.to("meta").mask]
    assert {str(t.device) for t in parts if t is not None} == {"meta"}
    assert given.tokens.device.type == "cpu"
    apart = replace(given, labels={"A": torch.tensor([0, 1], device="meta")})  # a label elsewhere moves too
    assert apart.to("meta").labels["A"].device.type == "meta"
    assert apart.to("meta").tokens.device.type == "meta"


def test_prompts_compared_are_not_kept_alive() -> None:
    mine, other = Prompts.of([[1, 2, 3]]), Prompts.of([[4, 5, 6]])
    assert mine.stands_like(other)
    gone = ref(other)
    del other
    collect()
    assert gone() is None


def test_heads_must_share_kv_heads_evenly() -> None:
    with pytest.raises(UserError, match="4 heads cannot share 3 kv heads evenly"):
        Geometry(1, 4, 3, 8, 2, 0, 5, 4)
