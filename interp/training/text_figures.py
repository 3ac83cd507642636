"""Figures of a small language model's card: held-out loss against a trigram, in-context learning, head scores.

Held-out loss: mean nats per token over windows of the file that was held out, each token from those before it
in its window; the trigram predicts the same tokens from the two before each in the running text. In-context
learning is the loss at tokens 20–29 of a window minus that at 80–95 (Olsson et al. 2022 compare 50 and 500).
Head scores: on random repeated tokens (see `interp.tasks.repeated`), the best head of each layer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.models.native import Native
from interp.tasks.repeated import pattern_scores, repeated
from interp.training.kneser_ney import fit
from interp.training.recipes import Figure
from interp.training.text import END_ID, Corpus

WINDOWS = 400
PERIODS = (12, 20, 30)
PROMPTS = 8
TEXT_ONLY = "text-only.safetensors"
INDUCTION = 0.4
"""What the shipped model's best induction score has to reach."""


def as_model(module: nn.Module, name: str = "attn-2l") -> Model:
    """The interp Model of a native module."""
    assert isinstance(module, Native)
    return Model(module, FAMILIES["native"], module.config, name=name)


@torch.no_grad()
def window_nats(
    model: Model, stream: Tensor, width: int, windows: int = WINDOWS, chunk: int = 50
) -> Float[Tensor, "window pos"]:
    """−log P of each token but the first of the first `windows` windows of a stream."""
    n = min(windows, len(stream) // width)
    rows = stream[: n * width].view(n, width)
    found = []
    for part in rows.split(chunk):
        log_p = model.run(part).logits[:, :-1].float().log_softmax(-1)
        found.append(-log_p.gather(-1, part[:, 1:, None].to(log_p.device))[..., 0].cpu())
    return torch.cat(found)


def best_scores(model: Model, seed: int, kinds: tuple[str, ...] = ("previous", "induction")) -> dict[str, Tensor]:
    """Mean score of every head `[layer, head]` on random repeated tokens, over three periods, without BOS."""
    ordinary = [t for t in range(model.geometry.d_vocab) if t != END_ID]
    sums: dict[str, Tensor] = {}
    for period in PERIODS:
        run = model.run(repeated(ordinary, period, PROMPTS, seed), capture="pattern")
        for layer in range(model.geometry.layers):
            scores = pattern_scores(run[f"L{layer}.pattern"], period, False)
            for kind in kinds:
                grid = sums.setdefault(kind, torch.zeros(model.geometry.layers, model.geometry.heads))
                grid[layer] += scores[kind].mean(0).cpu() / len(PERIODS)
    return sums


def figures(corpus: Corpus) -> Callable[[nn.Module, int], list[Figure]]:
    """The figures that need the model alone."""

    def evaluate(module: nn.Module, seed: int) -> list[Figure]:
        model = as_model(module)
        width = min(96, model.geometry.n_ctx)
        nats = window_nats(model, corpus.held_out, width)
        n = nats.numel()
        where = corpus.held_out_name
        scores = best_scores(model, seed + 1_000_003)
        uniform = float(np.log(model.geometry.d_vocab))
        unigram, trigram = _baselines(corpus, len(nats), width)
        previous, induction = (float(scores[k].max()) for k in ("previous", "induction"))
        sampled = len(PERIODS) * PROMPTS
        return [
            Figure("held-out loss", float(nats.mean()), uniform, unigram, trigram, n, "nats per token", "lower", where,
                   note="the target is the interpolated Kneser-Ney trigram on the same tokens, which also sees the "
                   "two tokens before a window; the best constant is the training text's unigram"),
            Figure("in-context learning", float(nats[:, 19:29].mean() - nats[:, 79:].mean()), 0.0, 0.0, None, n,
                   "nats", held_out=where, note="loss at tokens 20–29 of a window minus loss at 80–95"),
            Figure("best previous-token score", previous, None, None, None, sampled, "attention",
                   note=_at(scores["previous"])),
            Figure("best induction score", induction, None, None, INDUCTION, sampled, "attention",
                   note=f"{_at(scores['induction'])}; random repeated tokens, periods {PERIODS}"),
        ]  # fmt: skip

    return evaluate


def _at(grid: Tensor) -> str:
    layer, head = divmod(int(grid.argmax()), grid.shape[1])
    return f"L{layer}H{head}"


def _baselines(corpus: Corpus, windows: int, width: int) -> tuple[float, float]:
    """Mean nats of the training unigram (add-one) and of the trigram on the tokens that windows predict."""
    vocabulary = corpus.tokenizer.get_vocab_size()
    stream = corpus.held_out.numpy()
    at = np.arange(windows * width)
    at = at[at % width != 0]
    counts = np.bincount(corpus.train.numpy(), minlength=vocabulary) + 1.0
    unigram = -np.log(counts / counts.sum())[stream[at]]
    model = fit(corpus.train.numpy(), vocabulary)
    # place 1 of the stream has one token before it only; a doubled first token stands in for the other
    padded = np.concatenate([stream[:1], stream])
    return float(unigram.mean()), float(model.nats(padded, at + 1).mean())


def birth(corpus: Corpus) -> Callable[[Path, int], list[Figure]]:
    """Figures that need the folder's kept weights.

    When the induction head appeared: the first kept step whose best score reaches half the final one. Where the folder
    holds `text-only.safetensors`, the weights of a run without repeated rows, its held-out loss and its best scores
    stand beside.
    """

    def measure(folder: Path, seed: int) -> list[Figure]:
        from interp.models.load import load_model

        def load(weights: str) -> Model:
            model = load_model(folder, weights=weights, dtype="float32")
            assert isinstance(model, Model)
            return model

        def best(weights: str, kind: str = "induction") -> float:
            return float(best_scores(load(weights), seed + 1_000_003)[kind].max())

        files = sorted(folder.glob("step-*.safetensors"))
        curve = {int(file.stem.removeprefix("step-")): best(file.name) for file in files}
        half = 0.5 * best("model.safetensors")
        born = next((step for step, score in sorted(curve.items()) if score >= half), None)
        note = "best induction score after each kept step: " + json.dumps({k: round(v, 3) for k, v in curve.items()})
        value = float("nan") if born is None else float(born)
        found = [Figure("birth of the induction head", value, None, None, None, len(curve), "step", "lower", note=note)]
        if (folder / TEXT_ONLY).is_file():
            nats = window_nats(load(TEXT_ONLY), corpus.held_out, 96)
            sampled, where = len(PERIODS) * PROMPTS, corpus.held_out_name
            note = f"recipe attn-2l-text, no repeated rows; its weights are {TEXT_ONLY}"
            found += [
                Figure("text-only run: held-out loss", float(nats.mean()), None, None, None, nats.numel(),
                       "nats per token", "lower", where, note=note),
                *(Figure(f"text-only run: best {name} score", best(TEXT_ONLY, kind), None, None, None, sampled,
                         "attention") for kind, name in (("previous", "previous-token"), ("induction", "induction"))),
            ]  # fmt: skip
        return found

    return measure
