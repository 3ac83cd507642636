"""Fault 5 for every analysis on every family: prompts of 4 and 6 tokens in one batch, and each by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from interp.attribution.direct import direct_logit_attribution
from interp.attribution.lens import logit_lens
from interp.attribution.methods import attribute
from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit
from interp.hooks.prompts import Prompts
from interp.interventions.edges import edge_effects
from interp.interventions.paths import path_effects
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.tiny import HF_KINDS, tiny

ROWS = [([1, 2, 3, 4], [7, 8, 9, 10]), ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])]
SENDERS, SLOTS = ["a0.h1", "m0", "input"], ["a1.h2<q>", "logits"]
EDGES = ["input->a0.h1<q>", "a0.h2->a1.h0<k>", "m0->logits", "a1.h3->logits"]


def several_edges(model: Model, task: Task) -> Tensor:
    """Two circuits of a few edges, run."""
    evaluator = Evaluator.of(model, task)
    edges = [e for e in evaluator.graph.edges if str(e.src) in SENDERS]
    return evaluator.values([Circuit.of(evaluator.graph, part) for part in (edges, edges[::2])])


ANALYSES: dict[str, Callable[[Model, Task], Tensor]] = {
    "edge_effects": lambda model, task: (
        edge_effects(model, task, [e for e in EDGES if "->a1.h0<k>" not in e or model.geometry.kv_heads > 1]).values
    ),
    "path_effects": lambda model, task: path_effects(model, task, SENDERS, SLOTS).values,
    "circuits": several_edges,
    "eap": lambda model, task: attribute(model, task, "eap_ig_inputs").values,
    "atp": lambda model, task: attribute(model, task, "atp_star", "node").values,
    "relp": lambda model, task: attribute(model, task, "relp").values,
    "direct": lambda model, task: direct_logit_attribution(model, task, granularity="heads").terms.T,
    "lens": lambda model, task: logit_lens(model, task, metrics=["logit_diff"]).of("logit_diff"),
}
"""Each gives numbers per part and prompt."""
REFUSED = {
    "opt_post": {*ANALYSES} - {"atp", "lens"}, "mixtral": {"relp"}, "qwen2_moe": {"relp"}, "qwen3_moe": {"relp"},
}  # fmt: skip
"""Analyses that a kind's own structure rules out."""


def task_of(rows: list[tuple[list[int], list[int]]], side: str) -> Task:
    clean, corrupt = (Prompts.of([pair[i] for pair in rows], pad_side=side) for i in (0, 1))
    return Task.of("rows", clean, corrupt, Answers.of([[[3]]] * len(rows)), Answers.of([[[7]]] * len(rows)))


@pytest.mark.parametrize("analysis", ANALYSES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(k, marks=pytest.mark.long) for k in HF_KINDS if k != "llama")]
)
def test_batched_lengths_give_the_numbers_of_one_by_one(kind: str, side: str, analysis: str) -> None:
    model, run = tiny(kind), ANALYSES[analysis]
    if analysis in REFUSED.get(kind, ()):
        with pytest.raises(UserError):
            run(model, task_of(ROWS, side))
        return
    together = run(model, task_of(ROWS, side))
    for i, row in enumerate(ROWS):
        task = task_of([row], side)
        alone = run(model, task)
        scale = max(float(alone.abs().max()), 0.1)
        assert float((together[..., i] - alone[..., 0]).abs().max()) <= 1e-5 * scale
        assert float(alone.abs().max()) > 1e-4
