"""Attribution agreement: how close each method's scores come to exact patching, per layer and kind of edge.

One row per method, measure (`metric`: pearson, overlap, signs) and group of rows (`components`: all, q, k, v,
mlp, logits, or a site; `layer`), with a 95% interval over prompts. Edges and nodes are compared with the exact
effects of ablating them one by one; see `interp.attribution.agreement` for the measures.

    interp run attribution_agreement --model toy-ioi --task ioi
    interp run attribution_agreement --set granularity=node --set ablation=mean

Limits: exact patching runs every edge, so this is for small models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for
from interp.context import MethodName

METHODS = ("atp", "atp_star", "eap", "eap_ig_inputs", "eap_ig_activations", "clean_corrupt", "relp")


class AttributionAgreement(ModelTaskConfig):
    """Settings of `attribution_agreement`."""

    methods: tuple[MethodName, ...] = Field(
        METHODS, min_length=1, description="methods; those without the granularity skipped"
    )
    granularity: tuple[Literal["edge", "node"], ...] = Field(
        ("edge", "node"), min_length=1, description="what is scored"
    )
    ablation: Literal["corrupt", "mean", "zero", "resample"] = Field(
        "corrupt", description="what a part is replaced by"
    )
    steps: int = Field(5, ge=1, description="steps of the integrals")
    rule: Literal["midpoint", "trapezoid"] = Field("midpoint", description="how integrals are summed")
    ungrouped: bool = Field(False, description="a k and a v for every query head")


def run(config: AttributionAgreement, context: Context) -> Table:
    """Exact scores once for each granularity, then every method against them."""
    from interp.attribution.agreement import agree, rows_of
    from interp.attribution.methods import attribute, get_method
    from interp.attribution.nodes import default_sites
    from interp.interventions.options import bar, options_of
    from interp.registry import UserError
    from interp.results.frames import typed
    from interp.results.schemas import EFFECT

    model, task = context.model, context.task
    chosen = [get_method(m) for m in config.methods]
    how = context.resampling(task.n, None if task.cluster is None else task.cluster.tolist())
    rows = []
    for granularity in config.granularity:
        shared: dict[str, Any] = {
            "ablation": config.ablation, "seed": config.seed, "steps": config.steps, "rule": config.rule,
            "ungrouped": config.ungrouped, "options": options_of(context),
            "sites": default_sites(model.geometry) if granularity == "node" else None,
        }  # fmt: skip
        log = context.rows if granularity == "edge" else None
        progress = bar(context, f"exact {granularity}s")
        exact = attribute(model, task, "exact", granularity, config.metric, progress=progress, log=log, **shared)
        for method in chosen:
            if granularity in method.granularities:
                scores = attribute(model, task, method.name, granularity, config.metric, **shared)
                rows += rows_of(agree(scores, exact, how), scores, task.n)
    if not rows:
        raise UserError(f"none of {', '.join(config.methods)} scores {' or '.join(config.granularity)}s")
    schema = EFFECT.plus("agreement", main="value")
    return Table(typed(rows, schema), schema)


EXPERIMENT = Experiment(
    "attribution_agreement",
    1,
    AttributionAgreement,
    run,
    {"smoke": {"n": 6, "methods": ["eap", "atp_star", "relp"]}},
)

if __name__ == "__main__":
    raise SystemExit(main_for("attribution_agreement"))
