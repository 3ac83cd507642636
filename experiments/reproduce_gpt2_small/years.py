"""Greater-than: probability of later years − of earlier ones, and what the published heads and MLPs do for it.

Each part's value is replaced by the corrupt prompt's (the first year ends in 01). The rank is by the size of the
effect, among all heads or all MLPs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.reproduce_gpt2_small import facts
from experiments.reproduce_gpt2_small.measured import Measured, mean_of, need_heads, ranks, resampling

if TYPE_CHECKING:
    from interp.interventions.effects import Effects
    from interp.models.model import Model
    from interp.tasks.values import Task

EFFECT = "effect of the corrupt value"


def greater_than(model: Model, task: Task, seed: int, options: Any) -> Measured:
    """One row for the behaviour, one for each published head and MLP."""
    import interp
    from interp.metrics import get_metric

    need_heads(model, [*facts.YEARS_HEADS, *((layer, 0) for layer in facts.YEARS_MLPS)])
    how = resampling(task, seed)
    run = model.run(task.clean)
    found = {("probability difference", ""): mean_of(get_metric("prob_diff")(run.logits, task), how)}
    sweep: dict[str, Any] = {"metric": "prob_diff", "direction": "noise", "options": options}
    by_head = interp.patch(model, task, sites="z", by="head", **sweep)
    by_layer = interp.patch(model, task, sites="mlp_out", by="layer", **sweep)
    wanted = {facts.head_name(h): h[0] * model.geometry.heads + h[1] for h in facts.YEARS_HEADS}
    for effects, rows in ((by_head, wanted), (by_layer, {f"L{i} MLP": i for i in facts.YEARS_MLPS})):
        moved, order = _moved(effects)
        found |= {(EFFECT, name): mean_of(moved[at], how, order[at]) for name, at in rows.items()}
    return found


def _moved(effects: Effects) -> tuple[Any, list[int]]:
    """Effects per prompt, and each row's rank by size."""
    moved = (effects.values - effects.baseline).double().cpu()
    return moved, ranks(moved.mean(1).abs().numpy())
