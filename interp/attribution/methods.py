"""Attribution methods by name, and `attribute`, the one way to run them.

    scores = attribute(model, task, "eap_ig_inputs", metric="logit_diff", steps=5)

A method is a function `fn(request) -> Scores` registered with `@register_method(...)`. The request has been
checked: the metric fits the task and has a gradient where the method needs one, and the granularity is one of
the method's. Packages of other people add methods by the entry-point group `interp.methods`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from interp.attribution.points import no_gradient
from interp.attribution.scores import Scores
from interp.graph import Graph
from interp.interventions.effects import Progress
from interp.interventions.plan import DEFAULT, Options
from interp.interventions.sources import Recipe, require_additive
from interp.interventions.sweep import Sides
from interp.metric_values import Metric
from interp.models.model import Model
from interp.registry import Registry, UserError, unknown
from interp.results.rowlog import RowLog
from interp.tasks.values import Task

BATCH_TOKENS = 512
"""Tokens of prompts whose sources' changes are held at once: sources × tokens × d_model numbers."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be attributed, and how."""

    sides: Sides
    granularity: str
    recipe: Recipe = field(default_factory=Recipe)
    steps: int = 5
    rule: str = "midpoint"
    """How an integral is summed: midpoints of `steps` intervals, or their ends weighed as trapezoids."""
    ungrouped: bool = False
    sites: tuple[str, ...] | None = None
    """Node granularity: sites to score; by default the graph's nodes."""
    by: str = "head"
    """Node granularity: what a site is cut into, such as head, head+position, neuron."""
    labels: tuple[str, ...] | None = None
    batch_tokens: int = BATCH_TOKENS
    options: Options = DEFAULT
    progress: Progress | None = None
    log: RowLog | None = None
    """Where exact edges are recorded as they are computed, to resume an interrupted run."""

    @property
    def model(self) -> Model:
        return self.sides.model

    @property
    def task(self) -> Task:
        return self.sides.task

    @property
    def graph(self) -> Graph:
        """The graph whose edges are scored."""
        return Graph(self.model.geometry, self.ungrouped)

    def of(self, task: Task) -> Sides:
        """The two sides of a part of the task."""
        return self.sides if task is self.task else Sides(self.model, task, self.sides.metric)


MethodFunction = Callable[[Request], Scores]


@dataclass(frozen=True, eq=False)
class Method:
    """A registered method: what it scores and what it needs."""

    name: str
    fn: MethodFunction = field(repr=False)
    granularities: tuple[str, ...] = ("node", "edge")
    gradient: bool = True
    """The metric must have a gradient."""
    signed: bool = True
    """A positive score helps the metric; otherwise scores are sizes."""
    summary: str = ""


METHODS: Registry[Method] = Registry("method", group="interp.methods")


def register_method(
    name: str, *, granularities: Sequence[str] = ("node", "edge"), gradient: bool = True, signed: bool = True
) -> Callable[[MethodFunction], MethodFunction]:
    """Decorator: register `fn(request) -> Scores` under a name. A name that is taken raises UserError."""

    def keep(fn: MethodFunction) -> MethodFunction:
        summary = (fn.__doc__ or "").strip().partition("\n")[0]
        METHODS.add(name, Method(name, fn, tuple(granularities), gradient, signed, summary))
        return fn

    return keep


def get_method(name: str) -> Method:
    """A method by name; an unknown one raises with the nearest ones."""
    from interp.attribution import atp, eap, exact, relp  # noqa: F401  their functions register themselves

    return METHODS[name]


def attribute(
    model: Model,
    task: Task,
    method: str = "eap",
    granularity: str = "edge",
    metric: str | Metric = "logit_diff",
    *,
    ablation: str = "corrupt",
    over: str = "auto",
    mean_by: str = "auto",
    match: str | None = None,
    seed: int = 0,
    steps: int = 5,
    rule: str = "midpoint",
    ungrouped: bool = False,
    sites: str | Sequence[str] | None = None,
    by: str = "head",
    labels: Sequence[str] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    options: Options = DEFAULT,
    progress: Progress | None = None,
    log: RowLog | None = None,
) -> Scores:
    """Score every edge or node of a model on a task's clean prompts.

    Args:
        method: atp, atp_star, eap, eap_ig_inputs, eap_ig_activations, clean_corrupt, relp, exact, or one
            that another package registered.
        granularity: `node` or `edge`.
        ablation, over, mean_by, match: the ablation whose effect is estimated, as in `ablate`.
        steps, rule: of the integrals (eap_ig_inputs, eap_ig_activations); rule is midpoint or trapezoid.
        ungrouped: give every query head a k and a v of its own, as in files of the MIB circuit track.
        log: exact edges only: a row log to resume from.
        sites, by, labels: node granularity only; sites default to the graph's nodes.

    Returns scores per prompt in the metric's unit, positive where the part helps the metric.

    Raises UserError for unknown names, a metric without a gradient for a gradient method, pairs of unequal
    length under the corrupt ablation, and edges of models whose residual stream is no sum.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> scores = attribute(model, task, "eap", "node")
    >>> scores.values.shape[1]  # one score per node and prompt
    8
    """
    found = get_method(method)
    if granularity not in ("node", "edge"):
        raise unknown("granularity", granularity, ["node", "edge"])
    if granularity not in found.granularities:
        raise UserError(f"method {method} scores {' and '.join(found.granularities)}s only, not {granularity}s")
    if rule not in ("midpoint", "trapezoid"):
        raise unknown("rule", rule, ["midpoint", "trapezoid"])
    if ablation not in ("zero", "mean", "resample", "corrupt"):
        raise unknown("ablation", ablation, ["zero", "mean", "resample", "corrupt"])
    if steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}")
    if granularity == "edge" and (sites is not None or by != "head"):
        raise UserError("sites and by choose nodes: they need granularity=node")
    sides = Sides(model, task, metric)
    if found.gradient and not sides.metric.differentiable:
        raise no_gradient(sides.metric.name)
    if granularity == "edge":
        require_additive(model.geometry)
    if ablation == "corrupt":
        task.require_aligned()
    chosen = (sites,) if isinstance(sites, str) else None if sites is None else tuple(sites)
    request = Request(
        sides, granularity, Recipe(ablation, over, mean_by, match, seed), steps, rule, ungrouped, chosen, by,
        None if labels is None else tuple(labels), batch_tokens, options, progress, log,
    )  # fmt: skip
    return found.fn(request)


def about_of(request: Request, method: str, ablation: str, algorithm: str | None = None) -> dict[str, Any]:
    """Columns that every row of a method's table states."""
    edges = request.granularity == "edge"
    shape = ("ungrouped" if request.ungrouped else "grouped") if edges else None
    granularity = request.granularity if edges or request.by == "head" else f"node ({request.by})"
    stated = {"method": method, "algorithm": algorithm, "ablation": ablation, "granularity": granularity}
    return {k: v for k, v in {**stated, "components": shape}.items() if v is not None}
