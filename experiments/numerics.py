"""Numerics: what numbers look like at every site while a recipe trains, and what watching them costs.

A recipe is trained for `steps` steps with `interp.watch` on: per full step and site, forward and backward, range,
share of zeros, NaN, Inf, bits left before fp16 and bf16 overflow, drift against fp32; on every step gradient norms
before (`value`) and after (`baseline`) clipping; steps that GradScaler skipped; births of NaN. `overhead` rows give
the time of a stretch of training with the watch over one without, alternated, by their medians.

    interp run numerics --set recipe=toy-ioi --set dtype=float16
    interp run numerics --set recipe=attn-2l --set text=FOLDER --set overhead_rounds=5

Limits: dropout is off in the watch's replays; times are this machine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.registry import NameOf

if TYPE_CHECKING:
    import torch

    from interp.numerics.watch import Watch
    from interp.training.recipes import Recipe


class NumericsConfig(Config):
    """Settings of `numerics`."""

    recipe: Annotated[str, NameOf("recipes")] = Field("toy-ioi", description="training recipe")
    text: str | None = Field(None, description="folder of .txt files, for recipes on natural text")
    steps: int = Field(100, ge=1, description="training steps watched")
    every: int = Field(50, ge=1, description="full statistics every so many steps")
    rows: int = Field(8, ge=1, description="rows of a batch that full statistics are taken of")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="autocast's format")
    drift: bool = Field(True, description="with bfloat16 or float16: compare with fp32")
    overhead_rounds: int = Field(0, ge=0, description="rounds of the timing, `every` steps with and without each")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of weights and data")


def run(config: NumericsConfig, context: Context) -> Table:
    """Train, watch, and time."""
    from interp.results.frames import typed
    from interp.results.schemas import NUMERICS
    from interp.training.recipes import load_recipe

    recipe = load_recipe(config.recipe, config.text)
    loop = _Loop(config, recipe, context.device)
    for step in context.progress(range(config.steps), "training"):
        loop.step(step, watched=True)
    loop.watch.close(loop.scaler)
    rows = loop.watch.table_rows()
    if config.overhead_rounds:
        rows += _overhead(config, context, recipe)
    constants = {"model": config.recipe, "task": "training", "seed": config.seed}
    for row in rows:
        row.update(constants)
    return Table(typed(rows, NUMERICS), NUMERICS, notes={"skipped steps": loop.watch.skipped})


class _Loop:
    """The training loop's step, with or without the watch."""

    def __init__(self, config: NumericsConfig, recipe: Recipe, device: str) -> None:
        import torch

        from interp.numerics.watch import watch
        from interp.training.loop import DTYPES
        from interp.training.optim import adamw

        self.recipe, self.seed, self.device = recipe, config.seed, torch.device(device)
        self.module = recipe.model(torch.Generator().manual_seed(config.seed)).to(self.device)
        self.optimiser = adamw(self.module, recipe.settings)
        self.dtype = DTYPES[config.dtype]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.dtype == "float16")
        low = None if config.dtype == "float32" else self.dtype
        self.watch: Watch = watch(
            self.module, config.every, rows=config.rows, dtype=low, drift=config.drift and low is not None
        )

    def step(self, step: int, watched: bool) -> torch.Tensor:
        """One step as `interp.training.loop` makes it; the watch looks in before the optimiser's part."""
        from interp.training.loop import batch_loss
        from interp.training.optim import clip_gradients, learning_rate, set_rate

        settings = self.recipe.settings
        if self.recipe.adjust:
            self.recipe.adjust(self.module, step)
        set_rate(self.optimiser, learning_rate(settings, step))
        batches = self.recipe.batches(self.seed, step)
        loss = batch_loss(self.module, batches, self.device, self.dtype)
        self.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimiser)
        before, after = clip_gradients(self.module, settings.clip)
        if watched:
            self.watch.step(batches[0].tokens, loss=loss, grad_norm=before, clipped=after, scaler=self.scaler)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return loss


def _overhead(config: NumericsConfig, context: Context, recipe: Recipe) -> list[dict[str, Any]]:
    """Time of `every` steps with the watch over the time without, in alternated rounds."""
    import statistics
    import time

    times: dict[bool, list[float]] = {False: [], True: []}
    loops = {watched: _Loop(config, recipe, context.device) for watched in times}
    for i in range(config.overhead_rounds):
        # which goes first alternates, so that a drift of the machine falls on both alike
        for watched in (False, True) if i % 2 == 0 else (True, False):
            began = time.perf_counter()
            for step in range(i * config.every, (i + 1) * config.every):
                loops[watched].step(step, watched)
            times[watched].append(time.perf_counter() - began)
    plain, seen = statistics.median(times[False]), statistics.median(times[True])
    pairs = [b / a - 1 for a, b in zip(times[False], times[True], strict=True)]
    return [{
        "metric": "overhead", "dtype": config.dtype, "value": seen / plain - 1, "low": min(pairs), "high": max(pairs),
        "baseline": plain, "n": config.overhead_rounds, "unit": f"share of the time of {config.every} steps",
    }]  # fmt: skip


EXPERIMENT = Experiment("numerics", 1, NumericsConfig, run, {"smoke": {"steps": 2, "every": 2, "rows": 2}})

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("numerics"))
