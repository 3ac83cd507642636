"""Head behaviour: attention of each head between labelled tokens, before and after an edit.

One row per head and pair of labels: `value` is the attention probability from `dst_label` (the query) to
`src_label` (the key) with the ablation, `baseline` without, `effect` the change.

    interp run head_behaviour --model toy-ioi --task ioi
    interp run head_behaviour --set pairs='[[END, IO]]' --set ablate='[a0.h3]'
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for


class HeadBehaviour(ModelTaskConfig):
    """Settings of `head_behaviour`."""

    pairs: tuple[tuple[str, str], ...] | None = Field(None, description="[query label, key label]; all by default")
    ablate: tuple[str, ...] = Field((), description="nodes to ablate, such as a0.h3 or m1")
    ablation: Literal["corrupt", "mean", "zero", "resample"] = Field("mean", description="what they are replaced by")
    side: Literal["clean", "corrupt"] = Field("clean", description="which prompts are run")


def run(config: HeadBehaviour, context: Context) -> Table:
    """Attention between labels, per head."""
    from interp.interventions.behaviour import label_attention
    from interp.interventions.sources import Recipe

    return label_attention(
        context.model, context.task, config.pairs, ablate=config.ablate,
        recipe=Recipe(config.ablation, seed=config.seed), side=config.side,
    ).result()  # fmt: skip


EXPERIMENT = Experiment("head_behaviour", 1, HeadBehaviour, run, {"smoke": {"n": 8}})

if __name__ == "__main__":
    raise SystemExit(main_for("head_behaviour"))
