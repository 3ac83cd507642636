"""Circuit files: JSON of the MIB circuit track, and GraphML. What is written reads back as an equal circuit.

JSON (2504.13151):

    {"cfg": {"n_layers", "n_heads", "parallel_attn_mlp", "d_model"},
     "nodes": {"a0.h0": {"in_graph": true}, …},
     "edges": {"a0.h0->a1.h0<q>": {"score": 0.1, "in_graph": true}, …}}

Names are per query head (the ungrouped graph), as in published files. A circuit of the grouped graph of a
model with shared keys says so by `"n_kv_heads"` in `cfg`, and names k and v slots by kv head. Edges decide;
`in_graph` of nodes is written for other readers. An edge that a file leaves out is not in the circuit.
A circuit without scores writes `"score": null`. Files made by `circuit_discovery` also hold `discovered_on`,
digests of the prompts that the circuit was found on (`found_on` reads them).

GraphML has the same content for graph tools: nodes, and edges with `part`, `score`, `in_graph`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from interp.circuits.values import Circuit
from interp.graph import Edge, Graph
from interp.hooks.geometry import Geometry
from interp.registry import UserError

SUFFIXES = (".json", ".graphml")


def cfg_of(graph: Graph) -> dict[str, Any]:
    """What a file says of the model."""
    g = graph.geometry
    cfg: dict[str, Any] = {
        "n_layers": g.layers, "n_heads": g.heads, "parallel_attn_mlp": g.parallel, "d_model": g.d_model,
    }  # fmt: skip
    if not graph.ungrouped and g.group > 1:
        cfg["n_kv_heads"] = g.kv_heads
    return cfg


def to_json(circuit: Circuit) -> dict[str, Any]:
    """The circuit as plain values of the MIB layout."""
    inside = set(circuit.nodes)
    rows = _edge_rows(circuit)
    return {
        "cfg": cfg_of(circuit.graph),
        "nodes": {str(n): {"in_graph": n in inside} for n in circuit.graph.nodes},
        "edges": {name: {"score": score, "in_graph": kept} for name, score, kept in rows},
    }


def from_json(data: Any, geometry: Geometry, where: str = "circuit") -> Circuit:
    """A circuit of a model of this shape. UserError for a file of another model or of another layout."""
    if not isinstance(data, Mapping) or not isinstance(data.get("edges"), Mapping):
        raise UserError(f"{where} is no circuit file: expected an object with cfg, nodes and edges")
    cfg = data.get("cfg")
    graph = _graph_for(cfg if isinstance(cfg, Mapping) else {}, geometry, where)
    return _read_edges(graph, data["edges"].items(), where)


def save_circuit(circuit: Circuit, path: str | Path) -> Path:
    """Write a .json or .graphml file.

    >>> import tempfile
    >>> from interp.circuits.values import Circuit
    >>> from interp.graph import Graph
    >>> from interp.hooks.geometry import Geometry
    >>> shape = Geometry(layers=1, heads=2, kv_heads=2, d_model=8, d_head=4, d_mlp=16, d_vocab=50, n_ctx=16)
    >>> circuit = Circuit.of(Graph(shape), ["input->a0.h1<v>", "a0.h1->logits"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save_circuit(circuit, f"{folder}/mine.json")
    ...     len(load_circuit(file, shape)), file.name
    (2, 'mine.json')
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"circuits are written as {' or '.join(SUFFIXES)}, got {path.name!r}")
    if path.suffix == ".json":
        path.write_text(json.dumps(to_json(circuit), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    else:
        path.write_text(graphml(circuit), encoding="utf-8")
    return path


def graphml(circuit: Circuit) -> str:
    """The text of a GraphML file."""
    import networkx as nx

    return "\n".join(nx.generate_graphml(to_networkx(circuit))) + "\n"


def load_circuit(path: str | Path, geometry: Geometry) -> Circuit:
    """Read a circuit file for a model of this shape (`model.geometry`). UserError names what does not fit.

    >>> import interp
    >>> from importlib.resources import files
    >>> ours = files("interp.circuits.known") / "toy-ioi.json"
    >>> len(load_circuit(str(ours), interp.load_model("toy-ioi").geometry)) > 10
    True
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"circuits are read from {' or '.join(SUFFIXES)}, got {path.name!r}")
    if not os.path.isfile(path):
        raise UserError(f"there is no circuit file {path}")
    try:
        if path.suffix == ".json":
            return from_json(json.loads(path.read_text(encoding="utf-8")), geometry, str(path))
        import networkx as nx

        return from_networkx(nx.read_graphml(path, force_multigraph=True), geometry, str(path))
    except UserError:
        raise
    except Exception as e:  # of the readers' own: JSON too deep, broken XML, GraphML that networkx cannot follow
        raise UserError(f"{path} is no circuit file: {e}") from None


def found_on(path: str | Path) -> list[str]:
    """Digests of the prompts a circuit file was found on; none where it does not say."""
    path = Path(path)
    if path.suffix != ".json":
        return []
    try:
        said = json.loads(path.read_text(encoding="utf-8")).get("discovered_on", [])
    except (OSError, ValueError, AttributeError, RecursionError) as e:
        raise UserError(f"{path} is no circuit file: {e}") from None
    if not isinstance(said, list):
        raise UserError(f"{path}: discovered_on must list digests of prompts, got {said!r}")
    return [str(d) for d in said]


def to_networkx(circuit: Circuit) -> Any:
    """A `networkx.MultiDiGraph` with one edge per edge of the graph."""
    import networkx as nx

    inside = set(circuit.nodes)
    graph = nx.MultiDiGraph(**cfg_of(circuit.graph), scored=circuit.scores is not None)
    for n in circuit.graph.nodes:
        graph.add_node(str(n), kind=n.kind, layer=n.layer, head=n.head, in_graph=n in inside)
    for name, score, kept in _edge_rows(circuit):
        edge = Edge.parse(name)
        weight = {} if score is None else {"score": score}
        graph.add_edge(str(edge.src), str(edge.dst.node), key=name, part=edge.dst.part or "", in_graph=kept, **weight)
    return graph


def from_networkx(graph: Any, geometry: Geometry, where: str = "graph") -> Circuit:
    """The circuit of a graph that `to_networkx` made."""
    own = _graph_for(graph.graph, geometry, where)
    rows = ((str(key), data) for _, _, key, data in graph.edges(keys=True, data=True))
    return _read_edges(own, rows, where)


def _edge_rows(circuit: Circuit) -> Iterator[tuple[str, float | None, bool]]:
    graph, scores = circuit.graph, circuit.scores
    for slot, v in graph.slot_index.items():
        kept = circuit.mask[:, v].tolist()
        score = [None] * len(kept) if scores is None else scores[:, v].tolist()
        for u in range(graph.upstream(slot)):
            yield f"{graph.sources[u]}->{slot}", score[u], kept[u]


def _graph_for(cfg: Mapping[str, Any], g: Geometry, where: str) -> Graph:
    found = {"n_layers": g.layers, "n_heads": g.heads, "parallel_attn_mlp": g.parallel, "d_model": g.d_model}
    for name, own in found.items():
        if name not in cfg:
            raise UserError(f"{where} is no circuit file: its cfg lacks {name!r}")
        if cfg[name] != own:
            raise UserError(f"{where} is for another model: {name} is {cfg[name]!r} there, {own!r} here")
    kv = cfg.get("n_kv_heads")
    if kv is not None and kv != g.kv_heads:
        raise UserError(f"{where} is for another model: n_kv_heads is {kv!r} there, {g.kv_heads!r} here")
    # without shared keys the two graphs are one; the plain one is then meant
    return Graph(g, ungrouped=kv is None and g.group > 1)


def _read_edges(graph: Graph, rows: Any, where: str) -> Circuit:
    shape = (len(graph.sources), len(graph.slots))
    mask, scores = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float64)
    scored = False
    for name, row in rows:
        try:
            edge = graph.check(name)
        except UserError as e:
            raise UserError(f"{where}: {e}") from None
        if not isinstance(row, Mapping) or not isinstance(row.get("in_graph"), bool):
            raise UserError(f"{where}: edge {name} must say in_graph: true or false, got {row!r}")
        at = graph.source_index[edge.src], graph.slot_index[edge.dst]
        mask[at] = row["in_graph"]
        score = row.get("score")
        if score is not None:
            if isinstance(score, bool) or not isinstance(score, int | float) or not _finite(score):
                raise UserError(f"{where}: the score of {name} must be a finite number, got {score!r}")
            scores[at], scored = float(score), True
    return Circuit(graph, mask, scores if scored else None)


def _finite(score: int | float) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:  # a whole number larger than any float
        return False
