"""Head census: previous-token, duplicate-token, induction, current, first-token scores and entropy of every head.

One row per head, score and `components` (with or without BOS), on repeated random tokens of at least three
periods: mean, 95% interval over prompts, `baseline` (even attention), p of the difference from it, rank among
heads, and the rank on a second draw of prompts. With a task, further rows: `direct_effect` (path patching to the
logits) and `inhibition_effect` (through the queries of the heads that do so) with their ranks on a
held-out half of the prompts.
`class` joins what a head is by its stripes and by its path and copy score.

    interp run head_census --model toy-ioi --task ioi
    interp run head_census --model attn-2l --set task=null

Source: Olsson et al. 2022 (2209.11895); 2211.00593. Limits: stripes are measured on random tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.context import MetricName, ModelName, TaskName

if TYPE_CHECKING:
    import numpy as np

    from interp.models.model import Model
    from interp.weights.heads import HeadScores, PathClasses


class HeadCensus(Config):
    """Settings of `head_census`."""

    model: ModelName = Field("toy-ioi", description="embedded name, local folder or hub name")
    model_options: dict[str, Any] = Field({}, description="passed on to load_model: revision, weights, …")
    task: TaskName | None = Field("ioi", description="task for classes by path; null: stripes only")
    task_options: dict[str, Any] = Field({}, description="passed on to load_task")
    labels: tuple[str, ...] = Field(("IO", "S1"), description="labels of the tokens for the copy score")
    n: int | None = Field(None, ge=2, description="prompts of the task")
    periods: tuple[int, ...] | None = Field(None, description="periods of the random tokens; 3 random ones by default")
    per_period: int = Field(8, ge=1, description="prompts of each period")
    bos_id: int | None = Field(None, description="BOS token of a model without a tokenizer")
    metric: MetricName = Field("logit_diff", description="metric of the path effects")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of everything drawn")


def run(config: HeadCensus, context: Context) -> Table:
    """All heads of one model."""
    from interp.results.frames import typed
    from interp.results.schemas import ATTRIBUTION, Column

    schema = ATTRIBUTION.plus(
        "census",
        Column("baseline", "number", "even attention over the visible tokens"),
        Column("class", "name", "what the head is, by stripes and by path"),
        Column("rank", "index", "rank by score among all heads, from 0"),
        Column("second_rank", "index", "the same on a second split"),
    )
    model: Model = context.model
    names = [["" for _ in range(model.geometry.heads)] for _ in range(model.geometry.layers)]
    rows = _stripes(config, context, model, names)
    if config.task is not None:
        rows += _paths(config, context, model, names)
    for row in rows:
        if row.get("layer") is not None:
            row["class"] = names[row["layer"]][row["head"]] or "none"
    frame = typed([{**row, "seed": config.seed, "granularity": "head"} for row in rows], schema)
    return Table(frame, schema)


def _stripes(config: HeadCensus, context: Context, model: Model, names: list[list[str]]) -> list[dict[str, Any]]:
    from interp.registry import UserError
    from interp.tasks.tokens import Codec
    from interp.weights.heads import head_scores

    rows: list[dict[str, Any]] = []
    known = config.bos_id is not None or Codec.of(model).bos_id is not None
    for bos in context.progress((False, True), "stripes"):
        components = "with BOS" if bos else "without BOS"
        if bos and not known:
            rows.append({"metric": "induction", "components": components, "reason": "the model has no BOS token"})
            continue
        try:
            found, second = (
                head_scores(model, periods=config.periods, n=config.per_period, bos=bos, bos_id=config.bos_id, seed=s)
                for s in (config.seed, config.seed + 1)
            )
        except UserError as error:
            if bos or config.periods is not None:
                raise
            rows.append({"metric": "induction", "components": components, "reason": str(error)})
            continue
        if not bos:
            for layer, row in enumerate(found.classes()):
                for head, name in enumerate(row):
                    names[layer][head] = name
        rows += _score_rows(found, second, context, components)
    return rows


def _score_rows(found: HeadScores, second: HeadScores, context: Context, components: str) -> list[dict[str, Any]]:
    from interp.stats import benjamini_hochberg, summarize

    rows: list[dict[str, Any]] = []
    for name, values in found.scores.items():
        n, layers, heads = values.shape
        flat = values.flatten(1).T.numpy()
        how = context.resampling(n)
        got = summarize(flat, how)
        chance = found.chance[name].numpy()
        p = summarize(flat - chance, how).p_value
        adjusted = benjamini_hochberg(p)
        ranks, again = _ranks(got.mean), _ranks(second.mean(name).flatten().numpy())
        for i in range(layers * heads):
            rows.append({
                "metric": name, "method": "attention pattern", "components": components, "site": "pattern",
                "task": f"repeated tokens, periods {' '.join(map(str, found.periods))}",
                "layer": i // heads, "head": i % heads, "score": got.mean[i], "stderr": got.stderr[i],
                "ci_low": got.low[i], "ci_high": got.high[i], "p_value": p[i], "p_adjusted": adjusted[i],
                "baseline": float(chance.mean()), "n": n, "rank": int(ranks[i]), "second_rank": int(again[i]),
                "unit": "nats" if name == "entropy" else "fraction of attention", "reason": got.reason[i],
            })  # fmt: skip
    return rows


def _ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value, largest first, from 0."""
    import numpy as np

    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(len(values))
    return ranks


