"""Circuits as values: a graph, which of its edges are kept, and the scores that chose them.

A circuit is a mask over (source, slot) of a `Graph`. Operations return new circuits: `|`, `&`, `-`, `~` (the
complement), `pruned()`. A node circuit keeps every edge between the nodes named. Choosing edges by score is
in `select.py`, files in `files.py`, running one in `interp.interventions.circuit`.

    >>> from interp.hooks.geometry import Geometry
    >>> from interp.graph import Graph
    >>> g = Graph(Geometry(layers=2, heads=4, kv_heads=4, d_model=8, d_head=2, d_mlp=8, d_vocab=5, n_ctx=4))
    >>> c = Circuit.of(g, ["input->a0.h1<q>", "input->a0.h1<v>", "a0.h1->logits"])
    >>> len(c), [str(n) for n in c.nodes], len(~c)
    (3, ['input', 'a0.h1', 'logits'], 107)

Limits: an edge is in or out; circuits over single tokens are in `by_label.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.circuits.connect import connected
from interp.graph import Edge, Graph, Node
from interp.registry import UserError, unknown

if TYPE_CHECKING:
    from interp.plots import Figure

Mask = Bool[Tensor, "source slot"]
EdgeTable = Float[Tensor, "source slot"]
"""A number for every source and slot, 0 where the graph has no such edge."""


@dataclass(frozen=True, eq=False)
class Circuit:
    """Edges of a graph, kept or not, with or without scores. Positive scores help the metric.

    >>> from interp.hooks.geometry import Geometry
    >>> shape = Geometry(layers=1, heads=2, kv_heads=2, d_model=8, d_head=4, d_mlp=16, d_vocab=50, n_ctx=16)
    >>> len(Circuit.of(Graph(shape), ["input->a0.h1<v>", "a0.h1->logits"]))
    2
    """

    graph: Graph
    mask: Mask
    scores: EdgeTable | None = None

    def __post_init__(self) -> None:
        shape = (len(self.graph.sources), len(self.graph.slots))
        for what, table in (("mask", self.mask), ("scores", self.scores)):
            if table is not None and tuple(table.shape) != shape:
                raise UserError(
                    f"the {what} of a circuit of {self.graph} is {shape} (source, slot), got {tuple(table.shape)}"
                )
        object.__setattr__(self, "mask", self.mask.cpu())
        none = ~edge_mask(self.graph)
        if bool((self.mask & none).any()):
            source, slot = (self.mask & none).nonzero()[0].tolist()
            raise UserError(f"this model has no edge {self.graph.sources[source]}->{self.graph.slots[slot]}")
        if self.scores is not None:
            object.__setattr__(self, "scores", finite(self.graph, self.scores.double().cpu()).masked_fill(none, 0.0))

    @staticmethod
    def of(graph: Graph, edges: Iterable[Edge | str], scores: EdgeTable | None = None) -> Circuit:
        """The circuit of these edges. UserError for an edge the graph lacks."""
        mask = torch.zeros(len(graph.sources), len(graph.slots), dtype=torch.bool)
        for e in graph.between(edges):
            mask[graph.source_index[e.src], graph.slot_index[e.dst]] = True
        return Circuit(graph, mask, scores)

    @staticmethod
    def of_nodes(graph: Graph, nodes: Iterable[Node | str]) -> Circuit:
        """Every edge between these nodes; the input and the logits belong to every node circuit.

        A k or v slot that a group of heads shares is kept where any of its heads is.
        """
        kept = {Node("input"), Node("logits")}
        for n in nodes:
            node = Node.parse(n) if isinstance(n, str) else n
            if node not in graph.nodes:
                raise unknown("node", str(node), [str(x) for x in graph.nodes])
            kept.add(node)
        rows = torch.tensor([n in kept for n in graph.sources])
        columns = torch.tensor([any(r in kept for r in graph.readers(s)) for s in graph.slots])
        return Circuit(graph, edge_mask(graph) & rows[:, None] & columns[None])

    @staticmethod
    def full(graph: Graph) -> Circuit:
        """Every edge."""
        return Circuit(graph, edge_mask(graph))

    @staticmethod
    def empty(graph: Graph) -> Circuit:
        """No edge."""
        return Circuit(graph, torch.zeros(len(graph.sources), len(graph.slots), dtype=torch.bool))

    def __len__(self) -> int:
        """Number of edges kept."""
        return int(self.mask.sum())

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    def __contains__(self, edge: object) -> bool:
        if not isinstance(edge, Edge | str):
            return False
        e = self.graph.check(edge)
        return bool(self.mask[self.graph.source_index[e.src], self.graph.slot_index[e.dst]])

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The kept edges, in the graph's order."""
        kept = self.mask.T.nonzero().tolist()
        return tuple(Edge(self.graph.sources[u], self.graph.slots[v]) for v, u in kept)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes that a kept edge leaves or enters, in the graph's order."""
        g = self.graph
        touched = {n for n, out in zip(g.sources, self.mask.any(1).tolist(), strict=True) if out}
        for slot, into in zip(g.slots, self.mask.any(0).tolist(), strict=True):
            touched |= set(g.readers(slot)) if into else set()
        return tuple(n for n in g.nodes if n in touched)

    @property
    def share(self) -> float:
        """Kept edges as a share of the graph's."""
        return len(self) / len(self.graph.edges)

    def score(self, edge: Edge | str) -> float:
        """One edge's score; UserError where the circuit has none."""
        if self.scores is None:
            raise UserError("this circuit carries no scores")
        e = self.graph.check(edge)
        return float(self.scores[self.graph.source_index[e.src], self.graph.slot_index[e.dst]])

    def with_scores(self, scores: EdgeTable | None) -> Circuit:
        """The same edges with other scores."""
        return replace(self, scores=scores)

    def pruned(self) -> Circuit:
        """Without edges that lie on no path from the input to the logits."""
        return replace(self, mask=connected(self.graph, self.mask))

    def without(self, nodes: Iterable[Node | str]) -> Circuit:
        """Without every edge of these nodes; shared k and v slots go with the last of their heads."""
        gone = {Node.parse(n) if isinstance(n, str) else n for n in nodes}
        kept = [n for n in self.graph.nodes if n not in gone]
        return replace(self, mask=self.mask & Circuit.of_nodes(self.graph, kept).mask)

    def _same_graph(self, other: Circuit) -> None:
        if self.graph != other.graph:
            raise UserError(f"circuits of two graphs cannot be combined: {self.graph} and {other.graph}")

    def __or__(self, other: Circuit) -> Circuit:
        self._same_graph(other)
        return replace(self, mask=self.mask | other.mask)

    def __and__(self, other: Circuit) -> Circuit:
        self._same_graph(other)
        return replace(self, mask=self.mask & other.mask)

    def __sub__(self, other: Circuit) -> Circuit:
        self._same_graph(other)
        return replace(self, mask=self.mask & ~other.mask)

    def __invert__(self) -> Circuit:
        """The complement: every edge that is not kept."""
        return replace(self, mask=edge_mask(self.graph) & ~self.mask)

    def __le__(self, other: Circuit) -> bool:
        """Whether every kept edge is also kept in the other."""
        self._same_graph(other)
        return not bool((self.mask & ~other.mask).any())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Circuit) or self.graph != other.graph or not torch.equal(self.mask, other.mask):
            return False
        if self.scores is None or other.scores is None:
            return self.scores is other.scores
        return torch.equal(self.scores, other.scores)

    def __hash__(self) -> int:
        return hash((self.graph, self.mask.numpy().tobytes()))

    def draw(self, most: int = 150, title: str = "") -> Figure:
        """A picture of the circuit: layers as rows, edges by score. Of more than `most` edges the largest are drawn.

        Without scores every edge counts the same.
        """
        import pandas as pd

        from interp.plots import circuit_graph

        scores = [1.0 if self.scores is None else self.score(e) for e in self.edges]
        rows = [{"src": str(e.src), "dst": str(e.dst), "score": s} for e, s in zip(self.edges, scores, strict=True)]
        frame = pd.DataFrame.from_records(rows, columns=["src", "dst", "score"])
        about = "No scores: every edge counts the same." if self.scores is None else ""
        return circuit_graph(frame, nodes=[str(n) for n in self.nodes] or ["input", "logits"], most=most, title=title,
                             about=about)  # fmt: skip

    def _repr_html_(self) -> str:
        from interp.plots.show import card

        g = self.graph.geometry
        facts = {
            "edges": f"{len(self)} of {len(self.graph.edges)}", "nodes": len(self.nodes),
            "graph": f"{g.layers} layers × {g.heads} heads{'' if g.mlp else ', no MLPs'}",
            "k and v": "ungrouped" if self.graph.ungrouped else None,
            "scores": "none" if self.scores is None else None,
        }  # fmt: skip
        return card("Circuit", facts, figures=[self.draw()])

    def __repr__(self) -> str:
        return f"Circuit({len(self)} of {len(self.graph.edges)} edges, {len(self.nodes)} nodes)"


