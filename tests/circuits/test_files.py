"""Circuit files read back identically, and say in one line what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from interp.circuits.files import load_circuit, save_circuit, to_json
from interp.circuits.select import top
from interp.circuits.values import Circuit, edge_table
from interp.graph import Graph
from interp.hooks.geometry import Geometry
from interp.registry import UserError

CFG = {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": False, "d_model": 8}
SIZES = {"d_model": 8, "d_head": 4, "d_mlp": 8, "d_vocab": 5, "n_ctx": 4}


def shape(**more: int | bool) -> Geometry:
    return Geometry(**{"layers": 2, "heads": 2, "kv_heads": 2, **SIZES, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".json", ".graphml"])
@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize(
    ("geometry", "ungrouped"),
    [(shape(), False), (shape(kv_heads=1), False), (shape(kv_heads=1), True), (shape(parallel=True), False),
     (shape(mlp=False), False)],
)  # fmt: skip
def test_reads_back_identically(geometry: Geometry, ungrouped: bool, scored: bool, suffix: str, tmp_path: Path) -> None:
    graph = Graph(geometry, ungrouped)
    scores = edge_table(graph, torch.randn(len(graph.edges), generator=torch.Generator().manual_seed(0)).double() / 3)
    circuit = top(graph, scores, 9) if scored else Circuit.of(graph, graph.edges[::4])
    path = save_circuit(circuit, tmp_path / f"c{suffix}")
    again = load_circuit(path, geometry)
    assert again == circuit
    assert again.graph.ungrouped == ungrouped
    twice = save_circuit(again, tmp_path / f"d{suffix}")
    assert twice.read_bytes() == path.read_bytes()


def test_a_published_file_is_read(tmp_path: Path) -> None:
    """The layout of the MIB circuit track, edges left out and further keys included."""
    data = {
        "cfg": CFG,
        "nodes": {"input": {"in_graph": True}, "a0.h1": {"in_graph": True, "score": 0.5}, "logits": {"in_graph": True}},
        "edges": {
            "input->a0.h1<v>": {"score": 0.25, "in_graph": True},
            "a0.h1->logits": {"score": -1, "in_graph": True},
            "m0->logits": {"score": 2.5, "in_graph": False},
        },
    }
    path = tmp_path / "importances.json"
    path.write_text(json.dumps(data))
    circuit = load_circuit(path, shape())
    assert [str(e) for e in circuit] == ["input->a0.h1<v>", "a0.h1->logits"]
    assert (circuit.score("a0.h1->logits"), circuit.score("m0->logits")) == (-1.0, 2.5)
    grouped = load_circuit(path, shape(kv_heads=1))
    assert grouped.graph.ungrouped
    assert "input->a0.h1<v>" in grouped
    assert len(to_json(circuit)["edges"]) == len(circuit.graph.edges)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cfg": {**CFG, "n_layers": 3}}, "n_layers is 3 there, 2 here"),
        ({"cfg": {**CFG, "parallel_attn_mlp": True}}, "parallel_attn_mlp is True"),
        ({"cfg": {"n_layers": 2}}, "cfg lacks 'n_heads'"),
        ({"edges": []}, "expected an object with cfg, nodes and edges"),
        ({"edges": {"a0.h7->logits": {"score": 1.0, "in_graph": True}}}, r"unknown source node 'a0\.h7'"),
        ({"edges": {"m1->a0.h0<q>": {"score": 1.0, "in_graph": True}}}, r"no edge m1->a0\.h0<q>"),
        ({"edges": {"a0.h0>logits": {"score": 1.0, "in_graph": True}}}, "not an edge"),
        ({"edges": {"m0->logits": {"score": 1.0}}}, "must say in_graph"),
        ({"edges": {"m0->logits": {"score": "high", "in_graph": True}}}, "must be a finite number, got 'high'"),
        ({"edges": {"m0->logits": {"score": float("nan"), "in_graph": True}}}, "must be a finite number, got nan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    whole = {**to_json(Circuit.full(Graph(shape()))), **change}
    path.write_text(json.dumps(whole))
    with pytest.raises(UserError, match=said) as e:
        load_circuit(path, shape())
    assert "\n" not in str(e.value)
    assert str(path) in str(e.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no circuit file"):
        load_circuit(tmp_path / "none.json", shape())
    for name in ("broken.json", "broken.graphml"):
        (tmp_path / name).write_text("{")
        with pytest.raises(UserError, match="is no circuit file"):
            load_circuit(tmp_path / name, shape())
    with pytest.raises(UserError, match=r"\.json or \.graphml"):
        save_circuit(Circuit.full(Graph(shape())), tmp_path / "c.pt")
