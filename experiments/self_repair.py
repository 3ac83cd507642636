"""Self-repair: total against direct effect of knocking heads out, and what the other parts then write.

For each head, or each set of heads, four rows (`method`): total_effect, direct_effect (its own terms, norm scales
frozen), self_repair (total − direct: what later parts and the norms do about it) and norm_scales (the norms' share
of that). `direct_effect_change` rows say how much each other part's term changes when a set (`src`) is knocked
out. All in logits, metric − unedited metric, with a 95% interval over prompts.

    interp run self_repair --model toy-ioi --task ioi
    interp run self_repair --set heads='["a1.h0+a1.h1+a1.h2+a1.h3", "a0.h1"]' --set ablation=corrupt

Source: 2307.15771, 2402.15390. Limits: answers of one token; no post-LayerNorm models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for

if TYPE_CHECKING:
    from interp.attribution.self_repair import Head, MakeEdit


class SelfRepair(ModelTaskConfig):
    """Settings of `self_repair`."""

    metric: Literal["logit_diff"] = Field("logit_diff", description="terms sum to the logit difference only")
    heads: tuple[str, ...] | None = Field(
        None, min_length=1, description="heads (a1.h0) or sets of them (a1.h0+a1.h1); every head by default"
    )
    ablation: Literal["zero", "mean", "resample", "corrupt"] = Field("mean", description="what a head is replaced by")
    over: Literal["auto", "clean", "corrupt", "task"] = Field("auto", description="prompts of the mean")


def run(config: SelfRepair, context: Context) -> Table:
    """One knock-out per head or set."""
    import pandas as pd

    from interp.attribution.self_repair import self_repair
    from interp.results.frames import adjusted
    from interp.results.schemas import EFFECT

    model, task = context.model, context.task
    make, ablation = _ablation(config, context)
    found = self_repair(
        model, task, None if config.heads is None else [parse_heads(one) for one in config.heads], ablate=make,
        progress=lambda sets: context.progress(sets, "knocking out"),
    )  # fmt: skip
    frames = [found.table(config.seed), *(found.changes(i, config.seed) for i in range(len(found.sets)))]
    stated = {k: str(task.meta[k]) for k in ("split", "corruption") if task.meta.get(k) is not None}
    frame = adjusted(pd.concat(frames, ignore_index=True)).assign(
        model=config.model, task=config.task, ablation=ablation, positions="answer", **stated
    )
    return Table(frame[EFFECT.names], EFFECT)


def parse_heads(text: str) -> list[Head]:
    """`a1.h0+a1.h1` as (layer, head) pairs. UserError for other nodes.

    >>> parse_heads("a1.h0+a0.h3")
    [(1, 0), (0, 3)]
    """
    from interp.graph import Node
    from interp.registry import UserError

    nodes = [Node.parse(part.strip()) for part in text.split("+")]
    for node in nodes:
        if node.kind != "head":
            raise UserError(f"self-repair knocks out heads such as a1.h0, got {str(node)!r} in {text!r}")
    return [(node.layer, node.head) for node in nodes]


def _ablation(config: SelfRepair, context: Context) -> tuple[MakeEdit, str]:
    """The edit of each head, and what the ablation is called."""
    from interp.interventions.ablation import Replacement
    from interp.interventions.units import Unit

    sites = [f"L{i}.z" for i in range(context.model.geometry.layers)]
    if config.ablation == "corrupt":
        context.task.require_aligned()
    values: Any = Replacement(
        context.model, context.task, config.ablation, sites, config.over, "auto", None, config.seed
    )

    def make(layer: int, head: int) -> Any:
        from interp.hooks.addresses import Address

        return values(Unit(Address("z", layer), {"head": head}, {}))

    return make, values.name


EXPERIMENT = Experiment("self_repair", 1, SelfRepair, run, {"smoke": {"n": 8, "heads": ("a0.h1", "a1.h0+a1.h1")}})

if __name__ == "__main__":
    raise SystemExit(main_for("self_repair"))
