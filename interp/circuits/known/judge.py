"""Judging discovery methods by known circuits, and explaining true edges that exact patching does not see.

A method's scores of all edges are ranked by size and compared with the true edges: AUROC with its interval,
precision and recall at the true size. CPR and CMD are of the same ranking on other prompts, by the smooth
metric. Where a true edge has an exact effect of at most `SILENT`, `explain` says why:

    redundant   together with other true edges it matters: m changes when it goes after they went (one partner,
                else two of them, else three)
    constant    the node that reads it writes the same without it, on every prompt, wherever outputs are read
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.circuits.curve import faithfulness_curve
from interp.circuits.discover import Discovery, discover
from interp.circuits.known.registry import Known
from interp.circuits.live import Live
from interp.circuits.roc import Agreement, agreement, roc
from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit, per_edge
from interp.graph import Edge

SILENT = 1e-6
"""Effects up to this count as none."""
TRIES = 400
"""Sets of partners tried of each size, `CHUNK` at a time until one bites."""
CHUNK = 16
BITES = 1e-4
"""A joint ablation must change the output by more than this."""
LOSSES = ("acdc", "masks", "exact")
"""Methods that are given the metric that sees every change of the output; the others need a gradient."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """One method on one known circuit."""

    found: Discovery
    agreement: Agreement
    cpr: float
    cmd: float
    seconds: float
    roc: tuple[list[float], list[float]]


@dataclass(frozen=True)
class Silent:
    """A true edge without an effect of its own."""

    edge: Edge
    effect: float
    why: str
    """"redundant", "constant" or "unexplained"."""
    partners: tuple[Edge, ...]
    joint: float
    """Change of the metric when the edge goes too, after its partners went."""
    reader_change: float
    """Largest change of what the reading node writes when the edge alone is ablated, at positions that are read."""


def judge(known: Known, other: Known, method: str, seed: int = 0, **settings: Any) -> Verdict:
    """Run a method on a known circuit; `other` is the same circuit with other prompts, for CPR and CMD."""
    metric = known.effect if method in LOSSES else known.smooth
    truth, ungrouped = per_edge(known.truth.graph, known.truth.mask).numpy(), known.truth.graph.ungrouped
    if method != "acdc":
        settings = {"size": max(1, int(truth.sum())), "absolute": method != "masks", **settings}
    start = time.perf_counter()
    found = discover(
        known.model, known.task, method, metric=metric, recipe=known.recipe, ungrouped=ungrouped, **settings
    )
    seconds = time.perf_counter() - start
    size = sizes(found)
    false, true = roc(size, truth)
    evaluator = Evaluator.of(other.model, other.task, other.smooth, recipe=other.recipe, ungrouped=ungrouped)
    assert found.circuit.scores is not None
    curve = faithfulness_curve(evaluator, found.circuit.scores, absolute=found.absolute)
    return Verdict(
        found, agreement(size, truth, np.random.default_rng(seed)), curve.cpr, curve.cmd, seconds,
        (false.tolist(), true.tolist()),
    )  # fmt: skip


def sizes(found: Discovery) -> np.ndarray:
    """What edges are ranked by: the score, or its size."""
    assert found.circuit.scores is not None
    flat = per_edge(found.circuit.graph, found.circuit.scores)
    return np.asarray((flat.abs() if found.absolute else flat).numpy())


def explain(known: Known, effects: np.ndarray) -> list[Silent]:
    """Why true edges with no effect of their own are true: one entry per such edge."""
    graph, truth = known.truth.graph, known.truth
    by_edge = dict(zip(graph.edges, effects.tolist(), strict=True))
    missed = [e for e in truth.edges if abs(by_edge[e]) <= SILENT]
    if not missed:
        return []
    evaluator = Evaluator.of(known.model, known.task, known.effect, recipe=known.recipe, ungrouped=graph.ungrouped)
    return [_explain(evaluator, truth, e, by_edge[e]) for e in missed]


def _explain(evaluator: Evaluator, truth: Circuit, edge: Edge, effect: float) -> Silent:
    others, rng = [e for e in truth.edges if e != edge], random.Random(0)
    moved, bite = reader_change(evaluator, edge), 0.0
    if moved <= 0:  # no set of partners upstream of the reader can tell
        return Silent(edge, effect, "constant", (), 0.0, moved)
    for size in (1, 2, 3):
        sets = list(combinations(others, size))
        sets = sets if len(sets) <= TRIES else rng.sample(sets, TRIES)
        for start in range(0, len(sets), CHUNK):
            some = sets[start : start + CHUNK]
            joint = _joint(evaluator, edge, some)
            best = int(joint.argmax())
            bite = max(bite, float(joint[best]))
            if bite > BITES:
                return Silent(edge, effect, "redundant", some[best], bite, moved)
    return Silent(edge, effect, "constant" if moved <= SILENT else "unexplained", (), bite, moved)


def _joint(evaluator: Evaluator, edge: Edge, sets: Sequence[tuple[Edge, ...]]) -> Float[Tensor, " set"]:
    """How much the metric changes by the edge, after each set went. It is a distance from the whole model, so
    two circuits with one distance may still differ: this is a lower bound."""
    full, graph = Circuit.full(evaluator.graph), evaluator.graph
    without = [full - Circuit.of(graph, s) for s in sets]
    both = [c - Circuit.of(graph, [edge]) for c in without]
    values = evaluator.values([*without, *both])
    return (values[len(without) :] - values[: len(without)]).abs().mean(1)


def reader_change(evaluator: Evaluator, edge: Edge) -> float:
    """Largest change of what the nodes that read an edge write, when it alone is ablated.

    At the task's own positions: not at padding, nor before its `first_read`.
    """
    graph, live = evaluator.graph, Live(evaluator.runner)
    slot = graph.slot_index[edge.dst]
    mask = live.mask[:, slot].clone()
    mask[graph.source_index[edge.src]] = False
    changes = live.metric_with({slot: mask[None]})
    prompts = evaluator.task.clean
    real = (prompts.mask & (prompts.positions >= int(str(evaluator.task.meta.get("first_read", 0)))))[:, live.first :]
    gaps = [0.0]
    for node in graph.readers(edge.dst):
        u = graph.source_index.get(node)
        if u is not None and u in changes.sources:
            low = u < live.low
            gap = (changes.sources[u][0] - live.live[not low][u]).abs()
            here = real if low else live.narrow(real[None, :, :, None].double())[0, ..., 0] > 0
            gaps.append(float((gap * here[..., None]).max()))
    return max(gaps)


def false_effects(known: Known, effects: np.ndarray) -> list[tuple[Edge, float]]:
    """False edges whose effect is above `SILENT`, largest first."""
    graph = known.truth.graph
    found = [
        (e, v) for e, v in zip(graph.edges, effects.tolist(), strict=True) if e not in known.truth and abs(v) > SILENT
    ]
    return sorted(found, key=lambda pair: -abs(pair[1]))
