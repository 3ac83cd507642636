"""Path patching: what a sender does to the metric through chosen receivers only.

Two algorithms, named in every row:
- `freeze_heads` (2211.00593): all other heads frozen, MLPs recomputed or frozen, receivers overwritten together;
- `edges` (2304.14997): each edge's contribution replaced in a live run; by default every edge of the model.

    interp run path_patching --model toy-ioi --task ioi
    interp run path_patching --set rounds=2 --set top=2
    interp run path_patching --set receivers='["a2.h0<q>", "a2.h1<q>"]'
    interp run path_patching --set algorithm=edges

With `rounds` above 1, `freeze_heads` is iterated as in the IOI paper: into the logits, then into q, k and v of
the heads that mattered.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for


class PathPatching(ModelTaskConfig):
    """Settings of `path_patching`."""

    algorithm: Literal["freeze_heads", "edges"] = Field("freeze_heads", description="what happens beside the path")
    senders: tuple[str, ...] | None = Field(None, description="nodes such as a0.h1, m0, input; every head by default")
    receivers: tuple[str, ...] = Field(("logits",), description="slots such as a2.h0<q>, m1, logits, taken together")
    edges: tuple[str, ...] | None = Field(None, description="with algorithm=edges: edges such as a0.h1->a1.h0<q>")
    mlps: Literal["recompute", "freeze"] = Field("recompute", description="MLPs between sender and receivers")
    rounds: int = Field(1, ge=1, description="iterations from the logits back")
    top: int = Field(3, ge=1, description="heads that become the next round's receivers")
    ablation: Literal["corrupt", "mean", "zero", "resample"] = Field("corrupt", description="the sender's other value")
    side: Literal["clean", "corrupt"] = Field("clean", description="prompts of the base run")
    ungrouped: bool = Field(False, description="with algorithm=edges: a k and a v for every query head")


def run(config: PathPatching, context: Context) -> Table:
    """Effects of senders, or of edges; edges stream to the row log and resume."""
    from interp.interventions.edges import edge_effects
    from interp.interventions.options import bar, options_of
    from interp.interventions.paths import iterated, path_effects
    from interp.interventions.sources import Recipe

    model, task = context.model, context.task
    recipe = Recipe(config.ablation, seed=config.seed)
    options = options_of(context)
    if config.algorithm == "edges":
        return edge_effects(
            model, task, config.edges, config.metric, recipe=recipe, ungrouped=config.ungrouped, side=config.side,
            options=options, progress=bar(context, "edges"), log=context.rows,
        ).result()  # fmt: skip
    if config.rounds > 1:
        return iterated(
            model, task, config.rounds, config.top, config.metric, mlps=config.mlps, recipe=recipe, options=options,
            progress=bar(context, "senders"),
        ).result()  # fmt: skip
    return path_effects(
        model, task, config.senders, config.receivers, config.metric, mlps=config.mlps, recipe=recipe,
        side=config.side, options=options, progress=bar(context, "senders"),
    ).result()  # fmt: skip


EXPERIMENT = Experiment("path_patching", 1, PathPatching, run, {"smoke": {"n": 8}})

if __name__ == "__main__":
    raise SystemExit(main_for("path_patching"))
