"""Path expansion: how much of an attention-only model's loss its bigram, one-head and two-head paths account for.

Rows: `loss` after each group of terms is added, in the stated order (`series`: bias, zero, one, two; the first row
`start` is no logits at all), the `marginal` loss of each group, and for every single path `left_out`: what the loss
gains when that term alone is taken away. Losses are next-token nats; the last `loss` is the model's own.

    interp run path_expansion --model attn-2l
    interp run path_expansion --model attn-2l --set text=FOLDER      (windows of the .txt file held out)

Source: A Mathematical Framework for Transformer Circuits (2021). Limits: attention-only models; patterns and norm
denominators are frozen at each prompt's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.context import ModelName

if TYPE_CHECKING:
    from interp.hooks.prompts import Prompts
    from interp.models.model import Model

Term = Literal["bias", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


class PathExpansionConfig(Config):
    """Settings of `path_expansion`."""

    model: ModelName = Field("attn-2l", description="attention-only model: embedded name, folder or hub name")
    model_options: dict[str, Any] = Field({}, description="passed on to load_model: revision, weights, …")
    text: str | None = Field(None, description="folder of .txt files; null: repeated random tokens")
    period: int = Field(20, ge=2, description="period of the repeated random tokens")
    n: int = Field(32, ge=1, description="prompts")
    length: int = Field(64, ge=4, description="tokens of a window of text")
    order: tuple[Term, ...] | None = Field(None, description="order of the terms; bias, zero, one, two, … by default")
    paths: bool = Field(True, description="also leave out every single path")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the prompts")


def run(config: PathExpansionConfig, context: Context) -> Table:
    """Losses by order, and by path."""
    import pandas as pd

    from interp.results.frames import sort_by_key
    from interp.results.schemas import CURVE

    model: Model = context.model
    prompts, about = prompts_of(config, model)
    frames = [_by_order(config, context, model, prompts, about)]
    if config.paths:
        frames.append(_left_out(config, context, model, prompts, about))
    return Table(sort_by_key(pd.concat(frames, ignore_index=True), CURVE), CURVE)


def prompts_of(config: Any, model: Model) -> tuple[Prompts, str]:
    """Windows of held-out text, or repeated random tokens; and what to call them."""
    import torch

    from interp.hooks.prompts import Prompts
    from interp.registry import UserError
    from interp.tasks.repeated import repeated
    from interp.tasks.tokens import Codec

    if config.text is None:
        tokens = Codec.of(model).ordinary()
        made = repeated(tokens, config.period, config.n, config.seed, n_ctx=model.geometry.n_ctx)
        return made, f"repeated tokens, period {config.period}"
    from interp.training.text import held_out_text

    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer to read text with")
    name, text = held_out_text(config.text)
    ids = torch.tensor(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    length = min(config.length, model.geometry.n_ctx)
    if len(ids) < length * config.n:
        raise UserError(f"{name} has {len(ids)} tokens, {config.n} windows of {length} were asked for")
    starts = torch.randperm(len(ids) // length, generator=torch.Generator().manual_seed(config.seed))[: config.n]
    return Prompts.of(torch.stack([ids[i * length : (i + 1) * length] for i in starts.tolist()])), name


def _by_order(config: PathExpansionConfig, context: Context, model: Model, prompts: Prompts, about: str) -> Any:
    """Loss after each group, and what each group changed."""
    import numpy as np

    from interp.results.curves import curve_rows
    from interp.weights.paths import BIAS, ORDERS, path_expansion

    found = path_expansion(model, prompts)
    default = [BIAS, *(name for name in ORDERS if name in found.terms)]
    order = list(config.order or default)
    losses = {name: loss.double().cpu().numpy() for name, loss in found.losses(order).items()}
    names = ["start", *order]
    keys = [{"metric": "loss", "series": n, "x_name": "terms", "x": float(i)} for i, n in enumerate(names)]
    values = [losses[n] for n in names]
    for i, name in enumerate(order):
        keys.append({"metric": "marginal", "series": name, "x_name": "terms", "x": float(i + 1)})
        values.append(losses[name] - losses[names[i]])
    return curve_rows(
        keys, np.stack(values), context.resampling(len(prompts)), task=about, unit="nats per token", seed=config.seed,
        method="path expansion", algorithm=f"marginal in the order {' '.join(order)}",
    )  # fmt: skip


def _left_out(config: PathExpansionConfig, context: Context, model: Model, prompts: Prompts, about: str) -> Any:
    """What the loss gains without each path; negative where the path hurts."""
    import numpy as np

    from interp.results.curves import curve_rows
    from interp.weights.paths import next_token_nats, path_expansion, path_order

    size = max(
        1, 2**25 // (prompts.width * model.geometry.d_vocab * (1 + model.geometry.heads) ** model.geometry.layers)
    )
    gained: dict[str, list[Any]] = {}
    for start in context.progress(range(0, len(prompts), size), "paths"):
        found = path_expansion(model, prompts.rows(slice(start, start + size)), "path")
        whole = next_token_nats(found.logits, found.prompts)
        for name in found.terms:
            gained.setdefault(name, []).append((found.without(name) - whole).double().cpu().numpy())
    keys = [
        {"metric": "left_out", "series": name, "x_name": "heads on the path",
         "x": None if name == "bias" else float(path_order(name))}
        for name in gained
    ]  # fmt: skip
    values = np.stack([np.concatenate(v) for v in gained.values()])
    return curve_rows(
        keys, values, context.resampling(len(prompts)), task=about, unit="nats per token", seed=config.seed,
        method="path expansion", algorithm="one term left out",
    )  # fmt: skip


EXPERIMENT = Experiment(
    "path_expansion", 1, PathExpansionConfig, run, {"smoke": {"n": 6, "period": 6}},
)  # fmt: skip

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("path_expansion"))
