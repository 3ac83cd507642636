"""Training dynamics: head scores, composition, loss and in-context learning over a model's kept checkpoints.

For every weight file of a model folder (`step-NNNNNN.safetensors`, then the final one): the best previous-token
and induction scores and those of the final model's own best heads, their K-composition and its baseline, the loss
on the second copy of repeated random tokens, and, with a folder of text, held-out loss and in-context learning
(loss at tokens 20–29 of a window minus that at its last 16). One curve each, over training steps.

    interp run training_dynamics --model attn-2l
    interp run training_dynamics --model attn-2l --set text=FOLDER
    interp run training_dynamics --set also='{"text-only.safetensors":3000}'

Source: Olsson et al. 2022 (2209.11895). Limits: as many points as there are checkpoints.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.context import ModelName

if TYPE_CHECKING:
    from interp.models.model import Model


class TrainingDynamics(Config):
    """Settings of `training_dynamics`."""

    model: ModelName = Field("attn-2l", description="embedded name, or folder with step-*.safetensors in it")
    text: str | None = Field(None, description="folder of .txt files for held-out loss; null: none")
    also: dict[str, int] = Field({}, description="further weight files and their steps, each a series of its own")
    n: int = Field(16, ge=2, description="repeated-token prompts of each period")
    windows: int = Field(100, ge=2, description="windows of held-out text")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the prompts")


def run(config: TrainingDynamics, context: Context) -> Table:
    """One row per checkpoint and measure."""
    import pandas as pd

    from interp.results.frames import sort_by_key
    from interp.results.schemas import CURVE
    from interp.weights.heads import head_scores

    files, last = weight_files(config.model)
    for name in config.also:
        _check_file(config.model, name)
    final = context.load_model(config.model)
    scores = head_scores(final, n=config.n, seed=config.seed)
    heads = {kind: scores.best(kind) for kind in ("previous", "induction")}
    todo = [(name, step, "run") for name, step in files.items()] + [("model.safetensors", last, "run")]
    todo += [(name, step, name.removesuffix(".safetensors")) for name, step in config.also.items()]
    frames = [
        _measure(config, context, weights, step, series, heads)
        for weights, step, series in context.progress(todo, "checkpoints")
    ]
    notes = {f"final best {kind} head": f"a{layer}.h{head}" for kind, (layer, head) in heads.items()}
    return Table(sort_by_key(pd.concat(frames, ignore_index=True), CURVE), CURVE, notes=notes)


def weight_files(model: str) -> tuple[dict[str, int], int]:
    """The kept weight files of a model and the steps they stand for; and the final step."""
    import json

    from interp.models.finding import find
    from interp.registry import UserError

    folder = find(model).path
    files = {p.name: int(p.stem.removeprefix("step-")) for p in sorted(folder.glob("step-*.safetensors"))
             if re.fullmatch(r"step-\d+", p.stem)}  # fmt: skip
    if not files:
        raise UserError(f"{model} keeps no checkpoints: step-NNNNNN.safetensors beside its weights are needed")
    card = folder / "card.json"
    steps = json.loads(card.read_text())["origin"]["steps"] if card.is_file() else max(files.values()) + 1
    return files, int(steps)


def _check_file(model: str, name: str) -> None:
    from interp.models.finding import find
    from interp.registry import unknown

    there = sorted(p.name for p in find(model).path.glob("*.safetensors"))
    if name not in there:
        raise unknown(f"weight file of {model}", name, there)


def _measure(
    config: TrainingDynamics, context: Context, weights: str, step: int, series: str, heads: dict[str, tuple[int, int]]
) -> Any:
    """All measures of one checkpoint, with intervals over prompts."""
    import numpy as np

    from interp.results.curves import curve_rows
    from interp.weights.composition import composition
    from interp.weights.heads import head_scores

    model: Model = context.load_model(config.model, weights=weights)
    found = head_scores(model, n=config.n, seed=config.seed)
    keys: list[dict[str, Any]] = []
    values: list[Any] = []
    for kind, (layer, head) in heads.items():
        best = found.best(kind)
        for what, (i, j) in ((f"best {kind}", best), (f"{kind} of the final best head", (layer, head))):
            keys.append({"metric": what, "layer": i, "head": j, "unit": "fraction of attention"})
            values.append(found.scores[kind][:, i, j].numpy())
    repeats = _second_copy(model, config)
    keys.append({"metric": "loss on second copies", "unit": "nats per token"})
    values.append(repeats[: len(values[0])])
    constants: dict[str, Any] = {"series": series, "x_name": "training step", "x": float(step), "seed": config.seed,
                 "task": "repeated tokens", "components": weights}  # fmt: skip
    frames = [curve_rows(keys, np.stack(values), context.resampling(len(values[0])), **constants)]
    (l1, h1), (l2, h2) = heads["previous"], heads["induction"]
    if l1 < l2:
        k = composition(model, "k", permutations=0, seed=config.seed)
        row = {"metric": "k_composition", "src": f"a{l1}.h{h1}", "dst": f"a{l2}.h{h2}", "unit": "share of norms",
               "value": float(k.score[l1, h1, l2, h2]), "baseline": float(k.baseline[l1, h1, l2, h2])}  # fmt: skip
        from interp.results.frames import typed
        from interp.results.schemas import CURVE

        frames.append(typed([{**constants, "task": None, **row}], CURVE))
    if config.text is not None:
        frames.append(_text(config, context, model, constants))
    import pandas as pd

    return pd.concat(frames, ignore_index=True)


def _second_copy(model: Model, config: TrainingDynamics) -> Any:
    """Loss on the second copy, after its first token, of each repeated prompt (three periods, as the scores)."""
    import numpy as np
    import torch

    from interp.tasks.repeated import repeated
    from interp.tasks.tokens import Codec
    from interp.weights.heads import random_periods

    tokens, found = Codec.of(model).ordinary(), []
    for period in random_periods(model.geometry.n_ctx, False, config.seed):
        prompts = repeated(tokens, period, config.n, config.seed)
        with torch.no_grad():
            log_p = model.run(prompts).logits[:, period:-1].float().log_softmax(-1)
        found.append(-log_p.gather(-1, prompts.tokens[:, period + 1 :, None])[..., 0].mean(1).double().numpy())
    return np.concatenate(found)


def _text(config: TrainingDynamics, context: Context, model: Model, constants: dict[str, Any]) -> Any:
    """Held-out loss and in-context learning on windows of the file held out."""
    import numpy as np
    import torch

    from interp.registry import UserError
    from interp.results.curves import curve_rows
    from interp.training.text import held_out_text
    from interp.training.text_figures import window_nats

    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer to read text with")
    name, text = held_out_text(config.text or "")
    ids = torch.tensor(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    width = min(96, model.geometry.n_ctx)
    nats = window_nats(model, ids, width, config.windows).double().numpy()
    early, late = nats[:, 19:29].mean(1), nats[:, -16:].mean(1)
    keys = [{"metric": "held-out loss", "unit": "nats per token"}, {"metric": "in-context learning", "unit": "nats"}]
    values = np.stack([nats.mean(1), early - late])
    return curve_rows(keys, values, context.resampling(len(nats)), **{**constants, "task": name})


EXPERIMENT = Experiment("training_dynamics", 1, TrainingDynamics, run, {"smoke": {"n": 2}})

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("training_dynamics"))
