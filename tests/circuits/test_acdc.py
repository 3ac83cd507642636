"""ACDC against one candidate at a time, and the running circuit behind it against whole runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from interp.circuits.acdc import Acdc, Search, acdc, slots_in_order
from interp.circuits.live import Live
from interp.circuits.random_circuits import random_circuit
from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit, per_edge
from interp.graph import Edge
from interp.interventions.plan import Options
from interp.interventions.sources import Recipe
from interp.interventions.sweep import Sides
from interp.registry import UserError
from interp.results.rowlog import RowLog
from tests.interventions.pairs import random_task
from tests.tiny import SUMMING_FURTHER, refuses_ungrouped, tiny

KINDS = [
    "gpt2", "llama", "neox", "neox_sequential", "gemma2", "native:none", "native:attn_only", "native:qk",
    "native:bidirectional", "native:rotary",
]  # fmt: skip


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_a_circuit_kept_running_equals_running_it(kind: str, ungrouped: bool) -> None:
    model = tiny(kind)
    if ungrouped and refuses_ungrouped(model):
        return
    for lengths, side in (((9, 7, 8), "left"), ((9, 9), "right")):
        evaluator = Evaluator.of(model, random_task(model, lengths, differ=5, side=side), ungrouped=ungrouped)
        graph = evaluator.graph
        target = random_circuit(graph, 40, np.random.default_rng(0))
        live = Live(evaluator.runner)
        torch.testing.assert_close(live.metric, evaluator.whole, atol=1e-5, rtol=0)
        # in two moves, each beside a variant that changes nothing
        for slots in (range(0, len(graph.slots), 2), range(1, len(graph.slots), 2)):
            rows = {s: torch.stack([live.mask[:, s], target.mask[:, s]]) for s in slots}
            changes = live.metric_with(rows)
            torch.testing.assert_close(changes.metric[0], live.metric, atol=1e-5, rtol=0)
            live.commit(rows, changes, 1)
        torch.testing.assert_close(live.metric, evaluator.values([target])[0], atol=1e-5, rtol=0)
        assert (live.metric - evaluator.whole).abs().max() > 1e-3


def one_by_one(evaluator: Evaluator, tau: float) -> tuple[Circuit, list[float]]:
    """The algorithm as it is written down, every candidate a whole run."""
    graph = evaluator.graph
    mask = Circuit.full(graph).mask.clone()

    def loss() -> float:
        return float(evaluator.values([Circuit(graph, mask)])[0].double().mean())

    now, changes = loss(), []
    for slot, parents in slots_in_order(graph):
        readers = [graph.source_index[n] for n in graph.readers(graph.slots[slot]) if n.kind != "logits"]
        idle = bool(readers) and not bool(mask[readers].any())
        for u in parents:
            mask[u, slot] = False
            after = now if idle else loss()
            changes.append(after - now)
            if idle or after - now < tau:
                now = after
            else:
                mask[u, slot] = True
    return Circuit(graph, mask), changes


@pytest.mark.parametrize(
    ("kind", "tau", "ungrouped"),
    [("native:none", 0.05, False), ("llama", 0.003, True), ("llama", 0.003, False), ("gemma2", 0.0005, False),
     ("neox", 0.003, False)],
)  # fmt: skip
def test_equals_one_candidate_at_a_time(kind: str, tau: float, ungrouped: bool) -> None:
    model = tiny(kind)
    if ungrouped and refuses_ungrouped(model):
        return
    task = random_task(model, (9, 7, 8), differ=4)
    found = acdc(model, task, tau, ungrouped=ungrouped)
    want, changes = one_by_one(Evaluator.of(model, task, "kl", ungrouped=ungrouped), tau)
    assert found.circuit.mask.equal(want.mask)
    assert 4 < len(found.circuit) < len(found.circuit.graph.edges) / 2
    assert [s.change for s in found.steps] == pytest.approx(changes, abs=1e-5)
    alone = acdc(model, task, tau, ungrouped=ungrouped, options=Options(pack=1))
    assert alone.circuit.mask.equal(want.mask)
    assert alone.rows <= found.rows
    again = Evaluator.of(model, task, "kl", ungrouped=ungrouped).values([found.circuit])[0]
    assert found.final == pytest.approx(float(again.mean()), abs=1e-5)


def ranked(found: Acdc) -> None:
    graph, scores = found.circuit.graph, found.circuit.scores
    assert scores is not None
    kept, flat = per_edge(graph, found.circuit.mask), per_edge(graph, scores)
    assert flat.isfinite().all()
    assert flat[kept].min() >= found.tau > flat[~kept].max()


@pytest.mark.parametrize("order", ["late", "early", "random"])
@pytest.mark.parametrize("ablation", ["corrupt", "mean", "zero"])
def test_scores_are_finite_and_kept_edges_rank_highest(ablation: str, order: str) -> None:
    model = tiny("native:none")
    found = acdc(model, random_task(model), 0.05, order=order, recipe=Recipe(ablation, seed=1))  # type: ignore[arg-type]
    assert 0 < len(found.circuit) < len(found.steps) == 110
    ranked(found)
    for step in found.steps:
        assert step.kept == (step.change >= found.tau)
        assert step.tried or step.change == 0.0


def test_losses_made_of_other_metrics() -> None:
    model = tiny("native:none")
    task = random_task(model)
    for loss in ("gap", "absolute"):
        found = acdc(model, task, 0.1, "logit_diff", loss=loss)  # type: ignore[arg-type]
        ranked(found)
        evaluator = Evaluator.of(model, task)
        gap = float((evaluator.whole - evaluator.values([found.circuit])[0]).double().mean())
        assert found.final == pytest.approx(gap if loss == "gap" else abs(gap), abs=1e-4)
        assert found.start == pytest.approx(0.0, abs=1e-5)


def test_a_target_size() -> None:
    model = tiny("native:none")
    search = Search.prepare(Sides(model, random_task(model), "kl"))
    found = search.to_size(20)
    assert 10 < len(found.circuit) <= 20
    ranked(found)
    assert search.run(found.tau).circuit == found.circuit


def test_resumes_after_any_decision(tmp_path: Path) -> None:
    model = tiny("native:none")
    task = random_task(model)
    whole = acdc(model, task, 0.05)
    for stop in (1, 37, 70, 109):
        log = RowLog(tmp_path / f"rows{stop}.jsonl")
        for s in whole.steps[:stop]:
            log.add({"edge": str(s.edge)}, {"change": s.change, "loss": s.loss, "kept": s.kept, "tried": s.tried})
        resumed = acdc(model, task, 0.05, log=log)
        assert len(log) == 110
        assert resumed.circuit.mask.equal(whole.circuit.mask)
        assert [s.change for s in resumed.steps] == pytest.approx([s.change for s in whole.steps], abs=1e-5)
        assert resumed.rows <= whole.rows


def test_every_edge_is_visited_once_from_the_output_back() -> None:
    for kind in ("gpt2", "llama", "neox"):
        graph = Evaluator.of(tiny(kind), random_task(tiny(kind))).graph
        for order in ("late", "early", "random"):
            seen = [Edge(graph.sources[u], graph.slots[s]) for s, us in slots_in_order(graph, order) for u in us]  # type: ignore[arg-type]
            assert sorted(map(str, seen)) == sorted(map(str, graph.edges))
        layers = [graph.slots[s].node.layer for s, _ in slots_in_order(graph)][1:]
        assert layers == sorted(layers, reverse=True)


def test_refused() -> None:
    model = tiny("gpt2")
    task = random_task(model)
    with pytest.raises(UserError, match="'logit_diff' is none: use kl, or loss=gap"):
        acdc(model, task, 0.1, "logit_diff")
    with pytest.raises(UserError, match="tau must be above 0"):
        acdc(model, task, 0.0)
    with pytest.raises(UserError, match="norms the stream itself"):
        acdc(tiny("native:post"), random_task(tiny("native:post")), 0.1)