def edge_mask(graph: Graph) -> Mask:
    """Which (source, slot) are edges of the graph."""
    upstream = torch.tensor([graph.upstream(s) for s in graph.slots])
    return torch.arange(len(graph.sources))[:, None] < upstream[None]


def edge_table(graph: Graph, per_edge: Float[Tensor, " edge"]) -> EdgeTable:
    """Numbers in the order of `graph.edges`, laid out over (source, slot)."""
    if len(per_edge) != len(graph.edges):
        raise UserError(f"{len(per_edge)} scores for the {len(graph.edges)} edges of {graph}")
    table = torch.zeros(len(graph.slots), len(graph.sources), dtype=per_edge.dtype)
    table[edge_mask(graph).T] = per_edge.cpu()
    return table.T.contiguous()


def per_edge(graph: Graph, table: Tensor) -> Tensor:
    """A table over (source, slot) in the order of `graph.edges`."""
    return table.T[edge_mask(graph).T]


def finite(graph: Graph, scores: EdgeTable) -> EdgeTable:
    """The scores; UserError that names an edge whose score is not a finite number."""
    bad = (~scores.isfinite() & edge_mask(graph)).nonzero().tolist()
    if bad:
        source, slot = bad[0]
        raise UserError(
            f"the score of {graph.sources[source]}->{graph.slots[slot]} is {float(scores[source, slot])} "
            f"({len(bad)} such edges); circuits need finite scores"
        )
    return scores
