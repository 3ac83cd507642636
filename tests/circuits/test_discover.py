"""Discovery by name: every method's scores are finite, and the edges it keeps rank above those it drops."""

from __future__ import annotations

import pytest
import torch

from interp.circuits.discover import Discovery, discover, method_names
from interp.circuits.masks import draw, open_share
from interp.circuits.values import per_edge
from interp.registry import UserError
from tests.interventions.pairs import random_task
from tests.tiny import tiny

METHODS = ["acdc", "masks", "eap", "eap_ig_inputs", "eap_ig_activations", "clean_corrupt", "relp", "exact"]


def check(found: Discovery) -> None:
    graph, scores = found.circuit.graph, found.circuit.scores
    assert scores is not None
    kept, flat = per_edge(graph, found.circuit.mask), per_edge(graph, scores)
    assert flat.isfinite().all()
    order = [graph.edges.index(e) for e in found.ranking]
    assert sorted(order) == list(range(len(graph.edges)))
    assert kept[order].int().diff().max() <= 0  # kept ones first
    sizes = flat[order].abs() if found.absolute else flat[order]
    n = int(kept.sum())
    for part in (sizes[:n], sizes[n:]):
        assert (part[:-1] >= part[1:]).all()


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_finite_and_kept_edges_rank_highest(method: str) -> None:
    model = tiny("native:none")
    settings = {"mask_steps": 30} if method == "masks" else {}
    found = discover(model, random_task(model), method, size=20, **settings)
    assert 0 < len(found.circuit) <= 20
    check(found)
    if method == "acdc":  # no selection after the scores: they alone say what is kept
        assert found.circuit.scores is not None
        kept, flat = (per_edge(found.circuit.graph, t) for t in (found.circuit.mask, found.circuit.scores))
        assert flat[kept].min() > flat[~kept].max()


@pytest.mark.parametrize(("selection", "absolute"), [("top", True), ("greedy", False), ("greedy", True)])
def test_selections(selection: str, absolute: bool) -> None:
    model = tiny("llama")
    task = random_task(model)
    found = discover(model, task, "eap", size=15, selection=selection, absolute=absolute, ungrouped=True)
    check(found)
    assert found.circuit.pruned() == found.circuit
    assert found.per_prompt is not None
    assert found.per_prompt.shape == (len(found.circuit.graph.edges), task.n)


def test_gates() -> None:
    log_alpha = torch.linspace(-4, 4, 5)[:, None].expand(5, 4000)
    uniform = torch.rand(1, 5, 4000, generator=torch.Generator().manual_seed(0))
    gates = draw(log_alpha, uniform)[0]
    assert gates.min() == 0.0
    assert gates.max() == 1.0
    # the expected share of gates that are not 0, by formula and by counting
    torch.testing.assert_close((gates > 0).float().mean(1), open_share(log_alpha[:, 0]), atol=0.03, rtol=0)


def test_masks_go_towards_the_target() -> None:
    model = tiny("native:none")
    found = discover(model, random_task(model), "masks", share=0.3, mask_steps=120)
    first, last = found.history[0], found.history[-1]
    assert first["open"] > 0.9
    assert last["target"] == pytest.approx(0.3, abs=0.01)
    assert last["open"] == pytest.approx(0.3, abs=0.1)
    again = discover(model, random_task(model), "masks", share=0.3, mask_steps=120)
    assert again.circuit == found.circuit


def test_refused() -> None:
    model = tiny("gpt2")
    task = random_task(model)
    assert set(METHODS) <= set(method_names())
    with pytest.raises(UserError, match="unknown discovery method 'eapp'; did you mean eap"):
        discover(model, task, "eapp")
    with pytest.raises(UserError, match="unknown setting of discover 'sizes'"):
        discover(model, task, "eap", sizes=3)
    with pytest.raises(UserError, match="tau is ACDC's"):
        discover(model, task, "eap", tau=0.1)
    with pytest.raises(UserError, match="999 edges asked"):
        discover(model, task, "eap", size=999)
    with pytest.raises(UserError, match="no gradient"):
        discover(model, task, "eap", metric="accuracy")
