"""Small random tasks for tests of interventions: pairs that differ in one token, padded or not."""

from __future__ import annotations

import torch

from interp.hooks.prompts import Prompts
from interp.models.model import Model
from interp.tasks.values import Answers, Task

RIGHT, WRONG = 3, 7


def random_task(model: Model, lengths: tuple[int, ...] = (9, 7, 8), differ: int = 3, side: str = "right") -> Task:
    """One prompt per length; clean and corrupt differ at one position; one right and one wrong token."""
    vocab = model.geometry.d_vocab
    generator = torch.Generator().manual_seed(len(lengths) + differ)
    clean = [torch.randint(1, vocab, (n,), generator=generator).tolist() for n in lengths]
    corrupt = [[(t + 7) % (vocab - 1) + 1 if i == differ else t for i, t in enumerate(row)] for row in clean]
    labels = {"D": torch.full((len(lengths),), differ), "END": torch.tensor(lengths) - 1}
    prompts = [Prompts.of(rows, pad_side=side, labels=labels) for rows in (clean, corrupt)]

    def answers(token: int) -> Answers:
        return Answers.of([[[token]]] * len(lengths))

    return Task.of("random", *prompts, answers(RIGHT), answers(WRONG))


def logit_gap(logits: torch.Tensor, prompts: Prompts) -> torch.Tensor:
    """The metric, written out."""
    rows, columns = torch.arange(len(prompts)), prompts.answer_columns
    return logits[rows, columns, RIGHT] - logits[rows, columns, WRONG]
