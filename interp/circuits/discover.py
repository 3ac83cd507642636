"""Discovery by name: ACDC, learned masks, and every attribution method with a selection of its edges.

    found = discover(model, task, "eap_ig_inputs", share=0.1)
    found.circuit, found.circuit.scores

A method is a function `fn(request) -> Discovery`, registered with `@register_discovery(name)`; a name that is
none is looked up among the attribution methods, whose scores then rank the edges (top-n or greedy). Scores are
finite, positive ones help the metric, and kept edges rank above dropped ones. Packages of other people add
methods by the entry-point group `interp.discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attribution.methods import METHODS as ATTRIBUTIONS
from interp.attribution.methods import attribute, get_method
from interp.circuits.acdc import LOSSES, Acdc, Loss, Order, Search, Step
from interp.circuits.select import Selection, ranking, select
from interp.circuits.values import Circuit, edge_table, per_edge
from interp.graph import Edge, Graph
from interp.interventions.circuit import CircuitRunner
from interp.interventions.effects import Progress
from interp.interventions.plan import DEFAULT, Options
from interp.interventions.sources import Recipe
from interp.interventions.sweep import Sides
from interp.metric_values import Metric, get_metric
from interp.models.model import Model
from interp.registry import Registry, UserError, unknown
from interp.results.rowlog import RowLog
from interp.tasks.values import Task

SHARE = 0.1
"""Share of the edges kept where neither a size nor a threshold is given."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be found, and how."""

    model: Model
    task: Task
    metric: str | Metric = "auto"
    """`auto`: kl for methods that minimise a loss, logit_diff for scores."""
    recipe: Recipe = field(default_factory=Recipe)
    ungrouped: bool = False
    size: int | None = None
    share: float | None = None
    tau: float | None = None
    """ACDC's threshold."""
    loss: Loss | None = None
    """How a loss is made of the metric; by default the metric itself where it is one, else the gap."""
    order: Order = "late"
    selection: Selection = "top"
    absolute: bool = False
    steps: int = 5
    mask_steps: int = 200
    options: Options = DEFAULT
    progress: Progress | None = None
    log: RowLog | None = None

    @property
    def graph(self) -> Graph:
        return Graph(self.model.geometry, self.ungrouped)

    def metric_for(self, default: str) -> Metric:
        """The metric asked for, or the method's own."""
        return get_metric(default if self.metric == "auto" else self.metric)

    def edges(self, graph: Graph) -> int:
        """How many edges are wanted."""
        n = len(graph.edges)
        if self.size is not None:
            if not 0 < self.size <= n:
                raise UserError(f"a circuit of {self.size} edges asked of a graph that has {n}")
            return self.size
        share = SHARE if self.share is None else self.share
        if not 0 < share <= 1:
            raise UserError(f"a share of the edges lies between 0 and 1, got {share}")
        return max(1, int(share * n))

    def sides(self, default: str) -> Sides:
        return Sides(self.model, self.task, self.metric_for(default))

    def runner(self, default: str) -> CircuitRunner:
        """Runs circuits under this recipe."""
        return CircuitRunner.prepare(self.sides(default), self.graph, self.recipe, "clean", self.options)

    def loss_kind(self, default: str) -> Loss:
        """How a loss is made of the metric."""
        if self.loss is not None:
            return self.loss
        return "metric" if self.metric_for(default).loss_like else "gap"

    def loss_of(self, runner: CircuitRunner) -> Callable[[Float[Tensor, "circuit prompt"]], Tensor]:
        """The loss of circuits, a number with gradients."""
        kind = self.loss_kind("kl")
        if kind not in LOSSES:
            raise unknown("loss", kind, list(LOSSES))
        base = runner.sides.value("clean").mean()
        if kind == "metric":
            return lambda values: values.mean()
        return lambda values: (base - values.mean(1)).abs().mean() if kind == "absolute" else base - values.mean()


@dataclass(frozen=True, eq=False)
class Discovery:
    """A circuit found, with the scores that ranked its edges and what finding it cost."""

    circuit: Circuit
    metric: Metric
    cost: float
    """Forward passes it took, a backward pass counting as two."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Columns that describe the method: algorithm, ablation, …"""
    absolute: bool = False
    """Edges are ranked by the size of their score."""
    per_prompt: Float[Tensor, "edge prompt"] | None = None
    """Scores by prompt, in the order of the graph's edges."""
    steps: tuple[Step, ...] = ()
    """ACDC's decisions."""
    history: tuple[Mapping[str, float], ...] = ()
    """Training of masks."""

    @property
    def ranking(self) -> tuple[Edge, ...]:
        """Every edge, best first: kept ones before dropped ones, within both by score (or its size)."""
        assert self.circuit.scores is not None
        graph, kept = self.circuit.graph, per_edge(self.circuit.graph, self.circuit.mask)
        order = ranking(graph, self.circuit.scores, absolute=self.absolute)
        first = torch.argsort((~kept[order]).int(), stable=True)
        return tuple(graph.edges[i] for i in order[first].tolist())

    def _repr_html_(self) -> str:
        from interp.plots.show import card

        facts = {"metric": self.metric.name, "cost": f"{self.cost:.4g} forward passes", **self.about}
        kept = f"{len(self.circuit)} of {len(self.circuit.graph.edges)} edges"
        return card("Circuit found", {"kept": kept, **facts}, figures=[self.circuit.draw()])


