"""Tables of direct attribution on the graph: terms of edges, and of a circuit's run (`direct.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from interp import stats
from interp.attribution.direct import direct_logit_attribution
from interp.circuits.direct import circuit_terms, edge_terms
from interp.circuits.interventions import PARTS, Part
from interp.circuits.values import Circuit, edge_mask, per_edge
from interp.graph import Graph, Node
from interp.interventions.circuit import CircuitRunner
from interp.interventions.sources import Recipe
from interp.interventions.sweep import Sides
from interp.models.model import Model
from interp.registry import unknown
from interp.results.frames import Table, example_rows, score_rows
from interp.results.schemas import ATTRIBUTION
from interp.tasks.values import Side, Task

NO_TERM = "not linear in what the edge carries: queries, keys and MLPs have no direct term"


def edge_table(
    model: Model,
    task: Task,
    side: Side = "clean",
    ungrouped: bool = False,
    seed: int = 0,
    circuit: Circuit | None = None,
    part: Part = "circuit",
) -> Table:
    """Terms of all edges, or of those in (part: circuit, members) or outside (complement) a circuit."""
    if part not in PARTS:
        raise unknown("part", part, list(PARTS))
    graph = Graph(model.geometry, ungrouped)
    terms = edge_terms(model, task, ungrouped=ungrouped, side=side)
    kept = edge_mask(graph) if circuit is None else (~circuit).mask if part == "complement" else circuit.mask
    chosen = per_edge(graph, kept).nonzero().flatten()
    keys = [{"src": str(graph.edges[i].src), "dst": str(graph.edges[i].dst)} for i in chosen.tolist()]
    about = {
        "granularity": "edge", "algorithm": "pattern and scales frozen", "seed": seed,
        "components": "ungrouped" if ungrouped else "grouped",
        "side": None if circuit is None else "complement" if part == "complement" else "circuit",
    }  # fmt: skip
    return _table(model, task, keys, terms[chosen], about, seed)


def circuit_table(
    model: Model,
    task: Task,
    circuit: Circuit,
    part: Part = "circuit",
    recipe: Recipe | None = None,
    side: Side = "clean",
) -> Table:
    """Terms by node: of the run of the circuit or its complement, the rest ablated, or of its nodes unablated."""
    if part not in PARTS:
        raise unknown("part", part, list(PARTS))
    how = recipe or Recipe("mean")
    about: dict[str, Any] = {"granularity": "node", "seed": how.seed, "side": part if part != "members" else "circuit"}
    if part == "members":
        found = direct_logit_attribution(model, task, granularity="heads", side=side)
        inside = set(circuit.nodes)
        mine = [i for i, c in enumerate(found.components) if _node(c.key()) in inside]
        keys = [found.components[i].key() for i in mine]
        about["algorithm"] = "frozen_final_scale, nothing ablated"
        return _table(model, task, keys, found.terms[:, mine].T, about, how.seed)
    runner = CircuitRunner.prepare(Sides(model, task, "logit_diff"), circuit.graph, how, side)
    terms = circuit_terms(runner, ~circuit if part == "complement" else circuit)
    keys = [_key(n) for n in terms.sources]
    about |= {"algorithm": "frozen_final_scale, the rest ablated", "ablation": runner.name}
    rows = [*terms.terms.T, terms.biases, terms.total, terms.logit_diff]
    keys += [{"site": "biases"}, {"site": "total"}, {"site": "logit_diff"}]
    return _table(model, task, keys, _stack(rows), about, how.seed)


def _stack(rows: list[Tensor]) -> Tensor:
    import torch

    return torch.stack(rows)


def _key(node: Node) -> dict[str, Any]:
    """A node in the words of the result tables."""
    if node.kind == "head":
        return {"site": "head_out", "layer": node.layer, "head": node.head}
    return {"site": "mlp_out", "layer": node.layer} if node.kind == "mlp" else {"site": "input"}


def _node(key: dict[str, Any]) -> Node | None:
    site = key["site"]
    if site == "head_out":
        return Node("head", key["layer"], key["head"])
    return Node("mlp", key["layer"]) if site == "mlp_out" else Node("input") if "embed" in site else None


def _table(
    model: Model, task: Task, keys: list[dict[str, Any]], terms: Tensor, about: dict[str, Any], seed: int
) -> Table:
    clusters = None if task.cluster is None else task.cluster.cpu().numpy()
    how = stats.resampling(task.n, np.random.default_rng(seed), clusters)
    constants = {
        "experiment": "direct_logit_attribution", "model": model.name, "task": task.name, "metric": "logit_diff",
        "method": "dla", "positions": "answer", "unit": "logits", "split": _text(task.meta.get("split")),
        "corruption": _text(task.meta.get("corruption")), **about,
    }  # fmt: skip
    constants = {k: v for k, v in constants.items() if v is not None}
    values = terms.double().cpu().numpy()
    frame = score_rows(keys, values, how, **constants)
    nothing = frame["score"].isna() & frame["dst"].notna()
    frame.loc[nothing, "reason"] = NO_TERM
    held = ~np.isnan(values).all(1)
    kept = [k for k, ok in zip(keys, held.tolist(), strict=True) if ok]
    examples = example_rows(kept, values[held], ATTRIBUTION, **constants) if kept else None
    return Table(frame, ATTRIBUTION, examples=examples)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
