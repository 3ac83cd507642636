"""Circuits as values: sets of edges, pruning, selection by score."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.circuits.select import greedy, ranking, select, threshold, top
from interp.circuits.values import Circuit, edge_mask, edge_table, per_edge
from interp.graph import Graph, Node
from interp.hooks.geometry import Geometry
from interp.registry import UserError


def graph(layers: int = 2, heads: int = 2, kv_heads: int = 2, ungrouped: bool = False, **more: bool) -> Graph:
    sizes = {"d_model": 8, "d_head": 4, "d_mlp": 8, "d_vocab": 5, "n_ctx": 4}
    return Graph(Geometry(layers=layers, heads=heads, kv_heads=kv_heads, **sizes, **more), ungrouped)


GRAPHS = [graph(), graph(parallel=True), graph(kv_heads=1), graph(kv_heads=1, ungrouped=True), graph(mlp=False)]
"""Every kind of graph."""


@pytest.mark.parametrize("g", GRAPHS)
def test_masks_and_edges_are_one_thing(g: Graph) -> None:
    assert int(edge_mask(g).sum()) == len(g.edges)
    assert Circuit.full(g).edges == g.edges
    assert len(Circuit.empty(g)) == 0
    some = g.edges[::3]
    circuit = Circuit.of(g, some)
    assert circuit.edges == tuple(some)
    assert all(e in circuit for e in some)
    assert g.edges[1] not in circuit
    numbers = torch.arange(len(g.edges)).double()
    assert torch.equal(per_edge(g, edge_table(g, numbers)), numbers)
    scored = Circuit.full(g).with_scores(edge_table(g, numbers))
    assert scored.score(g.edges[5]) == 5.0


@given(st.data())
def test_set_operations_are_those_of_edge_sets(data: st.DataObject) -> None:
    g = data.draw(st.sampled_from(GRAPHS))
    chosen = st.sets(st.sampled_from(g.edges))
    a, b = data.draw(chosen), data.draw(chosen)
    left, right = Circuit.of(g, a), Circuit.of(g, b)
    assert set(left | right) == a | b
    assert set(left & right) == a & b
    assert set(left - right) == a - b
    assert set(~left) == set(g.edges) - a
    assert (left <= right) == (a <= b)
    assert (left == right) == (a == b)


@given(st.data())
def test_pruning_keeps_exactly_the_edges_on_a_path(data: st.DataObject) -> None:
    g = data.draw(st.sampled_from(GRAPHS))
    edges = data.draw(st.sets(st.sampled_from(g.edges), min_size=3))
    kept = set(Circuit.of(g, edges).pruned())
    # walk the paths the plain way: from the input on, and from the logits back
    forward, back = {Node("input")}, {Node("logits")}
    for _ in g.nodes:
        forward |= {n for e in edges if e.src in forward for n in g.readers(e.dst)}
        back |= {e.src for e in edges if any(n in back for n in g.readers(e.dst))}
    assert kept == {e for e in edges if e.src in forward and any(n in back for n in g.readers(e.dst))}


def test_node_circuits() -> None:
    g = graph()
    circuit = Circuit.of_nodes(g, ["a0.h1", "m1"])
    assert [str(n) for n in circuit.nodes] == ["input", "a0.h1", "m1", "logits"]
    names = {str(e) for e in circuit}
    into = {"input->a0.h1<q>", "input->a0.h1<k>", "input->a0.h1<v>", "input->m1", "a0.h1->m1"}
    assert names == into | {"input->logits", "a0.h1->logits", "m1->logits"}
    assert set(circuit.without(["m1"])) == set(Circuit.of_nodes(g, ["a0.h1"]))


def test_a_shared_key_goes_with_the_last_of_its_heads() -> None:
    g = graph(kv_heads=1)
    assert "input->a1.h0<k>" in Circuit.of_nodes(g, ["a1.h1"])
    assert "input->a1.h0<k>" in Circuit.full(g).without(["a1.h0"])
    assert "input->a1.h0<k>" not in Circuit.full(g).without(["a1.h0", "a1.h1"])
    assert [str(n) for n in Circuit.of(g, ["input->a1.h0<k>"]).nodes] == ["input", "a1.h0", "a1.h1"]


def test_selection_by_rank_and_threshold() -> None:
    g = graph(layers=1, heads=1, kv_heads=1)
    # edges: input->q k v, input->m0, a0.h0->m0, input a0.h0 m0->logits
    assert [str(e) for e in g.edges][3:] == [
        "input->m0", "a0.h0->m0", "input->logits", "a0.h0->logits", "m0->logits",
    ]  # fmt: skip
    scores = edge_table(g, torch.tensor([0.1, -9.0, 3.0, 0.0, -2.0, 0.5, 4.0, 1.0]))
    assert ranking(g, scores).tolist() == [6, 2, 7, 5, 0, 3, 4, 1]
    assert [str(e) for e in top(g, scores, 2, prune=False)] == ["input->a0.h0<v>", "a0.h0->logits"]
    assert [str(e) for e in top(g, scores, 2, absolute=True, prune=False)] == ["input->a0.h0<k>", "a0.h0->logits"]
    assert set(threshold(g, scores, 1.0)) == set(top(g, scores, 2))  # m0->logits has no input
    assert len(threshold(g, scores, 1.0, absolute=True)) == 5  # k, v, a0.h0->m0 and both into the logits
    assert len(threshold(g, scores, 2.0, absolute=True)) == 3  # a0.h0->m0 leads nowhere
    assert len(threshold(g, scores, 2.0, absolute=True, prune=False)) == 4
    # from the logits: a0.h0->logits, then its v (3), then m0->logits (1)
    assert [str(e) for e in greedy(g, scores, 2)] == ["input->a0.h0<v>", "a0.h0->logits"]
    assert len(greedy(g, scores, 3)) == 2
    assert len(greedy(g, scores, 3, prune=False)) == 3
    # the best edge overall, into k, is only found through the head
    assert [str(e) for e in greedy(g, scores, 1, absolute=True, prune=False)] == ["a0.h0->logits"]


@given(st.data())
def test_selections_are_nested_and_ranked(data: st.DataObject) -> None:
    g = data.draw(st.sampled_from(GRAPHS))
    scores = edge_table(
        g, torch.randn(len(g.edges), generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    )
    n, absolute = data.draw(st.integers(0, len(g.edges))), data.draw(st.booleans())
    sizes = per_edge(g, scores.abs() if absolute else scores)
    kept = top(g, scores, n, absolute=absolute, prune=False)
    assert len(kept) == n
    if 0 < n < len(g.edges):
        inside = per_edge(g, kept.mask)
        assert sizes[inside].min() >= sizes[~inside].max()
    grown = greedy(g, scores, n, absolute=absolute, prune=False)
    assert len(grown) == n
    # every kept edge leads to the logits
    ahead = Circuit(g, grown.mask | torch.zeros_like(grown.mask).index_fill(0, torch.tensor([0]), True) & edge_mask(g))
    assert grown <= ahead.pruned()


def test_refused() -> None:
    g = graph()
    with pytest.raises(UserError, match=r"unknown slot 'a7\.h0<q>'"):
        Circuit.of(g, ["input->a7.h0<q>"])
    with pytest.raises(UserError, match=r"no edge a1\.h0->a1\.h1<q>"):
        Circuit.of(g, ["a1.h0->a1.h1<q>"])
    with pytest.raises(UserError, match=r"no edge a0\.h0->a0\.h0<q>"):
        Circuit(g, torch.ones(len(g.sources), len(g.slots), dtype=torch.bool))
    with pytest.raises(UserError, match=r"unknown node 'a5\.h0'"):
        Circuit.of_nodes(g, ["a5.h0"])
    with pytest.raises(UserError, match="two graphs"):
        _ = Circuit.full(g) | Circuit.full(graph(heads=4, kv_heads=4))
    with pytest.raises(UserError, match="99 edges asked of a graph that has"):
        top(g, torch.zeros(len(g.sources), len(g.slots)), 99)
    scores = torch.zeros(len(g.sources), len(g.slots))
    scores[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"score of input->a0\.h0<q> is nan"):
        top(g, scores, 3)
    nothing = torch.zeros(len(g.sources), len(g.slots))
    assert select(g, nothing, 3, "greedy") == greedy(g, nothing, 3)
