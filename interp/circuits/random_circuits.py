"""Random circuits of a given size, to compare a found one with.

Paths from the input to the logits are drawn (from the logits back: a source that the slot reads, then one of
its slots) and their edges joined until the size is reached, so that every edge lies on a path as it does in a
pruned circuit. A path that would overshoot is drawn again; where none fits, single edges between nodes that
are connected already fill up. Source: 2410.13032.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from interp.circuits.values import Circuit, edge_mask
from interp.graph import Graph
from interp.registry import UserError

TRIES = 50
Pair = tuple[int, int]


def random_circuits(graph: Graph, edges: int, count: int, rng: np.random.Generator) -> list[Circuit]:
    """`count` connected circuits of exactly `edges` edges. UserError for a size the graph cannot have."""
    if not 0 <= edges <= len(graph.edges):
        raise UserError(f"a random circuit of {edges} edges asked of a graph that has {len(graph.edges)}")
    return [random_circuit(graph, edges, rng) for _ in range(count)]


def random_circuit(graph: Graph, edges: int, rng: np.random.Generator) -> Circuit:
    """One of them."""
    kept: set[Pair] = set()
    failed = 0
    while len(kept) < edges and failed < TRIES:
        new = set(random_path(graph, rng)) - kept
        if new and len(kept) + len(new) <= edges:
            kept |= new
            failed = 0
        else:
            failed += 1
    for pair in _between(graph, kept, rng):
        if len(kept) >= edges:
            break
        kept.add(pair)
    mask = torch.zeros(len(graph.sources), len(graph.slots), dtype=torch.bool)
    for u, v in kept:
        mask[u, v] = True
    return Circuit(graph, mask)


def random_path(graph: Graph, rng: np.random.Generator) -> Iterator[Pair]:
    """Edges (source, slot) of one random path, from the logits back to the input."""
    slot = graph.slots[-1]
    while True:
        u = int(rng.integers(graph.upstream(slot)))
        yield u, graph.slot_index[slot]
        if u == 0:
            return
        own = graph.slots_of(graph.sources[u])
        slot = own[int(rng.integers(len(own)))]


def _between(graph: Graph, kept: set[Pair], rng: np.random.Generator) -> list[Pair]:
    """Edges not kept whose source and reader are in the circuit, shuffled; all others after them."""
    sources = {0, *(u for u, _ in kept)}
    slots = {graph.slot_index[s] for u in sources for s in graph.slots_of(graph.sources[u])} | {len(graph.slots) - 1}
    every = [(u, v) for u, v in edge_mask(graph).nonzero().tolist() if (u, v) not in kept]
    every = [every[i] for i in rng.permutation(len(every))]
    return sorted(every, key=lambda pair: pair[0] not in sources or pair[1] not in slots)
