"""Exact edge patching against brute force, against running circuits, and against path patching."""

from __future__ import annotations

import pytest
import torch

import tests.interventions.pairs as pairs
from interp.graph import Edge, Graph
from interp.hooks import edits
from interp.hooks.values import Run
from interp.interventions.circuit import circuit_effects
from interp.interventions.edges import edge_effects
from interp.interventions.paths import iterated, path_effects
from interp.interventions.plan import Options
from interp.interventions.sources import Recipe
from interp.models.model import Model
from interp.registry import UserError
from interp.results.rowlog import RowLog
from tests.tiny import SUMMING_FURTHER, refuses_ungrouped, tiny

UNNORMED = [param for param in SUMMING_FURTHER if not tiny(str(param.values[0])).geometry.post_norm]
"""What sublayers write is added as it is."""

KINDS = ["gpt2", "llama", "neox", "neox_sequential", "gemma2", "native:attn_only"]


def delta(model: Model, edge: Edge, base: Run, other: Run) -> torch.Tensor:
    """Change of the residual when the edge's source writes the other run's contribution."""
    node = edge.src
    if node.kind == "input":
        return other["L0.resid_pre"] - base["L0.resid_pre"]
    if node.kind == "mlp":
        return other[f"L{node.layer}.mlp_out"] - base[f"L{node.layer}.mlp_out"]
    change = (other[f"L{node.layer}.head_out"] - base[f"L{node.layer}.head_out"])[:, :, node.head]
    if not model.geometry.post_norm:
        return change
    norm, pre = model.net.layers[node.layer].post1, base[f"L{node.layer}.attn_out_pre"]
    return norm(pre + change) - norm(pre)


@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_every_edge_equals_adding_the_change_to_the_readers_own_input(kind: str) -> None:
    model = tiny(kind)
    task, graph, g = pairs.random_task(model), Graph(model.geometry), model.geometry
    sites = ["head_out", "resid_pre"] + ["mlp_out"] * g.mlp + ["attn_out_pre"] * g.post_norm
    base, other = (model.run(p, capture=sites) for p in (task.clean, task.corrupt))
    effects = edge_effects(model, task)
    moved = 0
    for edge, value in zip(graph.edges, effects.values, strict=True):
        change, slot = delta(model, edge, base, other), edge.dst
        if slot.node.kind == "logits":
            edit = edits.add(f"L{g.layers - 1}.resid_post", change)
        elif slot.node.kind == "mlp":
            edit = edits.add(f"L{slot.node.layer}.mlp_in", change)
        else:
            unit = {"head" if slot.part == "q" else "kv_head": slot.node.head}
            edit = edits.add(f"L{slot.node.layer}.{slot.part}_input", change[:, :, None], **unit)
        plain = pairs.logit_gap(model.run(task.clean, edits=edit).logits, task.clean)
        torch.testing.assert_close(value, plain, atol=1e-5, rtol=0)
        moved += bool((value - effects.baseline).abs().max() > 1e-6)
    assert moved > len(graph.edges) / 4


@pytest.mark.parametrize(("kind", "ungrouped"), [*((kind, False) for kind in KINDS), ("llama", True), ("gemma2", True)])
def test_an_edge_equals_the_circuit_that_lacks_only_it(kind: str, ungrouped: bool) -> None:
    model = tiny(kind)
    if ungrouped and refuses_ungrouped(model):
        return
    task, graph = pairs.random_task(model), Graph(model.geometry, ungrouped)
    names = [str(e) for e in graph.edges]
    effects = edge_effects(model, task, ungrouped=ungrouped)
    some = names[::3]
    circuits = circuit_effects(model, task, [set(names) - {n} for n in some], ungrouped=ungrouped)
    torch.testing.assert_close(circuits.values, effects.values[::3], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("ablation", "ungrouped"), [("corrupt", False), ("corrupt", True), ("mean", False), ("zero", True)]
)
@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_full_and_empty_circuits(kind: str, ungrouped: bool, ablation: str) -> None:
    model = tiny(kind)
    if ungrouped and refuses_ungrouped(model):
        return
    task = pairs.random_task(model)
    every = [str(e) for e in Graph(model.geometry, ungrouped).edges]
    got = circuit_effects(model, task, [every, []], recipe=Recipe(ablation), ungrouped=ungrouped)
    torch.testing.assert_close(got.values[0], got.clean, atol=1e-5, rtol=0)
    if ablation == "corrupt":
        torch.testing.assert_close(got.values[1], got.corrupt, atol=1e-5, rtol=0)
    else:
        assert (got.values[1] - got.clean).abs().max() > 1e-3
    kl = circuit_effects(model, task, [every], "kl", recipe=Recipe(ablation), ungrouped=ungrouped)
    assert kl.values.abs().max() < 1e-5


