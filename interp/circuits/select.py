"""Choosing a circuit by scores: the n best edges, greedily from the logits, or above a threshold.

    top        the n edges with the largest score (signed, or by size with absolute=True)
    greedy     from the logits back: again and again the best edge into a node that is in already
    threshold  every edge whose score is at least τ

Disconnected parts are pruned (`prune=False` keeps them), so a circuit may have fewer edges than asked for.
Ties go to the edge that comes first in the graph. Source: 2504.13151 (MIB), 2403.17806.
"""

from __future__ import annotations

import heapq
from typing import Literal

import torch
from torch import Tensor

from interp.circuits.values import Circuit, EdgeTable, edge_mask, finite, per_edge
from interp.graph import Graph
from interp.registry import UserError, unknown

Selection = Literal["top", "greedy"]


def top(graph: Graph, scores: EdgeTable, n: int, *, absolute: bool = False, prune: bool = True) -> Circuit:
    """The n edges with the largest scores. UserError where n is no number of edges, or a score is not finite."""
    n = _count(graph, n)
    order = ranking(graph, scores, absolute=absolute)
    flat = torch.zeros(len(graph.edges), dtype=torch.bool)
    flat[order[:n]] = True
    return _circuit(graph, _laid(graph, flat), scores, prune)


def greedy(graph: Graph, scores: EdgeTable, n: int, *, absolute: bool = False, prune: bool = True) -> Circuit:
    """n edges, grown from the logits: at each step the best edge into a node that is in the circuit."""
    n = _count(graph, n)
    size = _sizes(finite(graph, scores), absolute)
    rank = {slot: i for i, slot in enumerate(graph.slots)}
    mask = torch.zeros(len(graph.sources), len(graph.slots), dtype=torch.bool)
    waiting: list[tuple[float, int, int]] = []
    opened: set[int] = set()

    def open_slot(index: int) -> None:
        if index not in opened:
            opened.add(index)
            for u in range(graph.upstream(graph.slots[index])):
                heapq.heappush(waiting, (-float(size[u, index]), index, u))

    open_slot(len(graph.slots) - 1)
    kept = 0
    while kept < n and waiting:
        _, index, u = heapq.heappop(waiting)
        mask[u, index] = True
        kept += 1
        for slot in graph.slots_of(graph.sources[u]):
            open_slot(rank[slot])
    return _circuit(graph, mask, scores, prune)


def threshold(graph: Graph, scores: EdgeTable, tau: float, *, absolute: bool = False, prune: bool = True) -> Circuit:
    """Every edge whose score (or its size) is at least tau."""
    size = _sizes(finite(graph, scores), absolute)
    return _circuit(graph, (size >= tau) & edge_mask(graph), scores, prune)


def select(
    graph: Graph, scores: EdgeTable, n: int, how: Selection = "top", *, absolute: bool = False, prune: bool = True
) -> Circuit:
    """`top` or `greedy` by name."""
    if how not in ("top", "greedy"):
        raise unknown("selection", how, ["top", "greedy"])
    return (top if how == "top" else greedy)(graph, scores, n, absolute=absolute, prune=prune)


def ranking(graph: Graph, scores: EdgeTable, *, absolute: bool = False) -> Tensor:
    """Indices into `graph.edges`, best first; ties in the graph's order."""
    flat = per_edge(graph, _sizes(finite(graph, scores.double().cpu()), absolute))
    return torch.argsort(flat, descending=True, stable=True)


def _sizes(scores: Tensor, absolute: bool) -> Tensor:
    return scores.abs() if absolute else scores


def _count(graph: Graph, n: int) -> int:
    if not 0 <= n <= len(graph.edges):
        raise UserError(f"{n} edges asked of a graph that has {len(graph.edges)}")
    return n


def _laid(graph: Graph, flat: Tensor) -> Tensor:
    mask = torch.zeros(len(graph.slots), len(graph.sources), dtype=torch.bool)
    mask[edge_mask(graph).T] = flat
    return mask.T.contiguous()


def _circuit(graph: Graph, mask: Tensor, scores: EdgeTable, prune: bool) -> Circuit:
    found = Circuit(graph, mask, scores)
    return found.pruned() if prune else found
