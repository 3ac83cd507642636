"""Faults 15, 18 and 36 as cases: whole and empty circuits, a prompt against itself, scores of discovery methods."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from interp.attribution.methods import attribute
from interp.circuits.discover import discover
from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit, per_edge
from interp.interventions.sources import Recipe
from interp.metrics import get_metric
from interp.models.load import load_model
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Task
from tests.interventions.pairs import random_task
from tests.tiny import FIRST, SUMMING_FURTHER, tiny

REST = [pytest.param(kind, marks=pytest.mark.long) for kind in FIRST if kind != "llama"]
KINDS = ["gpt2", "llama", "neox", "gemma2", pytest.param("neox_sequential", marks=pytest.mark.long), *SUMMING_FURTHER]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ablation", ["zero", "mean", "resample", "corrupt"])
def test_fault_15_the_whole_circuit_is_the_model(kind: str, ablation: str) -> None:
    model = tiny(kind)
    evaluator = Evaluator.of(model, random_task(model, (9, 9, 9)), "kl", recipe=Recipe(ablation))
    assert evaluator.whole.abs().max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_fault_15_the_empty_circuit_is_the_corrupt_run(kind: str) -> None:
    model = tiny(kind)
    task = random_task(model)
    evaluator = Evaluator.of(model, task, "logit_diff", recipe=Recipe("corrupt"))
    got = evaluator.values([Circuit.empty(evaluator.graph)])[0]
    run = model.run(task.corrupt)
    want = get_metric("logit_diff")(run.logits, task)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def against_itself(task: Task) -> Task:
    return Task.of("itself", task.clean, task.clean, task.right, task.wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["eap", "eap_ig_inputs", "eap_ig_activations", "clean_corrupt", "relp", "atp"])
def test_fault_18_a_prompt_against_itself_is_exactly_zero(kind: str, method: str) -> None:
    model = tiny(kind)
    if method == "relp" and model.geometry.experts:
        with pytest.raises(UserError, match=r"routed|experts"):
            attribute(model, against_itself(random_task(model)), method)
        return
    scores = attribute(model, against_itself(random_task(model)), method)
    assert not scores.values.any()


def test_fault_18_train_mode_with_dropout_is_forced_to_eval_and_restored() -> None:
    config = GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=50, n_positions=16, resid_pdrop=0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = GPT2LMHeadModel(config)
    model = load_model(module.train())
    assert isinstance(model, Model)
    task = random_task(model)
    one, two = (attribute(model, task, "eap").values for _ in range(2))
    assert torch.equal(one, two)
    assert module.training
    assert not attribute(model, against_itself(task), "eap").values.any()


@pytest.mark.parametrize("method", ["acdc", "eap", "relp", "exact"])
@pytest.mark.parametrize("kind", ["llama", *REST, *SUMMING_FURTHER])
def test_fault_36_scores_are_finite_and_kept_edges_rank_first(kind: str, method: str) -> None:
    model = tiny(kind)
    if method == "relp" and model.geometry.experts:
        pytest.skip("routed MLPs have no RelP, and say so (fault 18)")
    found = discover(model, random_task(model), method, size=20)
    scores, kept = found.circuit.scores, per_edge(found.circuit.graph, found.circuit.mask)
    assert scores is not None
    assert scores.isfinite().all()
    first = [found.circuit.graph.edges.index(e) for e in found.ranking[: int(kept.sum())]]
    assert kept[first].all()
