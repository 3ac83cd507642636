"""The IOI paper's three tests of a circuit C against the whole model N, by knocking out sets of nodes K.

    faithfulness   |m(N) − m(C)|, small is better
    completeness   for K ⊆ C: |m(C∖K) − m(N∖K)|, small for every K: nothing outside C does the same job
    minimality     for each node v of C the largest |m(C∖(K ∪ {v})) − m(C∖K)| over K ⊆ C∖{v}, large is better

m is the mean over prompts; everything outside a circuit is ablated, and so is K. K is drawn at random, grown
greedily (each step the node that makes the difference largest), or one of the named classes of nodes.
Minimality tries no K, v's class without v, and random ones. All circuits of a step run as rows of packed
passes. Source: 2211.00593. Limits: a greedy or random search gives lower bounds of the worst case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit
from interp.graph import Node
from interp.registry import UserError, unknown

Nodes = frozenset[Node]
Classes = Mapping[str, Sequence[Node | str]]


@dataclass(frozen=True, eq=False)
class Difference:
    """One comparison of two circuits: |m(left) − m(right)| of the means, in the metric's unit."""

    name: str
    """random, greedy, a class's name; for minimality, how K was chosen."""
    nodes: tuple[Node, ...]
    """K."""
    left: Float[Tensor, " prompt"]
    right: Float[Tensor, " prompt"]
    node: Node | None = None
    """Minimality: the node tested."""

    @property
    def value(self) -> float:
        return abs(self.signed)

    @property
    def signed(self) -> float:
        """m(left) − m(right)."""
        return float((self.left - self.right).double().mean())


def faithfulness(evaluator: Evaluator, circuit: Circuit) -> Difference:
    """m(C) against m(N)."""
    return Difference("faithfulness", (), evaluator.values([circuit])[0], evaluator.whole)


def inner_nodes(circuit: Circuit) -> tuple[Node, ...]:
    """Nodes of a circuit that can be knocked out: heads and MLPs."""
    return tuple(n for n in circuit.nodes if n.kind in ("head", "mlp"))


def completeness(
    evaluator: Evaluator,
    circuit: Circuit,
    rng: np.random.Generator,
    *,
    classes: Classes | None = None,
    draws: int = 20,
    greedy_steps: int = 10,
) -> list[Difference]:
    """C∖K against N∖K for the empty K, random ones, each step of a greedy one, and each class."""
    nodes = inner_nodes(circuit)
    full = Circuit.full(evaluator.graph)
    sets: list[tuple[str, Nodes]] = [("empty", frozenset())]
    if nodes:
        sets += [("random", _drawn(nodes, rng)) for _ in range(draws)]
    sets += [(f"class {name}", frozenset(members)) for name, members in _classes(circuit, classes).items()]
    found = _compared(evaluator, circuit, full, sets)
    chosen: Nodes = frozenset()
    for _ in range(min(greedy_steps, len(nodes))):
        steps = [("greedy", chosen | {n}) for n in nodes if n not in chosen]
        tried = _compared(evaluator, circuit, full, steps)
        best = max(tried, key=lambda d: d.value)
        chosen = frozenset(best.nodes)
        found.append(best)
    return found


def minimality(
    evaluator: Evaluator,
    circuit: Circuit,
    rng: np.random.Generator,
    *,
    classes: Classes | None = None,
    draws: int = 20,
) -> list[Difference]:
    """For each node of C the K, among those tried, that shows it to matter most."""
    nodes = inner_nodes(circuit)
    by_class = _classes(circuit, classes)
    tries: list[tuple[Node, str, Nodes]] = []
    for v in nodes:
        rest = tuple(n for n in nodes if n != v)
        tries.append((v, "empty", frozenset()))
        tries += [(v, f"class {c}", frozenset(m) - {v}) for c, m in by_class.items() if v in m and len(m) > 1]
        tries += [(v, "random", _drawn(rest, rng)) for _ in range(draws if rest else 0)]
    left = evaluator.values([circuit.without(k | {v}) for v, _, k in tries])
    right = evaluator.values([circuit.without(k) for _, _, k in tries])
    every = [
        Difference(name, tuple(sorted(k)), a, b, v)
        for (v, name, k), a, b in zip(tries, left, right, strict=True)
    ]  # fmt: skip
    return [max((d for d in every if d.node == v), key=lambda d: d.value) for v in nodes]


def _compared(
    evaluator: Evaluator, circuit: Circuit, full: Circuit, sets: Sequence[tuple[str, Nodes]]
) -> list[Difference]:
    left = evaluator.values([circuit.without(k) for _, k in sets])
    right = evaluator.values([full.without(k) for _, k in sets])
    return [
        Difference(name, tuple(sorted(k)), a, b) for (name, k), a, b in zip(sets, left, right, strict=True)
    ]  # fmt: skip


def _drawn(nodes: Sequence[Node], rng: np.random.Generator) -> Nodes:
    """Each node with probability one half, at least one."""
    chosen = frozenset(n for n, keep in zip(nodes, rng.random(len(nodes)) < 0.5, strict=True) if keep)
    return chosen or frozenset([nodes[int(rng.integers(len(nodes)))]])


def _classes(circuit: Circuit, classes: Classes | None) -> dict[str, tuple[Node, ...]]:
    """Classes as nodes of the circuit. UserError for a node that the circuit lacks."""
    out = {}
    own = inner_nodes(circuit)
    for name, members in (classes or {}).items():
        nodes = tuple(Node.parse(m) if isinstance(m, str) else m for m in members)
        for n in nodes:
            if n not in own:
                raise unknown(f"node of class {name!r} (it must be in the circuit)", str(n), [str(x) for x in own])
        if not nodes:
            raise UserError(f"class {name!r} has no nodes")
        out[name] = nodes
    return out
