"""Attribution patching: a score for every edge or node of the model, by gradients or exactly.

score = estimated metric of the base run − metric with the part ablated, on the clean prompts: positive helps.
One row per edge (`src`, `dst`) or node (`site`, `layer`, `head` …), with a 95% interval over prompts.

    interp run attribution_patching --model toy-ioi --task ioi
    interp run attribution_patching --set method=eap_ig_inputs --set steps=10
    interp run attribution_patching --set method=atp_star --set granularity=node
    interp run attribution_patching --set method=exact --set ablation=mean

Methods: `interp list methods`. Sources: 2310.10348 (EAP), 2403.17806 (EAP-IG), 2403.00745 (AtP, AtP*),
2508.21258 (RelP). AtP*'s scores are sizes, without a sign.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for
from interp.context import SiteNames


class AttributionPatching(ModelTaskConfig):
    """Settings of `attribution_patching`."""

    method: str = Field(
        "eap", description="atp, atp_star, eap, eap_ig_inputs, eap_ig_activations, clean_corrupt, relp, exact"
    )
    granularity: Literal["edge", "node"] = Field("edge", description="what is scored")
    ablation: Literal["corrupt", "mean", "zero", "resample"] = Field(
        "corrupt", description="what a part is replaced by"
    )
    over: Literal["auto", "clean", "corrupt", "task"] = Field("auto", description="prompts of the mean")
    mean_by: Literal["auto", "all", "position", "template"] = Field("auto", description="cells of the mean")
    match: str | None = Field(None, description="with resample: label whose token the donor must share")
    steps: int = Field(5, ge=1, description="steps of the integral of eap_ig_*")
    rule: Literal["midpoint", "trapezoid"] = Field("midpoint", description="how the integral is summed")
    ungrouped: bool = Field(False, description="a k and a v for every query head")
    sites: SiteNames | None = Field(None, description="nodes: sites; the graph's nodes by default")
    by: str = Field("head", description="nodes: head, neuron, head+position, head+label, …")
    labels: tuple[str, ...] | None = Field(None, description="nodes: labels for by=label; all by default")


def run(config: AttributionPatching, context: Context) -> Table:
    """The scores of one method; exact edges stream to the row log and resume."""
    from interp.attribution.methods import attribute
    from interp.interventions.options import bar, options_of

    exact_edges = config.method == "exact" and config.granularity == "edge"
    scores = attribute(
        context.model,
        context.task,
        config.method,
        config.granularity,
        config.metric,
        ablation=config.ablation,
        over=config.over,
        mean_by=config.mean_by,
        match=config.match,
        seed=config.seed,
        steps=config.steps,
        rule=config.rule,
        ungrouped=config.ungrouped,
        sites=config.sites,
        by=config.by,
        labels=config.labels,
        options=options_of(context),
        progress=bar(context, config.method),
        log=context.rows if exact_edges else None,
    )
    return scores.result()


EXPERIMENT = Experiment("attribution_patching", 1, AttributionPatching, run, {"smoke": {"n": 8}})

if __name__ == "__main__":
    raise SystemExit(main_for("attribution_patching"))
