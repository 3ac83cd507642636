"""ACDC: remove edges one after the other where removing them costs less than τ.

Nodes are visited from the output to the input: the logits, then by layer from the last one the MLP and the
heads from the last one (q, k, v). At a node that has kept children every edge into it is tried: it goes when

    loss(circuit without it) − loss(circuit) < τ,

loss being the mean over prompts of a loss-like metric: KL(N ‖ C) by default, or m(N) − m(C) (`gap`), or its
size (`absolute`). Edges into a node without kept children change nothing and go untried, with change 0. Parents
are tried from the latest to the earliest one (`order`: late, early, or random with a seed).

Candidates run packed. Rows assume what will probably be decided about the candidates before them (gone, until
a pass has shown otherwise); a row counts only if that was so, and the rest are run again: the result is that of
one candidate at a time.

Scores are the changes of the loss: an edge would go at any τ above its score, so kept edges rank highest.

Source: 2304.14997. Limits: greedy, so what is kept depends on the order; redundant parts hide one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.circuits.live import Live
from interp.circuits.values import Circuit
from interp.graph import Edge, Graph
from interp.interventions.circuit import CircuitRunner
from interp.interventions.effects import Progress
from interp.interventions.plan import DEFAULT, PASS_TOKENS, Options
from interp.interventions.sources import Recipe
from interp.interventions.sweep import Sides
from interp.metric_values import Metric
from interp.models.model import Model
from interp.registry import UserError, unknown
from interp.results.rowlog import RowLog
from interp.tasks.values import Task

Loss = Literal["metric", "gap", "absolute"]
Order = Literal["late", "early", "random"]
CORRUPT = Recipe()
LOSSES, ORDERS = ("metric", "gap", "absolute"), ("late", "early", "random")


@dataclass(frozen=True)
class Step:
    """What was decided about one edge."""

    edge: Edge
    change: float
    """Loss without the edge − loss with it, in the metric's unit."""
    loss: float
    """Loss of the circuit after the decision."""
    kept: bool
    tried: bool
    """False: the node has no kept children, so nothing had to be run."""


@dataclass(frozen=True, eq=False)
class Acdc:
    """A finished search: the circuit, with the changes as scores, and every step on the way."""

    circuit: Circuit
    steps: tuple[Step, ...]
    tau: float
    loss: Loss
    order: Order
    start: float
    """Loss of the whole model."""
    rows: int
    """Circuits that were run, those run again included."""

    @property
    def final(self) -> float:
        """Loss of the circuit found."""
        return self.steps[-1].loss if self.steps else self.start


def acdc(
    model: Model,
    task: Task,
    tau: float,
    metric: str | Metric = "kl",
    *,
    loss: Loss = "metric",
    order: Order = "late",
    recipe: Recipe = CORRUPT,
    ungrouped: bool = False,
    options: Options = DEFAULT,
    progress: Progress | None = None,
    log: RowLog | None = None,
) -> Acdc:
    """Search at one threshold. With a row log decisions are recorded, and those it holds are not made again.

    Raises UserError for a metric that is not loss-like with `loss="metric"`, a τ that is not above 0, and
    models on which edges are not defined.
    """
    search = Search.prepare(
        Sides(model, task, metric), loss=loss, order=order, recipe=recipe, ungrouped=ungrouped, options=options
    )
    return search.run(tau, progress, log)