def _paths(config: HeadCensus, context: Context, model: Model, names: list[list[str]]) -> list[dict[str, Any]]:
    """Direct effects and inhibition effects on one half of the task, their ranks on the other."""
    from interp.weights.copying import copy_scores
    from interp.weights.heads import path_classes

    task = context.task
    places = [p for p in config.labels if p in task.clean.labels]
    if not places:
        return [{"metric": "direct_effect", "reason": f"the task has no labels {', '.join(config.labels)}"}]
    first, second = task.split(0.5, config.seed)
    copy = copy_scores(model, first.clean, list(places))
    one = path_classes(model, first, copy.score, copy.negative_score, metric=config.metric)
    two = path_classes(model, second, copy.score, copy.negative_score, metric=config.metric)
    for layer, row in enumerate(one.classes):
        for head, name in enumerate(row):
            if name:
                names[layer][head] = "+".join(x for x in (names[layer][head], name) if x)
    return [*_path_rows(one, two, "direct"), *_path_rows(one, two, "through")]


def _path_rows(one: PathClasses, two: PathClasses, which: str) -> list[dict[str, Any]]:
    from interp.stats import benjamini_hochberg, summarize

    effects, again = getattr(one, which), getattr(two, which)
    metric = "direct_effect" if which == "direct" else "inhibition_effect"
    if effects is None:
        return [{"metric": metric, "reason": "no head acts on the logits directly"}]
    # a score has the sign of what the path does for the metric: minus the effect of taking it away
    got = summarize(-(effects.values - effects.baseline).double().cpu().numpy(), effects.resampling())
    adjusted = benjamini_hochberg(got.p_value)
    ranks = _ranks(got.mean)
    second = None if again is None else _ranks(-again.mean.double().cpu().numpy())
    return [
        {
            "metric": metric, "method": "path patch", "algorithm": effects.about["algorithm"], "site": "head_out",
            "ablation": effects.about["ablation"], "task": effects.task.name, "layer": key["layer"],
            "head": key["head"], "dst": key["dst"], "score": got.mean[i], "stderr": got.stderr[i],
            "ci_low": got.low[i], "ci_high": got.high[i], "p_value": got.p_value[i], "p_adjusted": adjusted[i],
            "n": int(got.n[i]), "rank": int(ranks[i]), "second_rank": None if second is None else int(second[i]),
            "unit": "logits", "reason": got.reason[i],
        }
        for i, key in enumerate(effects.keys)
    ]  # fmt: skip


EXPERIMENT = Experiment("head_census", 1, HeadCensus, run, {"smoke": {"n": 16, "per_period": 2}})

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("head_census"))
