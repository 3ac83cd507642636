"""Exact edge patching: replace one source's contribution to one slot, and run what follows.

For a slot in layer l and a source u above it, the slot reads resid + Δ_u, Δ_u = ablated_u − base_u, through
the layer's own norm (recomputed, not frozen). That gives the slot's new q, k, v or MLP input; the pass enters
there by replay. All edges of a layer share their projections; edges into the same place are packed as rows.

`edge_effects` is the definition against which edge attribution (EAP and its kin) is judged. In the ungrouped
graph a k or v edge belongs to one query head: its z is computed from that head's own keys or values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from interp.graph import Edge, Graph, Node, Slot
from interp.hooks import edits
from interp.hooks.addresses import Address
from interp.hooks.geometry import Geometry
from interp.interventions.base import Base, base_run
from interp.interventions.effects import Effects, Progress
from interp.interventions.plan import DEFAULT, Options, make_plan
from interp.interventions.reading import Reader
from interp.interventions.sources import (
    Recipe,
    Sources,
    ablated_sources,
    deltas,
    live_sources,
    replacement_for,
    source_addresses,
)
from interp.interventions.sweep import Sides, effects_of
from interp.metric_values import Metric
from interp.models.attention import attend, per_query_head
from interp.models.block import head_norm, project
from interp.models.forward import final_norm
from interp.models.grid import Grid
from interp.models.model import Model
from interp.models.net import Net
from interp.results.rowlog import RowLog
from interp.tasks.values import Side, Task

CORRUPT = Recipe()
CHUNK = 24
"""Sources whose changed residuals are held at once."""


def edge_effects(
    model: Model,
    task: Task,
    edges: Iterable[Edge | str] | None = None,
    metric: str | Metric = "logit_diff",
    *,
    recipe: Recipe = CORRUPT,
    ungrouped: bool = False,
    side: Side = "clean",
    options: Options = DEFAULT,
    progress: Progress | None = None,
    log: RowLog | None = None,
) -> Effects:
    """The effect of ablating each edge alone (all of the graph's by default), in the metric's unit.

    With a row log, edges are recorded as they are computed and those it holds are not computed again.
    Raises UserError for an edge the model lacks, and for pairs of unequal length with the corrupt ablation.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> edge_effects(model, task, ["input->a0.h0<q>", "a1.h0->logits"]).table().shape[0]
    2
    """
    graph = Graph(model.geometry, ungrouped)
    wanted = list(graph.edges) if edges is None else list(graph.between(edges))
    sides = Sides(model, task, metric)
    replacement = replacement_for(model, sides.task, recipe)
    reader = sides.reader(side)
    base = base_run(model, reader.prompts, edge_addresses(model.geometry))
    ablated = ablated_sources(base, replacement)
    found = dict(_recorded(log, wanted))
    todo = [e for e in wanted if e not in found]
    for part, rows in edge_values(base, reader, ablated, graph, todo, options):
        for edge, row in zip(part, rows.tolist(), strict=True):
            found[edge] = row
            if log is not None:
                log.add({"edge": str(edge)}, {"values": row})
        if progress is not None:
            progress(len(found), len(wanted))
    values = torch.tensor([found[e] for e in wanted], dtype=base.final.dtype)
    about = {"method": "edge patch", "algorithm": "edges", "granularity": "edge", "ablation": replacement.name,
             "direction": "ablate", "components": "ungrouped" if ungrouped else "grouped"}  # fmt: skip
    keys = [{"src": str(e.src), "dst": str(e.dst)} for e in wanted]
    plan = make_plan(model, [], reader, options, base)
    return effects_of(sides, side, keys, values, plan, about, recipe.seed)


def edge_addresses(g: Geometry) -> list[Address]:
    """What the base run keeps so that every slot can be entered."""
    sites = ["resid_pre", "q", "k", "v", "q_rot", "k_rot", "pattern", "z", "attn_out", "ln1"]
    sites += ["ln2"] if g.mlp else []
    sites += ["resid_mid"] if g.mlp and not g.parallel else []
    sites += ["mlp_out"] if g.mlp else []
    sites += ["attn_out_pre"] if g.post_norm else []
    every = [Address(site, layer) for layer in range(g.layers) for site in sites]
    return list(dict.fromkeys([*source_addresses(g), *every, Address("ln_final", None)]))


def _recorded(log: RowLog | None, edges: Sequence[Edge]) -> Iterator[tuple[Edge, list[float]]]:
    for edge in edges if log is not None else ():
        row = log.get({"edge": str(edge)}) if log is not None else None
        if row is not None:
            yield edge, row["values"]


def edge_values(
    base: Base,
    reader: Reader,
    ablated: Sources,
    graph: Graph,
    edges: Sequence[Edge],
    options: Options = DEFAULT,
) -> Iterator[tuple[list[Edge], Tensor]]:
    """The metric with each edge ablated alone: edges that share a place, and their values `[edge, prompt]`."""
    live, net = live_sources(base), base.net
    pre = [base.at("attn_out_pre", i) for i in range(graph.geometry.layers)] if graph.geometry.post_norm else []
    for members in _chunks(graph, edges):
        part = [edges[i] for i in members]
        nodes = sorted({e.src for e in part}, key=graph.source_index.__getitem__)
        with torch.no_grad():
            change = deltas(net, live, ablated, nodes, pre)
            held = _Inputs(base, part[0].dst, nodes, change, graph)
            interventions = [[held.edit(e)] for e in part]
        yield part, make_plan(base.model, interventions, reader, options, base).run()


def _chunks(graph: Graph, edges: Sequence[Edge]) -> Iterator[list[int]]:
    """Indices of edges whose slots lie side by side, for at most `CHUNK` sources at a time."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, e in enumerate(edges):
        layer = e.dst.node.layer if e.dst.node.kind != "logits" else graph.geometry.layers
        groups.setdefault((layer, e.dst.node.kind == "head"), []).append(i)
    for _, members in sorted(groups.items()):
        rank = {n: r for r, n in enumerate(sorted({edges[i].src for i in members}, key=graph.source_index.__getitem__))}
        for start in range(0, len(rank), CHUNK):
            chosen = [i for i in members if start <= rank[edges[i].src] < start + CHUNK]
            if chosen:
                yield chosen


class _Inputs:
    """What the slots of one place receive when one source at a time is replaced."""

    def __init__(self, base: Base, slot: Slot, nodes: list[Node], change: Tensor, graph: Graph) -> None:
        self.base, self.net, self.graph, self.layer = base, base.net, graph, slot.node.layer
        self.row = {n: i for i, n in enumerate(nodes)}
        kind, sources, net = slot.node.kind, len(nodes), base.net
        if kind == "logits":
            self.final = final_norm(net, base.final + change)
        elif kind == "mlp":
            read = base.at("resid_pre" if graph.geometry.parallel else "resid_mid", self.layer)
            self.ln2 = _normed(net, self.layer, "ln2", read + change)
        else:
            x = _normed(net, self.layer, "ln1", base.at("resid_pre", self.layer) + change)
            grid = Grid.of(net, base.prompts.repeat(sources) if base.prompts.padded else base.prompts, net.dtype)
            parts = project(net, self.layer, x.flatten(0, 1), grid)
            self.parts = {k: t.view(sources, -1, *t.shape[1:]) for k, t in parts.items()}

    def edit(self, edge: Edge) -> edits.Edit:
        """The edit that gives the edge's slot its new value."""
        row, slot, layer = self.row[edge.src], edge.dst, self.layer
        if slot.node.kind == "logits":
            return edits.hold("ln_final", self.final[row])
        if slot.node.kind == "mlp":
            return edits.hold(f"L{layer}.ln2", self.ln2[row])
        part, head = str(slot.part), slot.node.head
        if part == "q":
            return edits.hold(f"L{layer}.q", self.parts["q"][row][:, :, head, None], head=head)
        if self.graph.ungrouped and self.graph.geometry.group > 1:
            return edits.hold(f"L{layer}.z", self._z(part, row, head), head=head)
        return edits.hold(f"L{layer}.{part}", self.parts[part][row][:, :, head, None], kv_head=head)

    def _z(self, part: str, row: int, head: int) -> Tensor:
        """One query head's z with keys or values of its own, `[batch, pos, 1, d_head]`."""
        base, net, group = self.base, self.net, self.graph.geometry.group
        grid = Grid.of(net, base.prompts, net.dtype)
        with torch.no_grad():
            v = base.at("v", self.layer) if part == "k" else self.parts["v"][row]
            v = per_query_head(v.transpose(1, 2), group)[:, head, None]
            if part == "k":
                k = grid.rotate(head_norm(net, self.layer, self.parts["k"][row], "k"), self.layer).transpose(1, 2)
                q = base.at("q_rot", self.layer).transpose(1, 2)[:, head, None]
                pattern = attend(net, self.layer, q, per_query_head(k, group)[:, head, None], grid, heads=[head])
            else:
                pattern = base.at("pattern", self.layer)[:, head, None]
            return torch.matmul(pattern, v).transpose(1, 2)


def _normed(net: Net, layer: int, which: str, x: Tensor) -> Tensor:
    norm = getattr(net.layers[layer], which)
    out: Tensor = norm(x) if net.geometry.pre_norm else x
    return out
