"""Answers and Task: rows, several tokens, subsets, splits, hashes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.hooks.prompts import Prompts
from interp.registry import UserError
from interp.tasks.values import Answers, Task


def simple(n: int = 6, **more) -> Task:
    clean = Prompts.of([[i, i + 1, i + 2] for i in range(n)], labels={"S": torch.ones(n, dtype=torch.long)})
    corrupt = Prompts.of([[i + 9, i + 1, i + 2] for i in range(n)], labels={"S": torch.ones(n, dtype=torch.long)})
    right = Answers.of([[[i]] for i in range(n)])
    wrong = Answers.of([[[i + 1], [i + 2]][: 1 + i % 2] for i in range(n)])
    return Task.of("simple", clean, corrupt, right, wrong, cluster=torch.arange(n) % 2, **more)


def several(pad_side: str = "right") -> Task:
    prompts = Prompts.of([[1, 2, 3], [4, 5]], labels={"S": torch.tensor([1, 0])}, pad_side=pad_side)
    other = Prompts.of([[7, 2, 3], [8, 5]], labels={"S": torch.tensor([1, 0])}, pad_side=pad_side)
    right = Answers.of([[[6, 7]], [[6], [2, 3, 4]]])
    wrong = Answers.of([[[8], [9, 1]], [[0, 1]]])
    return Task.of("several", prompts, other, right, wrong, cluster=torch.tensor([0, 1]))


def real(prompts: Prompts) -> list[list[int]]:
    return [t[m].tolist() for t, m in zip(prompts.tokens, prompts.mask, strict=True)]


def test_single_answers_leave_rows_as_prompts() -> None:
    task = simple()
    assert task.single
    assert task.n == len(task) == len(task.clean) == 6
    assert task.prompt_of_row.tolist() == list(range(6))
    assert task.clean.suffix is None
    assert task.wrong.present.sum(1).tolist() == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("pad_side", ["left", "right"])
def test_answers_of_several_tokens_expand_to_a_row_each(pad_side: str) -> None:
    task = several(pad_side)
    assert not task.single
    assert task.n == 2
    # all tokens of an answer but its last are appended
    assert real(task.clean) == [[1, 2, 3, 6], [1, 2, 3], [1, 2, 3, 9], [4, 5], [4, 5, 2, 3], [4, 5, 0]]
    assert real(task.corrupt) == [[7, 2, 3, 6], [7, 2, 3], [7, 2, 3, 9], [8, 5], [8, 5, 2, 3], [8, 5, 0]]
    assert task.prompt_of_row.tolist() == [0, 0, 0, 1, 1, 1]
    assert task.right_of_row.tolist() == [True, False, False, True, True, False]  # type: ignore[union-attr]
    assert task.answer_of_row.tolist() == [0, 0, 1, 0, 1, 0]  # type: ignore[union-attr]
    assert task.clean.answer.tolist() == [2, 2, 2, 1, 1, 1]
    assert task.clean.lengths.tolist() == [3, 3, 3, 2, 2, 2]
    assert task.clean.real_index(-1).tolist() == [2, 2, 2, 1, 1, 1]
    assert task.clean.labels["S"].tolist() == [1, 1, 1, 0, 0, 0]
    assert task.first_rows.tolist() == [0, 3]


def test_rows_of_a_task_keep_whole_prompts_in_the_asked_order() -> None:
    task = several().rows([1, 0, 1])
    assert task.n == 3
    assert task.prompt_of_row.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert real(task.clean)[:4] == [[4, 5], [4, 5, 2, 3], [4, 5, 0], [1, 2, 3, 6]]
    assert task.right.lists() == [[[6], [2, 3, 4]], [[6, 7]], [[6], [2, 3, 4]]]
    assert task.cluster.tolist() == [1, 0, 1]  # type: ignore[union-attr]
    for row, (prompt, right, answer) in enumerate(
        zip(task.prompt_of_row, task.right_of_row, task.answer_of_row, strict=True)  # type: ignore[arg-type]
    ):
        tokens = (task.right if right else task.wrong).lists()[int(prompt)][int(answer)]
        suffix = int(task.clean.suffix[row])  # type: ignore[index]
        assert real(task.clean)[row][len(real(task.clean)[row]) - suffix :] == tokens[:-1]


def test_subset_is_exact() -> None:
    task = simple(32)
    four = task.subset(4)
    assert four.n == len(four.clean) == len(four.right) == 4
    assert four.hash() != task.hash()
    assert task.sample(4, seed=1).n == 4
    assert task.sample(4, seed=1).hash() == task.sample(4, seed=1).hash() != task.sample(4, seed=2).hash()
    for bad in (0, 33):
        with pytest.raises(UserError, match="which has 32"):
            task.subset(bad)
        with pytest.raises(UserError, match="which has 32"):
            task.sample(bad)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 30), copies=st.integers(1, 3), share=st.floats(0.1, 0.9), seed=st.integers(0, 99))
def test_split_is_disjoint_complete_and_keeps_equal_prompts_together(
    n: int, copies: int, share: float, seed: int
) -> None:
    task = simple(n).rows(torch.arange(n).repeat(copies))
    one, two = task.split(share, seed)
    first, second = ({tuple(r) for r in real(part.clean)} for part in (one, two))
    assert one.n + two.n == task.n
    assert first.isdisjoint(second)
    assert first
    assert second
    assert one.meta["part"] == "discovery"
    again = task.split(share, seed)
    assert (again[0].hash(), again[1].hash()) == (one.hash(), two.hash())


def test_halves_are_halves() -> None:
    one, two = simple(32).split()
    assert (one.n, two.n) == (16, 16)
    assert len(one.clean) == len(one.corrupt) == len(one.right) == 16
    with pytest.raises(UserError, match="cannot be split"):
        simple(1).split()


def test_the_hash_sees_every_part() -> None:
    base = simple()
    clean = base.clean
    changed = [
        Task.of("t", base.corrupt, base.corrupt, base.right, base.wrong, cluster=base.cluster),
        Task.of("t", clean, clean, base.right, base.wrong, cluster=base.cluster),
        Task.of("t", clean, base.corrupt, base.wrong, base.wrong, cluster=base.cluster),
        Task.of("t", clean, base.corrupt, base.right, base.right, cluster=base.cluster),
        Task.of("t", clean, base.corrupt, base.right, base.wrong),
        simple(counterfactual=True),
        simple(means_on=clean),
        base.rows([1, 0, 2, 3, 4, 5]),
        base.subset(5),
    ]
    hashes = [t.hash() for t in [base, *changed]]
    assert len(set(hashes)) == len(hashes)
    assert simple().hash() == base.hash()
    assert simple(meta={"source": "elsewhere"}).hash() == base.hash()


def test_unequal_pairs_are_named() -> None:
    clean, corrupt = Prompts.of([[1, 2], [1, 2, 3, 4, 5, 6]]), Prompts.of([[3, 4], [1, 2, 3, 4, 5]])
    task = Task.of("t", clean, corrupt, Answers.of([[[1]]] * 2), Answers.of([[[2]]] * 2))
    assert not task.aligned
    with pytest.raises(UserError, match=r"pair 1 .* 6 clean and 5 corrupt tokens"):
        task.require_aligned()
    task.subset(1).require_aligned()


def test_bad_tasks_are_refused() -> None:
    p = Prompts.of([[1, 2], [3, 4]])
    two, one = Answers.of([[[1]]] * 2), Answers.of([[[1]]])
    with pytest.raises(UserError, match="one of each per prompt"):
        Task.of("t", p, p, two, one)
    with pytest.raises(UserError, match="prompt 1 has no right answer"):
        Task.of("t", p, p, Answers.of([[[1]], []]), two)
    with pytest.raises(UserError, match="has no tokens"):
        Answers.of([[[]]])
    early = Prompts.of([[1, 2]], answer=torch.tensor([0]))
    with pytest.raises(UserError, match="follow the end of the prompt"):
        Task.of("t", early, early, Answers.of([[[1, 2]]]), Answers.of([[[3]]]))
    with pytest.raises(UserError, match="no prompts chosen"):
        simple().rows([])


def test_values_are_frozen() -> None:
    task = simple(meta={"seed": 0})
    with pytest.raises(TypeError):
        task.meta["seed"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        task.name = "other"  # type: ignore[misc]
