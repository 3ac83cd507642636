"""Position-aware circuits: spans, equality with ordinary circuits, scores against finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from interp.circuits.by_label import LabelRunner, label_mask, span_names, spans
from interp.circuits.random_circuits import random_circuit
from interp.circuits.running import Evaluator
from interp.hooks.prompts import Prompts
from interp.interventions.sources import Recipe
from interp.registry import UserError
from tests.interventions.pairs import random_task
from tests.tiny import SUMMING_FURTHER, refuses_ungrouped, tiny

KINDS = ["gpt2", "llama", "neox", "native:attn_only", "native:rotary"]


def test_spans_run_from_label_to_label() -> None:
    labels = {"B": torch.tensor([4, 1]), "A": torch.tensor([2, 3])}
    prompts = Prompts.of([[1, 2, 3, 4, 5, 6], [7, 8, 9, 1, 2]], labels=labels, pad_side="left")
    names = span_names(prompts)
    assert names == ("start", "A", "B") or names == ("start", "B", "A")  # both stand at 2.5 on average
    assert spans(prompts, ("start", "A", "B")).tolist() == [[0, 0, 1, 1, 2, 2], [0, 0, 2, 2, 1, 1]]


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_the_same_edges_in_every_span_are_an_ordinary_circuit(kind: str, ungrouped: bool) -> None:
    model = tiny(kind)
    if ungrouped and refuses_ungrouped(model):
        return
    if model.geometry.post_norm:
        with pytest.raises(UserError, match="do not run models with post-norms"):
            LabelRunner.prepare(model, random_task(model))
        return
    if kind not in KINDS and not model.geometry.experts:  # transformers multiplies experts in float32 at most
        model.module.double()  # with much set to zero, norms divide by little: float32's rounding would hide errors
    task = random_task(model)
    for ablation in ("corrupt", "zero"):
        runner = LabelRunner.prepare(model, task, ablation=ablation, ungrouped=ungrouped)  # type: ignore[arg-type]
        evaluator = Evaluator.of(model, task, recipe=Recipe(ablation), ungrouped=ungrouped)
        circuit = random_circuit(evaluator.graph, 40, np.random.default_rng(0))
        mask = circuit.mask[:, :, None, None] & label_mask(runner.graph, len(runner.names))
        torch.testing.assert_close(runner.value(mask), evaluator.values([circuit])[0], atol=1e-5, rtol=0)
        full = label_mask(runner.graph, len(runner.names))
        torch.testing.assert_close(runner.value(full), evaluator.whole, atol=1e-5, rtol=0)


def test_an_edge_across_spans_is_what_the_reader_sees_of_the_other_span() -> None:
    """Only the query span's keys and values change: an edge read in `start` moves nothing that END reads directly."""
    model = tiny("native:attn_only_none", layers=1)
    runner = LabelRunner.prepare(model, random_task(model), ablation="zero")
    full = label_mask(runner.graph, len(runner.names))
    slot = next(i for i, s in enumerate(runner.graph.slots) if str(s) == "a0.h1<v>")
    whole, moved = runner.value(full), {}
    for t, name in enumerate(runner.names):
        mask = full.clone()
        mask[0, slot, :, t] = False
        moved[name] = float((runner.value(mask) - whole).abs().max())
    assert moved["END"] > 1e-3
    assert moved["start"] < 1e-6
    assert moved["D"] < 1e-6


@pytest.mark.parametrize("kind", ["gpt2", "native:attn_only"])
def test_scores_are_the_slope_of_closing_a_gate(kind: str) -> None:
    model = tiny(kind)
    module = model.module.double()
    assert module is model.module
    runner = LabelRunner.prepare(model, random_task(model), ablation="mean")
    scores, full = runner.scores(), label_mask(runner.graph, len(runner.names)).double()
    assert scores.isfinite().all()
    chosen = scores.abs().flatten().argsort(descending=True)[:40:5]
    for index in chosen.tolist():
        gates = full.clone().flatten()
        gates[index] = 1 - 1e-5
        slope = (runner.value(full).mean() - runner.value(gates.view_as(full)).mean()) / 1e-5
        assert float(scores.flatten()[index]) == pytest.approx(float(slope), rel=1e-3, abs=1e-6)


def test_the_best_edges() -> None:
    model = tiny("gpt2")
    runner = LabelRunner.prepare(model, random_task(model), ablation="corrupt")
    found = runner.circuit(30)
    assert len(found) == len(found.edges) == 30
    assert found.scores is not None
    kept = found.scores[found.mask]
    dropped = found.scores[~found.mask & label_mask(runner.graph, len(runner.names))]
    assert kept.min() >= dropped.max()
    assert all(s == t for e, s, t in found.edges if e.dst.part not in ("k", "v"))
    assert found.plain().sum() <= 30


def test_means_are_over_the_span() -> None:
    """Where every token of a span writes the same, its mean is that; a prompt without its label is refused."""
    model = tiny("gpt2")
    task = random_task(model)
    runner = LabelRunner.prepare(model, task, ablation="mean")
    ablated = runner.ablated.input
    for s in range(len(runner.names)):
        here = ablated[runner.span == s]
        assert (here - here[0]).abs().max() < 1e-6
    run = model.run(task.corrupt, capture="L0.resid_pre")["L0.resid_pre"]
    theirs = spans(task.corrupt, runner.names)
    own = run[(theirs == 2) & task.corrupt.mask].mean(0)
    torch.testing.assert_close(ablated[runner.span == 2][0], own, atol=1e-5, rtol=0)
    lacking = replace(task, clean=replace(task.clean, labels={"D": torch.tensor([3, -1, 3])}))
    with pytest.raises(UserError, match="prompt 1 has no token 'D'"):
        LabelRunner.prepare(model, lacking)
    with pytest.raises(UserError, match="carry labels"):
        LabelRunner.prepare(model, replace(task, clean=replace(task.clean, labels={})))
    with pytest.raises(UserError, match="post-norms"):
        LabelRunner.prepare(tiny("gemma2"), random_task(tiny("gemma2")))
