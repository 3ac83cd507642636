"""Gradient flow: what the skip path does, and what removing it, post-norm or bad initialisation does.

Small native models of one shape, one `series` each, are made and trained alike on repeated random tokens:

    pre-norm            skip paths, LayerNorm before each sublayer, Xavier
    post-norm           skip paths, LayerNorm after each addition
    no skip             sublayers in a row, nothing added
    bad initialisation  pre-norm, every matrix `bad_scale` times Xavier

each measured at initialisation and after `steps` steps (or, with `model`, one named model as it is, on a task).
Rows by layer (`x`): norm of the gradient at the residual entering the block, the norm and share of its three parts
(skip, attn, mlp; shares are projections on the total and sum to 1), the residual's norm, the norms of the updates,
the angle by which a block turns the residual; and the loss.

    interp run gradient_flow
    interp run gradient_flow --set model=toy-ioi --set task=ioi

Source: He et al. 2016 (1603.05027); Xiong et al. 2020 (2002.04745); Glorot and Bengio 2010 for Xavier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.context import ModelName, TaskName

if TYPE_CHECKING:
    from interp.hooks.prompts import Prompts
    from interp.models.model import Model

VARIANTS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm": "post"},
    "no skip": {"skip": False},
    "bad initialisation": {},
}


class GradientFlowConfig(Config):
    """Settings of `gradient_flow`."""

    model: ModelName | None = Field(None, description="a named model, as it is; null: the small native variants")
    model_options: dict[str, Any] = Field({}, description="passed on to load_model")
    task: TaskName | None = Field(None, description="with model: the task whose clean prompts are run")
    task_options: dict[str, Any] = Field({}, description="passed on to load_task")
    n: int = Field(32, ge=1, description="prompts measured")
    layers: int = Field(6, ge=1, description="blocks of the small models")
    width: int = Field(32, ge=8, description="their residual width (4 heads)")
    period: int = Field(8, ge=2, description="period of the repeated tokens they learn")
    steps: int = Field(200, ge=0, description="training steps")
    lr: float = Field(3e-3, gt=0, description="highest learning rate")
    bad_scale: float = Field(8.0, gt=0, description="factor of the bad initialisation")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of weights and prompts")


def run(config: GradientFlowConfig, context: Context) -> Table:
    """Every variant at initialisation and after training, or one named model."""
    import pandas as pd

    from interp.results.frames import sort_by_key
    from interp.results.schemas import CURVE

    if config.model is not None:
        frames = [_named(config, context)]
    else:
        frames = []
        for name in context.progress(VARIANTS, "variants"):
            model = _small(config, name)
            frames.append(_rows(model, _prompts(config, config.n, 10**6), context, name, "initialisation"))
            reason = _train(config, model)
            if reason is None:
                frames.append(_rows(model, _prompts(config, config.n, 10**6), context, name, "trained"))
            else:
                frames.append(_failed(name, reason))
    return Table(sort_by_key(pd.concat(frames, ignore_index=True), CURVE), CURVE)


def _named(config: GradientFlowConfig, context: Context) -> Any:
    from interp.registry import UserError
    from interp.tasks.repeated import repeated
    from interp.tasks.tokens import Codec

    model: Model = context.model
    if config.task is not None:
        prompts = context.task.clean
    else:
        if 2 * config.period > model.geometry.n_ctx:
            raise UserError(
                f"period {config.period} does not fit the {model.geometry.n_ctx} positions of {config.model}"
            )
        prompts = repeated(Codec.of(model).ordinary(), config.period, config.n, config.seed)
    return _rows(model, model.prompts(prompts), context, "as loaded", "as loaded")


VOCABULARY = 32


def _small(config: GradientFlowConfig, name: str) -> Model:
    import torch

    from interp.models.families import FAMILIES
    from interp.models.model import Model
    from interp.models.native import Native, NativeConfig
    from interp.training.initialise import fresh

    settings = NativeConfig(
        layers=config.layers, heads=4, d_model=config.width, d_mlp=2 * config.width, d_vocab=VOCABULARY,
        n_ctx=2 * config.period, **VARIANTS[name],
    )  # fmt: skip
    module = fresh(lambda: Native(settings), torch.Generator().manual_seed(config.seed))
    if name == "bad initialisation":
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(config.bad_scale)
    return Model(module, FAMILIES["native"], settings, name=name)


def _prompts(config: GradientFlowConfig, n: int, seed: int) -> Prompts:
    from interp.tasks.repeated import repeated

    return repeated(range(VOCABULARY), config.period, n, config.seed + seed)


def _train(config: GradientFlowConfig, model: Model) -> str | None:
    """Train in place; why it failed, or None."""
    import math

    import torch

    from interp.numerics.replay import next_token_loss
    from interp.training.optim import adamw, clip_gradients, learning_rate, set_rate
    from interp.training.recipes import Settings

    if config.steps == 0:
        return "no training steps were asked for"
    settings = Settings(steps=config.steps, lr=config.lr, warmup=min(20, config.steps))
    optimiser = adamw(model.module, settings)
    model.module.train()
    for step in range(config.steps):
        set_rate(optimiser, learning_rate(settings, step))
        prompts = _prompts(config, 32, step)
        with torch.enable_grad():
            loss = next_token_loss(model.module(prompts.tokens), prompts).sum()
        optimiser.zero_grad()
        loss.backward()
        before, _ = clip_gradients(model.module, settings.clip)
        if not math.isfinite(before):
            return f"training broke at step {step}: gradient norm {before}"
        optimiser.step()
    model.module.eval()
    return None


def _rows(model: Model, prompts: Prompts, context: Context, name: str, state: str) -> Any:
    import numpy as np

    from interp.numerics.flow import PARTS, gradient_flow, residual_flow
    from interp.numerics.replay import next_token_loss
    from interp.registry import UserError
    from interp.results.curves import curve_rows

    if bool((prompts.lengths < 2).any()):
        raise UserError("a next-token loss needs prompts of at least two tokens")
    gradient, residual = gradient_flow(model, prompts), residual_flow(model, prompts)
    losses = next_token_loss(model.run(prompts).logits, prompts) * len(prompts)
    keys: list[dict[str, Any]] = [{"metric": "loss", "unit": "nats per token"}]
    values = [losses.double().cpu().numpy()]
    grids: dict[str, tuple[Any, str | None, str]] = {
        "gradient norm": (gradient.norm, None, "gradient"), "residual norm": (residual.norm, None, "residual"),
        "update norm": (residual.attn_norm, "attn", "residual"), "turn": (residual.angle, None, "degrees"),
    }  # fmt: skip
    lines = list(grids.items())
    if model.geometry.mlp:
        lines.append(("update norm", (residual.mlp_norm, "mlp", "residual")))
    for part in PARTS:
        lines.append(("part norm", (gradient.parts[part], part, "gradient")))
        lines.append(("share", (gradient.shares[part], part, "share of the total gradient")))
    for metric, (grid, which, unit) in lines:
        for layer in range(model.geometry.layers):
            keys.append({"metric": metric, "components": which, "layer": layer, "x": float(layer), "unit": unit})
            values.append(grid[:, layer].double().cpu().numpy())
    return curve_rows(keys, np.stack(values), context.resampling(len(prompts)), series=name, positions=state,
                      x_name="layer", method="gradient flow")  # fmt: skip


def _failed(name: str, reason: str) -> Any:
    from interp.results.frames import typed
    from interp.results.schemas import CURVE

    return typed(
        [{"metric": "loss", "series": name, "positions": "trained", "x_name": "layer", "reason": reason}], CURVE
    )


EXPERIMENT = Experiment(
    "gradient_flow", 1, GradientFlowConfig, run, {"smoke": {"n": 6, "layers": 2, "steps": 3, "period": 4}}
)

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("gradient_flow"))