@dataclass(frozen=True, eq=False)
class Search:
    """A prepared search: base run and ablation are made once, for any number of thresholds."""

    runner: CircuitRunner
    loss: Loss
    order: Order
    seed: int = 0
    base: Float[Tensor, " prompt"] = field(default_factory=lambda: torch.zeros(0))

    @staticmethod
    def prepare(
        sides: Sides,
        *,
        loss: Loss = "metric",
        order: Order = "late",
        recipe: Recipe = CORRUPT,
        ungrouped: bool = False,
        options: Options = DEFAULT,
    ) -> Search:
        """Check the settings, run the base and the ablation."""
        if loss not in LOSSES:
            raise unknown("loss", loss, list(LOSSES))
        if order not in ORDERS:
            raise unknown("order of parents", order, list(ORDERS))
        if loss == "metric" and not sides.metric.loss_like:
            raise UserError(
                f"ACDC needs a loss, and metric {sides.metric.name!r} is none: use kl, or loss=gap (model − circuit) "
                "or loss=absolute"
            )
        runner = CircuitRunner.prepare(sides, Graph(sides.model.geometry, ungrouped), recipe, "clean", options)
        return Search(runner, loss, order, recipe.seed, Live(runner).metric)

    def of(self, values: Float[Tensor, "*variant prompt"]) -> Float[Tensor, " *variant"]:
        """The loss of circuits from their metric per prompt."""
        mean = values.double().mean(-1)
        if self.loss == "metric":
            return mean
        gap = self.base.double().mean() - mean
        return gap if self.loss == "gap" else gap.abs()

    def empty(self) -> Float[Tensor, " prompt"]:
        """The metric of the empty circuit."""
        mask = torch.zeros(1, len(self.runner.graph.sources), len(self.runner.graph.slots), dtype=torch.bool)
        return self.runner.values(mask)[0]

    def run(self, tau: float, progress: Progress | None = None, log: RowLog | None = None) -> Acdc:
        """Search at one threshold."""
        if not tau > 0:
            raise UserError(f"tau must be above 0 (edges that change nothing would stay otherwise), got {tau}")
        return _Run(self, tau, progress, log).result()

    def to_size(self, edges: int, *, rounds: int = 12, progress: Callable[[int, int], None] | None = None) -> Acdc:
        """The largest circuit of at most `edges` edges among thresholds found by bisection of log τ.

        The number of edges kept need not fall steadily with τ, so a better threshold may exist.
        """
        if edges < 1:
            raise UserError(f"a circuit of at least 1 edge must be asked for, got {edges}")
        low, high = 1e-6, max(1.0, float(self.of(self.empty())) - float(self.of(self.base)))
        best: Acdc | None = None
        for i in range(rounds):
            tau = float(np.sqrt(low * high))
            found = self.run(tau)
            if len(found.circuit) <= edges:
                high = tau
                if best is None or len(found.circuit) > len(best.circuit):
                    best = found
            else:
                low = tau
            if progress is not None:
                progress(i + 1, rounds)
            if best is not None and len(best.circuit) == edges:
                break
        if best is None:
            raise UserError(f"no threshold between 1e-6 and {high:g} keeps at most {edges} edges")
        return best


