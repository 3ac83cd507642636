"""Activation patching: which activations of one run, put into the other, move the metric.

One row per part of a site (head, position, label, layer, neuron): effect against the unedited base run with
its 95% interval, and `normalized`, the share of the gap between corrupt (0) and clean (1).

    interp run activation_patching --model toy-ioi --task ioi --set sites=z
    interp run activation_patching --set sites='[resid_pre, attn_out]' --set by=position --set direction=noise
    interp run activation_patching --set circuit=toy-ioi --set part=members

Sources: 2309.16042, 2404.15255.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for
from interp.context import SiteNames


class ActivationPatching(ModelTaskConfig):
    """Settings of `activation_patching`."""

    sites: SiteNames = Field("z", description="site or sites, such as z, [q, k, v] or L1.resid_mid")
    by: str = Field("head", description="layer, head, position, label, neuron, or several: head+position")
    direction: Literal["denoise", "noise"] = Field("denoise", description="clean into corrupt, or corrupt into clean")
    labels: tuple[str, ...] | None = Field(None, description="labels for by=label; all by default")
    window: int = Field(1, ge=1, description="layers patched jointly; the sum of the single effects stands beside")
    together: bool = Field(False, description="patch all sites of a layer in one intervention")
    circuit: str | None = Field(None, description="circuit file (.json, .graphml) or named circuit: patch its edges")
    part: Literal["circuit", "complement", "members"] = Field(
        "circuit", description="with circuit=: its edges together, all others together, or each of its edges alone"
    )


def run(config: ActivationPatching, context: Context) -> Table:
    """One sweep over the parts of the sites, or over a circuit."""
    from interp.circuits.named import refuse_unused
    from interp.interventions.options import bar, one_or_many, options_of
    from interp.interventions.patching import patch

    refuse_unused(config, ("sites", "by", "labels", "window", "together"))
    if config.circuit is not None:
        return _circuit(config, context)

    effects = patch(
        context.model,
        context.task,
        one_or_many(config.sites),
        config.by,
        config.metric,
        direction=config.direction,
        labels=config.labels,
        window=config.window,
        together=config.together,
        seed=config.seed,
        options=options_of(context),
        progress=bar(context, "patching"),
    )
    return effects.result()


def _circuit(config: ActivationPatching, context: Context) -> Table:
    """A circuit patched, its complement, or each of its edges."""
    from interp.circuits.interventions import circuit_interventions
    from interp.circuits.named import read_circuit
    from interp.interventions.options import bar, options_of
    from interp.interventions.sources import Recipe

    model = context.model
    return circuit_interventions(
        model, context.task, read_circuit(config.circuit or "", model.geometry), config.part, config.metric,
        direction=config.direction, recipe=Recipe(seed=config.seed), options=options_of(context),
        progress=bar(context, "circuits"),
    ).result()  # fmt: skip


EXPERIMENT = Experiment(
    "activation_patching",
    1,
    ActivationPatching,
    run,
    {"smoke": {"n": 8}, "positions": {"sites": "resid_pre", "by": "position"}},
)

if __name__ == "__main__":
    raise SystemExit(main_for("activation_patching"))
