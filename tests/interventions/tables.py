"""Brute force for sweeps: one `model.run` per row, written out, and small tasks on the tiny models' vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from interp.hooks.edits import Edit
from interp.hooks.prompts import Prompts
from interp.metrics import get_metric
from interp.models.model import Model
from interp.tasks.answers import Answers
from interp.tasks.values import Side, Task
from tests.tiny import VOCAB

MakeEdits = Callable[[Mapping[str, Any]], list[Edit]]


def by_hand(
    model: Model,
    task: Task,
    side: Side,
    keys: tuple[Mapping[str, Any], ...],
    make: MakeEdits,
    metric: str = "logit_diff",
) -> Tensor:
    """The metric of each row by one plain run of the whole batch, `[row, prompt]`."""
    rows = []
    for key in keys:
        logits = model.run(task.prompts(side), edits=make(key)).logits
        rows.append(get_metric(metric)(logits, task, side))
    return torch.stack(rows)


def pairs(n: int = 6, width: int = 6, first: int = 0, seed: int = 0, **prompts: Any) -> Task:
    """n pairs of equal length that first differ at column `first`, one right and one wrong answer each."""
    g = torch.Generator().manual_seed(seed)
    clean = torch.randint(1, VOCAB, (n, width), generator=g)
    shift = torch.randint(1, VOCAB - 1, (n, width), generator=g)
    shift[:, :first] = 0
    corrupt = (clean - 1 + shift) % (VOCAB - 1) + 1
    ids = [torch.randperm(VOCAB, generator=g)[:2].tolist() for _ in range(n)]
    return Task.of(
        "pairs", Prompts.of(clean, **prompts), Prompts.of(corrupt, **prompts),
        Answers.of([[[a]] for a, _ in ids]), Answers.of([[[b]] for _, b in ids]),
    )  # fmt: skip


def m_task(n: int = 1) -> Task:
    """The faults' pair, n times over: clean [1..6], corrupt [7..12], m = logit[−1, 3] − logit[−1, 7]."""
    return Task.of(
        "m", Prompts.of([[1, 2, 3, 4, 5, 6]] * n), Prompts.of([[7, 8, 9, 10, 11, 12]] * n),
        Answers.of([[[3]]] * n), Answers.of([[[7]]] * n),
    )  # fmt: skip


def unequal(pad_side: str = "left") -> Task:
    """Five pairs whose two sides differ in length; labels S and END on both, X on the second pair only."""
    clean = [[1, 2, 3, 4, 5, 6], [7, 8, 9], [10, 11, 12, 13], [14, 15, 16, 17, 18], [19, 20, 21]]
    corrupt = [[31, 32, 33, 34], [35, 36, 37, 38, 39], [40, 41, 42], [43, 44, 45, 46, 47, 48], [49, 1, 2, 3]]
    places = torch.tensor([2, 0, 1, 3, 1]), torch.tensor([1, 2, 0, 4, 2])

    def prompts(rows: list[list[int]], s: Tensor) -> Prompts:
        end = torch.tensor([len(r) - 1 for r in rows])
        x = torch.tensor([-1, 1, -1, -1, -1])
        return Prompts.of(rows, pad_side=pad_side, labels={"S": s, "END": end, "X": x})

    ids = [[[i + 3]] for i in range(5)], [[[i + 22]] for i in range(5)]
    return Task.of("unequal", prompts(clean, places[0]), prompts(corrupt, places[1]), *map(Answers.of, ids))