DiscoveryFunction = Callable[[Request], Discovery]
DISCOVERIES: Registry[DiscoveryFunction] = Registry("discovery method", group="interp.discovery")


def register_discovery(name: str) -> Callable[[DiscoveryFunction], DiscoveryFunction]:
    """Decorator: register `fn(request) -> Discovery` under a name. A name that is taken raises UserError."""

    def keep(fn: DiscoveryFunction) -> DiscoveryFunction:
        DISCOVERIES.add(name, fn)
        return fn

    return keep


def method_names() -> list[str]:
    """Every method that `discover` takes."""
    from interp.attribution import atp, eap, exact, relp  # noqa: F401  their functions register themselves
    from interp.circuits import masks  # noqa: F401

    edges = [name for name in ATTRIBUTIONS.names() if "edge" in ATTRIBUTIONS[name].granularities]
    return sorted({*DISCOVERIES.names(), *edges})


def discover(model: Model, task: Task, method: str = "acdc", **settings: Any) -> Discovery:
    """Find a circuit. Settings are the fields of `Request`. UserError for an unknown method or setting.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> discover(model, task, "eap", size=30).circuit  # what no path joins is dropped
    Circuit(29 of 262 edges, 12 nodes)
    """
    names = method_names()
    if method not in names:
        raise unknown("discovery method", method, names)
    known = [f for f in Request.__dataclass_fields__ if f not in ("model", "task")]
    for name in settings:
        if name not in known:
            raise unknown("setting of discover", name, known)
    request = Request(model, task, **settings)
    return DISCOVERIES[method](request) if method in DISCOVERIES else by_scores(request, method)


@register_discovery("acdc")
def acdc_method(request: Request) -> Discovery:
    """ACDC at a threshold, or at the threshold whose circuit has at most the size asked for."""
    search = Search.prepare(
        request.sides("kl"), loss=request.loss_kind("kl"), order=request.order, recipe=request.recipe,
        ungrouped=request.ungrouped, options=request.options,
    )  # fmt: skip
    if request.tau is not None:
        found = search.run(request.tau, request.progress, request.log)
    elif request.size is None and request.share is None:
        found = search.run(0.01, request.progress, request.log)
    else:
        found = search.to_size(request.edges(request.graph), progress=request.progress)
    return Discovery(found.circuit, request.metric_for("kl"), cost=float(found.rows), about=_acdc_about(found, search),
                     steps=found.steps)  # fmt: skip


def _acdc_about(found: Acdc, search: Search) -> dict[str, str]:
    loss = {"metric": "the metric", "gap": "model - circuit", "absolute": "|model - circuit|"}[found.loss]
    words = f"tau={found.tau:g}, loss: {loss}, parents {found.order} first, ranked by the threshold at which they go"
    return {"algorithm": words, "ablation": search.runner.name}


def by_scores(request: Request, method: str) -> Discovery:
    """Edges ranked by an attribution method, the best ones kept."""
    if request.tau is not None:
        raise UserError(f"tau is ACDC's; with method {method} give size= or share=")
    if not get_method(method).signed and not request.absolute:
        raise UserError(f"scores of {method} have no sign: select with absolute=true")
    recipe, graph = request.recipe, request.graph
    scores = attribute(
        request.model, request.task, method, "edge", request.metric_for("logit_diff"), ablation=recipe.ablation,
        over=recipe.over, mean_by=recipe.mean_by, match=recipe.match, seed=recipe.seed, steps=request.steps,
        ungrouped=request.ungrouped, options=request.options, progress=request.progress,
    )  # fmt: skip
    table = edge_table(graph, scores.mean.double().cpu())
    n = request.edges(graph)
    circuit = select(graph, table, n, request.selection, absolute=request.absolute)
    how = f"{request.selection} {n} of {'absolute' if request.absolute else 'signed'} scores"
    return Discovery(
        circuit, request.metric_for("logit_diff"), forward_equivalents(method, request.steps, graph),
        {"algorithm": how, "ablation": str(scores.about.get("ablation"))}, request.absolute, scores.values,
    )  # fmt: skip


def forward_equivalents(method: str, steps: int, graph: Graph) -> float:
    """Forward passes of an attribution, a backward pass counting as two; NaN where it is not known.

    The ablated run is counted once. `exact` counts a pass per edge and `eap_ig_activations` whole passes per source,
    though they run only the part of the model above it.
    """
    gradient = 3.0
    known = {
        "eap": gradient, "relp": gradient, "clean_corrupt": 2 * gradient, "eap_ig_inputs": steps * gradient,
        "eap_ig_activations": len(graph.sources) * steps * gradient, "exact": float(len(graph.edges)),
    }  # fmt: skip
    return known.get(method, float("nan")) + 1.0