class _Run:
    """One search at one threshold."""

    def __init__(self, search: Search, tau: float, progress: Progress | None, log: RowLog | None) -> None:
        self.search, self.tau, self.progress, self.log = search, tau, progress, log
        self.graph, self.live = search.runner.graph, Live(search.runner)
        self.steps: list[Step] = []
        self.start = self.now = float(search.of(self.live.metric))
        self.rows = 0
        self.total = len(self.graph.edges)

    def result(self) -> Acdc:
        """Visit every slot, then collect."""
        self._resume()
        done = {s.edge for s in self.steps}
        for slot, parents in slots_in_order(self.graph, self.search.order, self.search.seed):
            left = [u for u in parents if Edge(self.graph.sources[u], self.graph.slots[slot]) not in done]
            if left:
                self._visit(slot, left)
        scores = torch.zeros(len(self.graph.sources), len(self.graph.slots), dtype=torch.float64)
        for step in self.steps:
            scores[self.graph.source_index[step.edge.src], self.graph.slot_index[step.edge.dst]] = step.change
        s = self.search
        circuit = Circuit(self.graph, self.live.mask.cpu(), scores)
        return Acdc(circuit, tuple(self.steps), self.tau, s.loss, s.order, self.start, self.rows)

    def _visit(self, slot: int, parents: list[int]) -> None:
        if not self._has_children(slot):
            mask = self.live.mask[:, slot].clone()
            mask[parents] = False
            # nothing reads this node: no value moves
            self.live.mask[:, slot] = mask
            self.live.forget(slot)
            for u in parents:
                self._add(slot, u, 0.0, kept=False, tried=False)
            return
        guess: dict[int, float] = {}
        while parents:
            parents, guess = self._pass(slot, parents, guess)

    def _has_children(self, slot: int) -> bool:
        s = self.graph.slots[slot]
        if s.node.kind == "logits":
            return True
        readers = [self.graph.source_index[n] for n in self.graph.readers(s)]
        return bool(self.live.mask[readers].any())

    def _pass(self, slot: int, parents: list[int], guess: dict[int, float]) -> tuple[list[int], dict[int, float]]:
        """Decide as many parents as one pass allows; the rest, with what the pass says of them."""
        tried = parents[: self._size(slot)]
        present = self.live.mask[:, slot].clone()
        masks, assumed = [], present.clone()
        for u in tried:
            without = assumed.clone()
            without[u] = False
            masks.append(without)
            if guess.get(u, -np.inf) < self.tau:
                assumed = without
        rows = torch.stack(masks)
        changes = self.live.metric_with({slot: rows})
        losses = self.search.of(changes.metric).tolist()
        self.rows += len(tried)
        accepted = self._decide(slot, tried, rows, losses, guess)
        done, last = accepted
        if last is not None:
            self.live.commit({slot: rows}, changes, last)
        return parents[done:], self._guesses(tried, losses, done, last, guess)

    def _decide(
        self, slot: int, tried: list[int], rows: Tensor, losses: list[float], guess: dict[int, float]
    ) -> tuple[int, int | None]:
        """How many decisions hold, and the row that became the state (None where no edge went)."""
        last: int | None = None
        for i, u in enumerate(tried):
            change = losses[i] - self.now
            kept = not change < self.tau
            if not kept:
                self.now, last = losses[i], i
            self._add(slot, u, change, kept=kept, tried=True)
            if kept != (guess.get(u, -np.inf) >= self.tau):
                return i + 1, last  # the rows after this one assumed otherwise
        return len(tried), last

    def _guesses(
        self, tried: list[int], losses: list[float], done: int, last: int | None, guess: dict[int, float]
    ) -> dict[int, float]:
        """Changes of the candidates left, as this pass saw them beside one another."""
        out, before = {}, losses[done - 1]
        for i in range(done, len(tried)):
            out[tried[i]] = losses[i] - before
            if guess.get(tried[i], -np.inf) < self.tau:
                before = losses[i]
        return out

    def _size(self, slot: int) -> int:
        """Candidates of one pass: rows × columns that the slot's layer holds."""
        if self.search.runner.options.pack:
            return self.search.runner.options.pack
        tokens = self.live.rows * (self.live.kept if self.live.at_tail(slot) else self.live.width)
        return max(1, 2 * PASS_TOKENS // tokens)

    def _add(self, slot: int, source: int, change: float, *, kept: bool, tried: bool) -> None:
        edge = Edge(self.graph.sources[source], self.graph.slots[slot])
        self.steps.append(Step(edge, change, self.now, kept, tried))
        if self.log is not None:
            step = self.steps[-1]
            self.log.add({"edge": str(edge)}, {"change": change, "loss": step.loss, "kept": kept, "tried": tried})
        if self.progress is not None:
            self.progress(len(self.steps), self.total)

    def _resume(self) -> None:
        """Take over the decisions that the log holds; they are the first ones of the order."""
        if self.log is None or not len(self.log):
            return
        gone: dict[int, Bool[Tensor, " source"]] = {}
        for slot, parents in slots_in_order(self.graph, self.search.order, self.search.seed):
            for u in parents:
                edge = Edge(self.graph.sources[u], self.graph.slots[slot])
                row = self.log.get({"edge": str(edge)})
                if row is None:
                    self._take(gone)
                    return
                self.steps.append(Step(edge, row["change"], row["loss"], row["kept"], row["tried"]))
                if not row["kept"]:
                    gone.setdefault(slot, self.live.mask[:, slot].clone())[u] = False
        self._take(gone)

    def _take(self, gone: dict[int, Tensor]) -> None:
        if gone:
            rows = {slot: mask[None] for slot, mask in gone.items()}
            self.live.commit(rows, self.live.metric_with(rows), 0)
            self.now = float(self.search.of(self.live.metric))


def slots_in_order(graph: Graph, order: Order = "late", seed: int = 0) -> Iterator[tuple[int, list[int]]]:
    """Slots from the output to the input, each with its parents in the order they are tried."""
    rng = np.random.default_rng(seed)
    seen: set[int] = set()
    for node in reversed(graph.nodes):
        # heads and MLP of a layer are visited from the last one; a shared key with the last of its heads
        for slot in graph.slots_of(node):
            index = graph.slot_index[slot]
            if index in seen:
                continue
            seen.add(index)
            parents = list(range(graph.upstream(slot)))
            if order == "late":
                parents = parents[::-1]
            elif order == "random":
                parents = [parents[i] for i in rng.permutation(len(parents))]
            yield index, parents
