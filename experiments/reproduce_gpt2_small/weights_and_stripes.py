"""Copy scores of the IOI heads, and induction scores on repeated random tokens.

Copy scores are of the tokens at IO and S1 of our own IOI prompts; the published ones are of a list of names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.reproduce_gpt2_small import facts
from experiments.reproduce_gpt2_small.measured import Measured, mean_of, need_heads, ranks

if TYPE_CHECKING:
    from interp.models.model import Model
    from interp.tasks.values import Task


def copying(model: Model, task: Task) -> Measured:
    """Copy scores of name movers, negative ones of negative name movers, and the mean of all heads."""
    from interp.weights.copying import copy_scores

    movers, negative = facts.IOI_HEADS["name mover"], facts.IOI_HEADS["negative name mover"]
    need_heads(model, [*movers, *negative])
    got = copy_scores(model, task.clean, ["IO", "S1"])
    found = {}
    for i, j in movers:
        one = mean_of(got.hit[:, i, j].double())
        found["copy score", facts.head_name((i, j))] = found["copy score, at least", facts.head_name((i, j))] = one
    for i, j in negative:
        found["negative copy score", facts.head_name((i, j))] = mean_of(got.negative[:, i, j].double())
    # block 0 has no copy score: it does not read what block 0 writes
    found["copy score", "mean of all heads"] = mean_of(got.hit[:, 1:].double().flatten(1).mean(1))
    return found


def induction(model: Model, scores: Any) -> Measured:
    """The induction score of each published head, with its rank among all heads."""
    need_heads(model, facts.INDUCTION_HEADS)
    grid = scores.scores["induction"]
    order = ranks(grid.mean(0).flatten().numpy())
    return {
        ("induction score", facts.head_name((i, j))): mean_of(grid[:, i, j], rank=order[i * grid.shape[2] + j])
        for i, j in facts.INDUCTION_HEADS
    }
