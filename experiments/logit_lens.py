"""Logit lens: the residual stream after each block, read through the final norm and the unembedding.

A curve per metric and position over the number of blocks run (`x`: 0 is the embedding, the last is the
model's own output): mean over prompts, 95% interval, n. A prompt without the position counts in no row of it.

    interp run logit_lens --model toy-ioi --task ioi
    interp run logit_lens --set positions=all

Source: nostalgebraist, "interpreting GPT: the logit lens" (2020). Limits: answers of one token.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.context import MetricName


class LogitLensConfig(ModelTaskConfig):
    """Settings of `logit_lens`."""

    metric: MetricName = Field("logit_diff", description="first metric read at each layer")
    also: tuple[str, ...] = Field(("prob", "rank"), description="further metrics; prob is that of the right answers")
    positions: Literal["all"] | tuple[int | str, ...] = Field(
        ("answer",), description="where it is read: `answer`, labels, integers; or `all` real positions"
    )
    side: Literal["clean", "corrupt"] = Field("clean", description="which prompts are run")


def run(config: LogitLensConfig, context: Context) -> Table:
    """One curve per metric and position."""
    from interp.attribution.lens import curve_frame, logit_lens
    from interp.results.schemas import CURVE

    model, task = context.model, context.task
    lens = logit_lens(
        model, task, metrics=list(dict.fromkeys((config.metric, *config.also))), positions=config.positions,
        side=config.side, progress=lambda batches: context.progress(batches, "reading the stream"),
    )  # fmt: skip
    how = context.resampling(task.n, None if task.cluster is None else task.cluster.tolist())
    frame = curve_frame(
        lens, how, experiment="logit_lens", model=config.model, task=config.task, seed=config.seed,
        **{k: str(task.meta[k]) for k in ("split", "corruption") if task.meta.get(k) is not None},
    )  # fmt: skip
    return Table(frame, CURVE)


EXPERIMENT = Experiment(
    "logit_lens", 1, LogitLensConfig, run, presets={"smoke": {"n": 8}, "positions": {"positions": "all"}}
)

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("logit_lens"))
