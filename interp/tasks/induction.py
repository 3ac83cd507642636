"""Induction: a random segment of tokens, then the segment again up to its last token but one, which is asked for.

Source: Elhage et al. 2021; Olsson et al. 2022 (2209.11895). A segment's tokens are distinct, so the only clue
is the earlier copy: find the last token there, give its successor. No tokenizer is needed.

Corruptions, of equal length:

- `successor`: in the first copy the answer becomes another token, which is then right (counterfactual);
- `broken`: in the first copy the last token's earlier occurrence becomes another token: nothing to copy.

Labels: PREV (the last token's earlier occurrence), TARGET (its successor there, the answer), SECOND (where the
second copy begins), END.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interp.hooks.prompts import Prompts
from interp.registry import UserError, unknown
from interp.tasks.load import register_task
from interp.tasks.tokens import Codec
from interp.tasks.values import Answers, Task

CORRUPTIONS = ("successor", "broken")


@dataclass(frozen=True)
class Sequences:
    """One pair: tokens, and where the labels are."""

    clean: list[int]
    corrupt: list[int]
    right: int
    wrong: int
    labels: dict[str, int]


@register_task()
def induction(
    model: Any,
    *,
    n: int = 64,
    seed: int = 0,
    split: str = "all",
    period: int | Sequence[int] = 10,
    corruption: str = "successor",
    bos: bool = False,
    bos_id: int | None = None,
) -> Task:
    """Induction on random tokens of a given period T; the right answer is the earlier copy's successor.

    `period` is T, or a pair [least, most] from which each prompt draws its own. Special tokens are never drawn.
    `bos_id` names the BOS token where the model has no tokenizer. `split` is accepted for the sake of a common
    call: random tokens have no held-out part, so every split is the same. UserError where T < 3, the prompts
    do not fit the model's context, or the vocabulary is too small.
    """
    if corruption not in CORRUPTIONS:
        raise unknown("induction corruption", corruption, list(CORRUPTIONS))
    if n < 1:
        raise UserError(f"n must be at least 1, got {n}")
    low, high = _periods(period)
    codec, rng = Codec.of(model), random.Random(f"induction:{seed}")
    first = _bos(codec, bos, bos_id)
    if 2 * high - 1 + len(first) > model.geometry.n_ctx:
        raise UserError(
            f"period {high} makes prompts of {2 * high - 1 + len(first)} tokens, "
            f"the model's context holds {model.geometry.n_ctx}"
        )
    tokens = codec.ordinary()
    tokens = [t for t in tokens if t not in first]
    if len(tokens) < high + 1:
        raise UserError(f"period {high} needs {high + 1} different tokens, the vocabulary has {len(tokens)}")
    made = [_sequences(rng, tokens, rng.randint(low, high), first, corruption) for _ in range(n)]
    clean, corrupt = (
        Prompts.of(rows, labels={k: torch.tensor([m.labels[k] for m in made]) for k in made[0].labels})
        for rows in ([m.clean for m in made], [m.corrupt for m in made])
    )
    task = Task.of(
        "induction", clean, corrupt, Answers.of([[[m.right]] for m in made]), Answers.of([[[m.wrong]] for m in made]),
        counterfactual=corruption == "successor",
        meta={"seed": seed, "split": split, "period": [low, high], "corruption": corruption, "bos": bos},
    )  # fmt: skip
    return task.to(model.device)


def _sequences(rng: random.Random, tokens: Sequence[int], period: int, first: list[int], corruption: str) -> Sequences:
    *segment, other = rng.sample(tokens, period + 1)
    prev, target = period - 2, period - 1
    changed = list(segment)
    changed[target if corruption == "successor" else prev] = other
    second, shift = segment[:-1], len(first)
    # where nothing can be copied, the rival answer is a token the model has seen, not one it never has
    rival = other if corruption == "successor" else segment[rng.randrange(period - 2)]
    labels = {"PREV": shift + prev, "TARGET": shift + target, "SECOND": shift + period}
    labels["END"] = shift + 2 * period - 2
    return Sequences(first + segment + second, first + changed + second, segment[target], rival, labels)


def _periods(period: int | Sequence[int]) -> tuple[int, int]:
    pair = [period, period] if isinstance(period, int) else list(period)
    if len(pair) != 2 or not all(isinstance(p, int) for p in pair) or not 3 <= pair[0] <= pair[1]:
        raise UserError(f"period must be a whole number of at least 3, or a pair [least, most], got {period!r}")
    return pair[0], pair[1]


def _bos(codec: Codec, bos: bool, bos_id: int | None) -> list[int]:
    if not bos:
        return []
    return [bos_id] if bos_id is not None else codec.with_bos([], True)