@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_circuits_run_the_same_from_the_start_and_from_the_first_change(kind: str) -> None:
    model = tiny(kind)
    task, graph = pairs.random_task(model, (9, 9, 9), differ=5), Graph(model.geometry)
    generator = torch.Generator().manual_seed(0)
    shape = (5, len(graph.sources), len(graph.slots))
    masks = torch.rand(shape, generator=generator) < 0.5
    quick = circuit_effects(model, task, masks)
    slow = circuit_effects(model, task, masks, options=Options(prefix=False, pack=1))
    torch.testing.assert_close(quick.values, slow.values, atol=1e-5, rtol=0)
    assert (quick.values - quick.clean).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_one_receiver_and_frozen_mlps_is_an_edge(kind: str) -> None:
    model = tiny(kind)
    task, graph = pairs.random_task(model), Graph(model.geometry)
    by_name = dict(zip(map(str, graph.edges), edge_effects(model, task).values, strict=True))
    last = model.geometry.kv_heads - 1
    receivers = ["a1.h1<q>", "a1.h0<k>", f"a1.h{min(1, last)}<v>", "logits"] + ["m1"] * model.geometry.mlp
    for receiver in receivers:
        got = path_effects(model, task, graph.sources, [receiver], mlps="freeze")
        for node, value in zip(graph.sources, got.values, strict=True):
            want = by_name.get(f"{node}->{receiver}", got.baseline)
            torch.testing.assert_close(value, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_recomputed_mlps_and_several_receivers_against_two_plain_runs(kind: str) -> None:
    model = tiny(kind)
    task = pairs.random_task(model)
    donor = model.run(task.corrupt, capture="z")
    frozen = [edits.freeze("z"), edits.patch("L0.z", donor, head=1)]
    recorded = model.run(task.clean, edits=frozen, capture=["q", "k"])
    together = [edits.patch("L1.q", recorded, head=1), edits.patch("L1.k", recorded, kv_head=0)]
    plain = pairs.logit_gap(model.run(task.clean, edits=together).logits, task.clean)
    got = path_effects(model, task, ["a0.h1"], ["a1.h1<q>", "a1.h0<k>"])
    torch.testing.assert_close(got.values[0], plain, atol=1e-5, rtol=0)
    assert (got.values[0] - got.baseline).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "neox_sequential", *UNNORMED])
def test_all_edges_into_a_query_equal_replacing_that_query(kind: str) -> None:
    """Every sender at once: the slot then reads the other run's whole residual."""
    model = tiny(kind)
    task, graph = pairs.random_task(model), Graph(model.geometry)
    donor = model.run(task.corrupt, capture="q")
    wholesale = model.run(task.clean, edits=edits.patch("L1.q", donor, head=2))
    kept = [str(e) for e in graph.edges if str(e.dst) != "a1.h2<q>"]
    got = circuit_effects(model, task, [kept])
    torch.testing.assert_close(got.values[0], pairs.logit_gap(wholesale.logits, task.clean), atol=1e-5, rtol=0)


def test_iterated_rounds_go_back_from_the_logits() -> None:
    model = tiny("gpt2")
    got = iterated(model, pairs.random_task(model), rounds=2, top=6)
    receivers = [k["dst"] for k in got.keys]
    assert receivers[0] == "logits"
    assert any("<q>" in r for r in receivers)
    assert len(got.table()) == len(got)


def test_edges_resume_from_their_log(tmp_path: object) -> None:
    model = tiny("gpt2")
    task = pairs.random_task(model)
    whole = edge_effects(model, task)
    log = RowLog(tmp_path / "rows.jsonl")  # type: ignore[operator]
    edge_effects(model, task, [str(e) for e in Graph(model.geometry).edges][:40], log=log)
    assert len(log) == 40
    resumed = edge_effects(model, task, log=log)
    assert len(log) == 110
    torch.testing.assert_close(resumed.values, whole.values, atol=1e-6, rtol=0)


def test_refused() -> None:
    model = tiny("gpt2")
    task = pairs.random_task(model)
    with pytest.raises(UserError, match=r"no receiver a9\.h0<q>"):
        path_effects(model, task, None, ["a9.h0<q>"])
    with pytest.raises(UserError, match=r"no sender a0\.h9"):
        path_effects(model, task, ["a0.h9"])
    with pytest.raises(UserError, match="norms the stream itself"):
        edge_effects(tiny("native:post"), pairs.random_task(tiny("native:post")))
