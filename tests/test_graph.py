"""The circuit graph: counts that other implementations report, names, and what is refused."""

from __future__ import annotations

import pytest

from interp.graph import Edge, Graph, Node, Slot
from interp.hooks.geometry import Geometry
from interp.registry import UserError


def geometry(**changes: object) -> Geometry:
    sizes = {"layers": 2, "heads": 4, "kv_heads": 4, "d_model": 8, "d_head": 2, "d_mlp": 8, "d_vocab": 5, "n_ctx": 4}
    return Geometry(**{**sizes, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "ungrouped", "edges"),
    [
        ({}, False, 110),
        ({"parallel": True}, False, 102),
        ({"kv_heads": 2}, False, 82),
        ({"kv_heads": 2}, True, 110),
        ({"layers": 12, "heads": 12, "kv_heads": 12}, False, 32491),
        ({"layers": 3}, False, 262),
    ],
)
def test_edge_counts(changes: dict[str, object], ungrouped: bool, edges: int) -> None:
    assert len(Graph(geometry(**changes), ungrouped).edges) == edges


def test_nodes_of_gpt2_small() -> None:
    graph = Graph(geometry(layers=12, heads=12, kv_heads=12))
    assert len(graph.sources) == 12 * 13 + 1
    assert len(graph.slots) == 12 * (3 * 12 + 1) + 1


@pytest.mark.parametrize("changes", [{}, {"parallel": True}, {"kv_heads": 2}, {"mlp": False, "d_mlp": 0}])
def test_names_read_back_and_edges_go_forward(changes: dict[str, object]) -> None:
    graph = Graph(geometry(**changes))
    order = {n: i for i, n in enumerate(graph.sources)}
    assert len(set(graph.edges)) == len(graph.edges)
    for edge in graph.edges:
        assert Edge.parse(str(edge)) == edge
        if edge.dst.node.kind == "head":
            assert edge.src.layer < edge.dst.node.layer
        elif edge.dst.node.kind == "mlp":
            assert order[edge.src] < order[edge.dst.node]
            assert not (graph.geometry.parallel and edge.src.layer == edge.dst.node.layer)


def test_shared_kv_heads_have_several_readers() -> None:
    graph = Graph(geometry(kv_heads=2))
    assert [str(n) for n in graph.readers(Slot.parse("a1.h1<k>"))] == ["a1.h2", "a1.h3"]
    assert [str(s) for s in graph.slots_of(Node.parse("a1.h3"))] == ["a1.h3<q>", "a1.h1<k>", "a1.h1<v>"]


@pytest.mark.parametrize(
    ("edge", "says"),
    [
        ("a1.h0->a0.h1<q>", "before a1.h0 writes"),
        ("a0.h9->m1", "unknown source node 'a0.h9'"),
        ("a0.h0->a1.h0", "heads read through"),
        ("a0.h0=>m1", "not an edge"),
        ("m1->m1", "before m1 writes"),
    ],
)
def test_edges_the_model_lacks(edge: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Graph(geometry()).check(edge)
