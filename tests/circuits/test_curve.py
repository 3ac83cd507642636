"""The faithfulness curve and its areas, random circuits, disjoint splits, agreement with the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.circuits.curve import SHARES, cmd, cpr, edges_at, faithfulness_curve
from interp.circuits.random_circuits import random_circuits
from interp.circuits.roc import agreement, auroc, roc
from interp.circuits.running import Evaluator
from interp.circuits.splits import prompt_digests, require_disjoint
from interp.circuits.values import Circuit, edge_table
from interp.graph import Graph
from interp.interventions.sources import Recipe
from interp.registry import UserError
from tests.interventions.pairs import random_task
from tests.tiny import tiny

LENGTHS = (9, 7, 8, 9, 6, 7)


def test_known_areas() -> None:
    constant, line = [0.28] * len(SHARES), list(SHARES)
    assert cpr(SHARES, constant) == pytest.approx(0.27972, abs=1e-9)
    assert cmd(SHARES, constant) == pytest.approx(0.71928, abs=1e-9)
    assert cpr(SHARES, line) == pytest.approx(0.4999995, abs=1e-9)
    assert cmd(SHARES, line) == pytest.approx(0.4990005, abs=1e-9)
    # above 1 counts for CPR and against CMD
    assert (cpr([0.0, 1.0], [1.5, 1.5]), cmd([0.0, 1.0], [1.5, 1.5])) == (1.5, 0.5)
    with pytest.raises(UserError, match="rising shares"):
        cpr([0.1, 0.1], [0.0, 1.0])


def test_shares_become_whole_numbers_downwards() -> None:
    assert [edges_at(k, 262) for k in SHARES] == [0, 0, 1, 2, 5, 13, 26, 52, 131, 262]
    with pytest.raises(UserError, match=r"between 0 and 1, got 1\.5"):
        edges_at(1.5, 10)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("ungrouped", [False, True])
def test_the_curve_is_that_of_its_circuits_run_one_by_one(kind: str, ungrouped: bool) -> None:
    model = tiny(kind)
    evaluator = Evaluator.of(model, random_task(model, LENGTHS), ungrouped=ungrouped)
    graph = evaluator.graph
    scores = edge_table(graph, torch.randn(len(graph.edges), generator=torch.Generator().manual_seed(1)))
    curve = faithfulness_curve(evaluator, scores)
    assert [len(c) for c in curve.circuits] == sorted(len(c) for c in curve.circuits)
    assert curve.f[-1] == pytest.approx(1.0, abs=1e-5)
    assert curve.f[0] == pytest.approx(0.0, abs=1e-5)  # int(0.001 · 110) = 0 edges
    gap = (evaluator.whole - evaluator.nothing).mean()
    for circuit, f in zip(curve.circuits, curve.f, strict=True):
        one = evaluator.values([circuit])[0]
        assert f == pytest.approx(float(((one - evaluator.nothing).mean()) / gap), abs=1e-5)
    assert curve.cpr == pytest.approx(float(np.trapezoid(curve.f, SHARES)))
    areas = curve.areas()
    for name in ("cpr", "cmd"):
        value, low, high = areas[name]
        assert low < value < high
    rows = curve.rows()
    assert [r["x"] for r in rows if r["series"] == "faithfulness"] == list(SHARES)


def test_f_is_null_where_the_ablation_changes_nothing() -> None:
    model = tiny("gpt2")
    task = random_task(model, LENGTHS)
    same = task.clean
    from dataclasses import replace

    evaluator = Evaluator.of(model, replace(task, corrupt=same))
    ratio = evaluator.faithfulness(evaluator.values([Circuit.full(evaluator.graph)]))
    assert np.isnan(ratio.value[0])
    assert ratio.reason[0] == "clean and corrupt coincide"


def test_a_circuit_of_another_graph_is_refused() -> None:
    model = tiny("llama")
    evaluator = Evaluator.of(model, random_task(model))
    with pytest.raises(UserError, match="of another graph"):
        evaluator.values([Circuit.full(Graph(model.geometry, ungrouped=True))])
    with pytest.raises(UserError, match="belongs to another model"):
        evaluator.values([Circuit.full(Graph(tiny("gpt2").geometry))])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
def test_random_circuits_have_the_size_and_are_connected(kind: str) -> None:
    graph = Graph(tiny(kind).geometry)
    rng = np.random.default_rng(0)
    for edges in (0, 1, 5, 40, len(graph.edges)):
        drawn = random_circuits(graph, edges, 10, rng)
        assert {len(c) for c in drawn} == {edges}
        assert all(c.pruned() == c for c in drawn)
    assert len({c.mask.numpy().tobytes() for c in random_circuits(graph, 20, 20, rng)}) == 20
    again = random_circuits(graph, 20, 3, np.random.default_rng(5))
    assert again == random_circuits(graph, 20, 3, np.random.default_rng(5))
    with pytest.raises(UserError, match="asked of a graph that has"):
        random_circuits(graph, 999, 1, rng)


def test_discovery_and_evaluation_may_not_share_prompts() -> None:
    model = tiny("gpt2")
    task = random_task(model, LENGTHS)
    one, two = task.split(0.5)
    require_disjoint(one, two)
    with pytest.raises(UserError, match=r"the first is prompt 0.*used for discovery"):
        require_disjoint(task, two)
    with pytest.raises(UserError, match="1 of the"):
        require_disjoint(prompt_digests(two)[1:2], two)


def test_agreement_with_the_truth() -> None:
    truth = np.array([True, True, False, False, False])
    assert auroc(np.array([5.0, 4.0, 3.0, 2.0, 1.0]), truth) == 1.0
    assert auroc(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), truth) == 0.0
    assert auroc(np.zeros(5), truth) == 0.5
    assert auroc(np.array([5.0, 1.0, 3.0, 2.0, 1.0]), truth) == pytest.approx((3 + 0.5) / 6)
    assert np.isnan(auroc(np.zeros(5), np.ones(5, dtype=bool)))
    got = agreement(np.array([5.0, 1.0, 3.0, 2.0, 1.0]), truth, np.random.default_rng(0))
    assert (got.precision, got.recall, got.true, got.items) == (0.5, 0.5, 2, 5)
    tied = agreement(np.array([0.0, 0.0, 0.0, 0.0, 0.0]), truth, np.random.default_rng(0))
    assert tied.precision == pytest.approx(0.4)  # two of five places at random
    many = np.arange(40.0)
    one = agreement(many, many > 19, np.random.default_rng(0))
    assert (one.auroc, one.low, one.high) == (1.0, 1.0, 1.0)
    x, y = roc(np.array([5.0, 1.0, 3.0, 2.0, 1.0]), truth)
    assert x.tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 1])
    assert y.tolist() == pytest.approx([0, 0.5, 0.5, 0.5, 1])
    assert float(np.trapezoid(y, x)) == pytest.approx(auroc(np.array([5.0, 1.0, 3.0, 2.0, 1.0]), truth))
    with pytest.raises(UserError, match="not finite"):
        agreement(np.array([np.nan, 1.0]), np.array([True, False]), np.random.default_rng(0))


def test_the_recipe_stands_in_the_table() -> None:
    model = tiny("gpt2")
    about = Evaluator.of(model, random_task(model), recipe=Recipe("zero", seed=3)).about()
    assert (about["ablation"], about["granularity"], about["components"], about["seed"]) == (
        "zero",
        "edge",
        "grouped",
        3,
    )
