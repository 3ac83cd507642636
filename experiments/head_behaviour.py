"""Head behaviour: attention of each head between labelled tokens, before and after an edit.

One row per head and pair of labels: `value` is the attention probability from `dst_label` (the query) to
`src_label` (the key) with the ablation, `baseline` without, `effect` the change. The unedited patterns of the first
prompts are kept in `artifacts/`.

    interp run head_behaviour --model toy-ioi --task ioi
    interp run head_behaviour --set pairs='[[END, IO]]' --set ablate='[a0.h3]'
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for

if TYPE_CHECKING:
    from interp.hooks.prompts import Prompts

KEPT = 2
"""Prompts whose patterns are kept in `artifacts/`, as `L<layer>.pattern` [prompt, head, query, key]."""
LONGEST = 64
"""Prompts of more tokens keep none: a pattern grows with the square."""


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

    table = label_attention(
        context.model, context.task, config.pairs, ablate=config.ablate,
        recipe=Recipe(config.ablation, seed=config.seed), side=config.side,
    ).result()  # fmt: skip
    return replace(table, artifacts=_patterns(getattr(context.task, config.side), context.model))


def _patterns(prompts: Prompts, model: Any) -> dict[str, Any]:
    """Every head's pattern on the first prompts, unedited, with their tokens; none for long prompts."""
    first = prompts.rows([*range(min(KEPT, len(prompts)))])
    longest = int(first.lengths.max())
    if longest > LONGEST:
        return {}
    run = model.run(first, capture="pattern")
    arrays, words = {}, []
    for layer in range(model.geometry.layers):
        kept = run[f"L{layer}.pattern"].new_zeros(len(first), model.geometry.heads, longest, longest)
        for i, real in enumerate(first.mask):
            n = int(real.sum())
            kept[i, :, :n, :n] = run[f"L{layer}.pattern"][i][:, real][:, :, real]
        arrays[f"L{layer}.pattern"] = kept.float().cpu()
    for tokens, real in zip(first.tokens, first.mask, strict=True):
        words.append(model.to_text(tokens[real]))
    return {"patterns.safetensors": arrays, "patterns.json": {"tokens": words}}


EXPERIMENT = Experiment("head_behaviour", 1, HeadBehaviour, run, {"smoke": {"n": 8}})

if __name__ == "__main__":
    raise SystemExit(main_for("head_behaviour"))
