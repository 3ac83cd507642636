"""Exact scores: every edge or node is ablated in a run of its own; score = −effect.

What the gradient methods estimate, with the same sign: a positive score means that the metric falls (a
loss-like metric rises) when the part is ablated. Edges: `interp.interventions.edges`; nodes: `ablate`.
"""

from __future__ import annotations

from interp.attribution.methods import Request, about_of, register_method
from interp.attribution.nodes import by_for, default_sites
from interp.attribution.scores import Scores, edge_keys
from interp.hooks.sites import SITES, resolve
from interp.interventions.ablation import ablate
from interp.interventions.edges import edge_effects
from interp.interventions.effects import Effects, stacked


@register_method("exact", gradient=False)
def exact(request: Request) -> Scores:
    """Every edge or node ablated in a run of its own; needs no gradient."""
    if request.granularity == "edge":
        effects = edge_effects(
            request.model, request.task, None, request.sides.metric, recipe=request.recipe,
            ungrouped=request.ungrouped, options=request.options, progress=request.progress, log=request.log,
        )  # fmt: skip
        return _scores(request, effects, True)
    g = request.model.geometry
    parts = []
    for site in request.sites or default_sites(g):
        recipe = request.recipe
        parts.append(
            ablate(
                request.model, request.task, site, by_for(SITES[resolve(site, g)[0].site], request.by),
                request.sides.metric, ablation=recipe.ablation, over=recipe.over, mean_by=recipe.mean_by,  # type: ignore[arg-type]
                match=recipe.match, labels=request.labels, seed=recipe.seed, options=request.options,
                progress=request.progress,
            )
        )  # fmt: skip
    return _scores(request, stacked(parts), False)


def _scores(request: Request, effects: Effects, edges: bool) -> Scores:
    sign = 1.0 if request.sides.metric.loss_like else -1.0
    values = (effects.values - effects.baseline) * sign
    about = about_of(request, "exact", str(effects.about["ablation"]))
    graph = request.graph if edges else None
    keys = effects.keys if graph is None else edge_keys(graph)
    return Scores(keys, values, request.sides, about, graph, seed=request.recipe.seed)
