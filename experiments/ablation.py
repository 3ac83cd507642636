"""Ablation: take each component away on the clean prompts and see what the metric loses.

One row per part of a site. The recipe (ablation value, the prompts a mean is over, granularity) stands in
every row; a negative effect means that the component helped.

    interp run ablation --model toy-ioi --task ioi --set ablation=mean
    interp run ablation --set sites=mlp_out --set by=layer --set ablation=resample
    interp run ablation --set circuit=toy-ioi --set part=complement

Source: 2407.08734 for the recipe's names.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for
from interp.context import SiteNames


class Ablation(ModelTaskConfig):
    """Settings of `ablation`."""

    sites: SiteNames = Field("z", description="site or sites")
    by: str = Field("head", description="layer, head, position, label, neuron, or several: head+position")
    ablation: Literal["zero", "mean", "resample", "corrupt"] = Field("mean", description="what a part is replaced by")
    over: Literal["auto", "clean", "corrupt", "task"] = Field("auto", description="prompts of the mean")
    mean_by: Literal["auto", "all", "position", "label", "template"] = Field("auto", description="cells of the mean")
    match: str | None = Field(None, description="with resample: label whose token the donor must share")
    labels: tuple[str, ...] | None = Field(None, description="labels for by=label; all by default")
    circuit: str | None = Field(None, description="circuit file (.json, .graphml) or named circuit: ablate its edges")
    part: Literal["circuit", "complement", "members"] = Field(
        "circuit", description="with circuit=: its edges together, all others together, or each of its edges alone"
    )


def run(config: Ablation, context: Context) -> Table:
    """One sweep over the parts of the sites, or over a circuit."""
    from interp.circuits.named import refuse_unused
    from interp.interventions.ablation import ablate
    from interp.interventions.options import bar, one_or_many, options_of

    refuse_unused(config, ("sites", "by", "labels"))
    if config.circuit is not None:
        return _circuit(config, context)

    effects = ablate(
        context.model,
        context.task,
        one_or_many(config.sites),
        config.by,
        config.metric,
        ablation=config.ablation,
        over=config.over,
        mean_by=config.mean_by,
        match=config.match,
        labels=config.labels,
        seed=config.seed,
        options=options_of(context),
        progress=bar(context, "ablating"),
    )
    return effects.result()


def _circuit(config: Ablation, context: Context) -> Table:
    """A circuit ablated, its complement, or each of its edges."""
    from interp.circuits.interventions import circuit_interventions
    from interp.circuits.named import read_circuit
    from interp.interventions.options import bar, options_of
    from interp.interventions.sources import Recipe

    model = context.model
    recipe = Recipe(config.ablation, config.over, config.mean_by, config.match, config.seed)
    return circuit_interventions(
        model, context.task, read_circuit(config.circuit or "", model.geometry), config.part, config.metric,
        recipe=recipe, options=options_of(context), progress=bar(context, "circuits"),
    ).result()  # fmt: skip


EXPERIMENT = Experiment("ablation", 1, Ablation, run, {"smoke": {"n": 8}})

if __name__ == "__main__":
    raise SystemExit(main_for("ablation"))
