"""Terms of a circuit's run and of edges: they sum, agree with plain attribution, and with the edits they claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.attribution.direct import direct_logit_attribution
from interp.circuits.direct import circuit_terms, edge_terms, heads_of
from interp.circuits.direct_tables import circuit_table, edge_table
from interp.circuits.random_circuits import random_circuit
from interp.circuits.values import Circuit
from interp.graph import Graph
from interp.interventions.circuit import CircuitRunner
from interp.interventions.edges import edge_effects
from interp.interventions.sources import Recipe
from interp.interventions.sweep import Sides
from interp.models.model import Model
from interp.registry import UserError
from tests.interventions.pairs import random_task
from tests.tiny import SUMMING_FURTHER, refuses_ungrouped, tiny

KINDS = ["gpt2", "llama", "neox", "gemma2", "native:attn_only", "native:none"]


def runner(model: Model, ungrouped: bool = False, ablation: str = "corrupt") -> CircuitRunner:
    graph = Graph(model.geometry, ungrouped)
    return CircuitRunner.prepare(Sides(model, random_task(model), "logit_diff"), graph, Recipe(ablation))


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_terms_of_a_circuit_sum_to_its_run(kind: str, ungrouped: bool) -> None:
    model = tiny(kind)
    if ungrouped and refuses_ungrouped(model):
        return
    ready = runner(model, ungrouped)
    for seed, edges in ((0, 30), (1, 60)):
        circuit = random_circuit(ready.graph, edges, np.random.default_rng(seed))
        got = circuit_terms(ready, circuit)
        total = got.total
        if model.geometry.logit_cap:  # the two logits were capped one by one
            assert (total - got.logit_diff).abs().max() < 1.0
        else:
            torch.testing.assert_close(total, got.logit_diff, atol=1e-4, rtol=0)
        torch.testing.assert_close(got.logit_diff, ready.values(circuit.mask[None])[0], atol=1e-5, rtol=0)
        assert got.kept == tuple(circuit.mask[:, -1].tolist())


@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_the_whole_model_has_the_terms_of_plain_attribution(kind: str) -> None:
    model = tiny(kind)
    ready = runner(model)
    got = circuit_terms(ready, Circuit.full(ready.graph))
    plain = direct_logit_attribution(model, ready.sides.task)
    for i, node in enumerate(got.sources):
        if node.kind == "head":
            torch.testing.assert_close(got.terms[:, i], plain[f"L{node.layer}.H{node.head}"], atol=1e-4, rtol=0)
    torch.testing.assert_close(got.total, plain.total, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [*KINDS, *SUMMING_FURTHER])
def test_value_edges_sum_to_the_heads_terms(kind: str) -> None:
    """What the sources put through a head's values, and its biases, are the head's own term."""
    model = tiny(kind)
    if refuses_ungrouped(model):
        return
    task, graph = random_task(model), Graph(model.geometry, ungrouped=True)
    plain = direct_logit_attribution(model, task)
    sums = heads_of(edge_terms(model, task, ungrouped=True), graph)
    # without biases nothing else is in a head's term
    with torch.no_grad():
        for name, p in model.module.named_parameters():
            if name.endswith("bias"):
                p.zero_()
    bare = direct_logit_attribution(model, task)
    bare_sums = heads_of(edge_terms(model, task, ungrouped=True), graph)
    for layer in range(model.geometry.layers):
        for head in range(model.geometry.heads):
            want = bare[f"L{layer}.H{head}"]
            torch.testing.assert_close(bare_sums[layer, head], want, atol=1e-4, rtol=0)
    assert sums.shape == bare_sums.shape
    assert plain.terms.isfinite().all()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "native:attn_only", "native:none"])
def test_grouped_terms_are_sums_over_the_group_and_logit_edges_are_plain_terms(kind: str) -> None:
    model = tiny(kind)
    task = random_task(model)
    one, every = Graph(model.geometry), Graph(model.geometry, ungrouped=True)
    grouped = dict(zip(map(str, one.edges), edge_terms(model, task), strict=True))
    each = dict(zip(map(str, every.edges), edge_terms(model, task, ungrouped=True), strict=True))
    plain = direct_logit_attribution(model, task)
    for edge in one.edges:
        mine = grouped[str(edge)]
        if edge.dst.part == "v":
            parts = [each[f"{edge.src}->{n}<v>"] for n in one.readers(edge.dst)]
            torch.testing.assert_close(mine, torch.stack(parts).sum(0), atol=1e-5, rtol=0)
        elif edge.dst.node.kind == "logits" and edge.src.kind == "head":
            torch.testing.assert_close(mine, plain[f"L{edge.src.layer}.H{edge.src.head}"], atol=1e-4, rtol=0)
        elif edge.dst.node.kind != "logits":
            assert mine.isnan().all()


def test_an_edge_term_is_the_effect_of_ablating_the_edge_where_everything_is_linear() -> None:
    """Attention only, no norms: zeroing what a last-layer head's values read moves the metric by just that."""
    model = tiny("native:attn_only_none")
    task, graph = random_task(model), Graph(model.geometry)
    terms = dict(zip(map(str, graph.edges), edge_terms(model, task), strict=True))
    names = [str(e) for e in graph.edges if e.dst.part == "v" and e.dst.node.layer == 1]
    names += [str(e) for e in graph.edges if e.dst.node.kind == "logits"]
    effects = edge_effects(model, task, names, recipe=Recipe("zero"))
    for name, change in zip(names, effects.values - effects.baseline, strict=True):
        torch.testing.assert_close(terms[name], -change, atol=1e-4, rtol=0)


def test_tables() -> None:
    model = tiny("gpt2")
    task = random_task(model, (9, 7, 8, 9, 6))
    table = edge_table(model, task).frame
    assert len(table) == len(Graph(model.geometry).edges)
    queries = table[table["dst"].str.contains("<q>")]
    assert queries["score"].isna().all()
    assert queries["reason"].str.contains("no direct term").all()
    values = table[table["dst"].str.contains("<v>")]
    assert values["score"].notna().all()
    circuit = Circuit.of(Graph(model.geometry), ["input->a0.h1<v>", "a0.h1->logits", "input->logits"])
    part = edge_table(model, task, circuit=circuit).frame
    assert len(part) == 3
    ran = circuit_table(model, task, circuit).frame.set_index("site")
    assert ran.loc["total", "score"] == pytest.approx(ran.loc["logit_diff", "score"], abs=1e-4)
    members = circuit_table(model, task, circuit, "members").frame
    assert set(members["site"]) == {"embed", "pos_embed", "head_out"}
    outside = circuit_table(model, task, circuit, "complement").frame.set_index("site")
    assert outside.loc["logit_diff", "score"] != pytest.approx(ran.loc["logit_diff", "score"])


def test_refused() -> None:
    model = tiny("gpt2")
    kl = CircuitRunner.prepare(Sides(model, random_task(model), "kl"), Graph(model.geometry), Recipe())
    with pytest.raises(UserError, match="the logit difference only, got metric 'kl'"):
        circuit_terms(kl, Circuit.full(kl.graph))
    with pytest.raises(UserError, match="norms the stream itself"):
        edge_terms(tiny("native:post"), random_task(tiny("native:post")))
