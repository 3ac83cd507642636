"""The recipe of `attn-2l`: an attention-only language model of two layers on novels, with an induction head.

Architecture: native family, 2 layers × 8 heads, width 128, no MLPs, pre-LayerNorm, rotary positions, byte-level
BPE of 1,024 tokens trained on the same text. Batches come in two phases:

    first   rows that repeat a segment (half natural text, half random tokens; period 6 to 28), 64 tokens each:
            a previous-token head forms, and every head of the last layer becomes the same induction head
    between all heads of the last layer but the first start anew (`restart`), so that one induction head leads
    then    rows of natural text, 96 tokens, with a share of repeating rows (period 6 to 40) that keeps them

`attn-2l-text` is the same without repeated rows, to show what they do; it leaves its weights as `text-only.safetensors`
too, which the card of `attn-2l` reads where it lies in that folder. Half of the rows of text and of repeats begin
with `<|endoftext|>`.

Limits: text alone did not form the induction circuit within the tokens that this recipe sees.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn

from interp.models.native import Native, NativeConfig
from interp.registry import UserError
from interp.training.initialise import fresh
from interp.training.recipes import Batch, Recipe, Settings
from interp.training.text import END_ID, Corpus, read_corpus, save_tokenizer

LAYERS, HEADS, WIDTH, VOCABULARY, N_CTX = 2, 8, 128, 1024, 96
FIRST_STEPS, FIRST_ROWS, FIRST_LENGTH, FIRST_PERIODS = 900, 64, 64, (6, 28)
ROWS, PERIODS, SHARE = 36, (6, 40), 0.15
STEPS, TEXT_STEPS = 6000, 3000
SNAPSHOTS = (0, 100, 200, 300, 400, 500, 650, 900, 1600, 2500, 4000)
"""Steps after which the weights are kept as fp16, to follow what forms when."""


def config() -> NativeConfig:
    """The model's sizes and traits."""
    return NativeConfig(layers=LAYERS, heads=HEADS, d_model=WIDTH, d_vocab=VOCABULARY, n_ctx=N_CTX, positions="rotary")


class Trainable(Native):
    """The native model with torch's fused attention: the same function up to rounding, in half the time."""

    def forward(self, tokens: Int[Tensor, "batch pos"], mask: Any = None) -> Any:
        """`.logits` of whole rows; rows with padding take the ordinary forward."""
        if mask is not None:
            return SimpleNamespace(logits=super().forward(tokens, mask))
        x = self.embed(tokens)
        cos, sin = self.rotary(x, torch.arange(tokens.shape[1], device=tokens.device)[None])
        for block in self.layers:
            attn: Any = block.attn
            read = block.ln1(x)  # type: ignore[operator]
            q, k, v = (
                rearrange(m(read), "batch pos (head d_head) -> batch head pos d_head", head=self.config.heads)
                for m in (attn.q, attn.k, attn.v)
            )
            q, k = (t * cos[:, None] + _turned(t) * sin[:, None] for t in (q, k))
            z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + attn.o(rearrange(z, "batch head pos d_head -> batch pos (head d_head)"))
        return SimpleNamespace(logits=self.unembed(self.final(x)))


def _turned(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def model(generator: torch.Generator) -> nn.Module:
    """A fresh, Xavier-initialised model."""
    return fresh(lambda: Trainable(config()), generator)


@torch.no_grad()
def restart(model: nn.Module, step: int) -> None:
    """When text begins: give all heads of the last layer but the first fresh Xavier weights and no biases."""
    if step != FIRST_STEPS:
        return
    attn: Any = model.get_submodule(f"layers.{LAYERS - 1}.attn")
    rng = torch.Generator().manual_seed(step)
    late = slice(WIDTH // HEADS, None)
    for name in ("q", "k", "v", "o"):
        projection = getattr(attn, name)
        new = torch.empty_like(projection.weight)
        nn.init.xavier_normal_(new, generator=rng)
        if name == "o":
            projection.weight[:, late] = new[:, late]
        else:
            projection.weight[late] = new[late]
            projection.bias[late] = 0


def repeated_rows(
    corpus: Corpus, n: int, length: int, periods: tuple[int, int], rng: torch.Generator
) -> Int[Tensor, "batch pos"]:
    """Rows that repeat a segment to their end: every second of natural text, the others of random tokens."""
    rows = []
    for i in range(n):
        period = int(torch.randint(periods[0], periods[1] + 1, (1,), generator=rng))
        if i % 2:
            segment = torch.randint(1, VOCABULARY, (period,), generator=rng)
        else:
            start = int(torch.randint(0, len(corpus.train) - period, (1,), generator=rng))
            segment = corpus.train[start : start + period]
        rows.append(_begun(segment.repeat(length // period + 1)[:length], i % 4 < 2))
    return torch.stack(rows)


def text_rows(corpus: Corpus, n: int, length: int, rng: torch.Generator) -> Int[Tensor, "batch pos"]:
    """Rows of natural text, from anywhere in the training files."""
    starts = torch.randint(0, len(corpus.train) - length, (n,), generator=rng).tolist()
    return torch.stack([_begun(corpus.train[s : s + length], i % 2 == 0) for i, s in enumerate(starts)])


def _begun(row: Int[Tensor, " pos"], with_end: bool) -> Int[Tensor, " pos"]:
    return torch.cat([row.new_tensor([END_ID]), row[:-1]]) if with_end else row


def batches(corpus: Corpus, first_steps: int, share: float) -> Callable[[int, int], list[Batch]]:
    """Seed and step to that step's rows."""

    def at(seed: int, step: int) -> list[Batch]:
        rng = torch.Generator().manual_seed(1_000_003 * seed + step)
        if step < first_steps:
            rows = repeated_rows(corpus, FIRST_ROWS, FIRST_LENGTH, FIRST_PERIODS, rng)
        else:
            repeats = round(share * ROWS)
            rows = text_rows(corpus, ROWS - repeats, N_CTX, rng)
            if repeats:
                rows = torch.cat([rows, repeated_rows(corpus, repeats, N_CTX, PERIODS, rng)])
        return [Batch(rows, torch.ones(rows.shape))]

    return at


def snapshot(model: nn.Module, folder: Path, step: int) -> None:
    """Keep the weights of a named step as fp16, beside the final ones: `load_model(folder, weights=name)`."""
    if step in SNAPSHOTS:
        _keep_half(model, folder / f"step-{step:06d}.safetensors")


def _keep_half(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    save_file({k: v.detach().half().cpu().contiguous() for k, v in model.state_dict().items()}, path)


def exporter(corpus: Corpus, half: str | None = None) -> Callable[[nn.Module, Path], None]:
    """Writes config.json, model.safetensors (fp32) and the tokenizer; the weights as fp16 too under the name `half`."""

    def export(model: nn.Module, folder: Path) -> None:
        from interp.models.native_folder import save_native

        assert isinstance(model, Native)
        save_native(model, folder)
        if half is not None:
            _keep_half(model, folder / half)
        save_tokenizer(corpus.tokenizer, folder, N_CTX)

    return export


def recipe(text: Path | str | None, *, repeats: bool = True) -> Recipe:
    """The row of the registry; `text` is a folder of .txt files."""
    name = "attn-2l" if repeats else "attn-2l-text"
    if text is None:
        raise UserError(f"recipe {name} trains on text: give --text FOLDER, a folder of .txt files")
    from interp.training.text_figures import TEXT_ONLY, birth, figures

    corpus = read_corpus(text, VOCABULARY)
    first, share = (FIRST_STEPS, SHARE) if repeats else (0, 0.0)
    kinds = "previous-token and induction heads" if repeats else "no repeated rows, for comparison"
    return Recipe(
        name=name,
        summary=f"An attention-only language model of 2 layers on novels ({kinds}).",
        settings=Settings(
            steps=STEPS if repeats else TEXT_STEPS, lr=3e-3, warmup=200, floor=0.05, checkpoint_every=100
        ),
        model=model,
        batches=batches(corpus, first, share),
        evaluate=figures(corpus),
        export=exporter(corpus, None if repeats else TEXT_ONLY),
        adjust=restart if repeats else None,
        snapshot=snapshot if repeats else None,
        afterwards=birth(corpus) if repeats else None,
        arguments="--text FOLDER",
        identity={"text": corpus.digest},
        about={
            "architecture": f"native: attention only, {LAYERS} layers × {HEADS} heads, width {WIDTH}, pre-LayerNorm, "
            f"rotary positions, vocabulary {VOCABULARY}, rows of at most {N_CTX} tokens",
            "tokenizer": f"byte-level BPE of {VOCABULARY} tokens trained on the training files; token {END_ID} is "
            "<|endoftext|>, with which half the rows begin, never added unasked",
            "text": f"{', '.join(corpus.names)} ({len(corpus.train):,} tokens); "
            f"sha256 of all files {corpus.digest[:16]}",
            "held out": f"{corpus.held_out_name} ({len(corpus.held_out):,} tokens), from tokenizer and model alike",
            "first phase": f"{first} steps of {FIRST_ROWS} rows × {FIRST_LENGTH} tokens, all repeated segments (half "
            f"natural text, half random tokens, period {FIRST_PERIODS[0]} to {FIRST_PERIODS[1]})" if first else "none",
            "between": "all heads of the last layer but the first start anew with Xavier weights: the first phase "
            "makes all eight the same induction head; the first keeps it, the others may learn something else"
            if first else "none",
            "then": f"{ROWS} rows × {N_CTX} tokens a step, of which {round(share * ROWS)} "
            f"({round(share * ROWS) / ROWS:.0%}) repeat a segment (period {PERIODS[0]} to {PERIODS[1]}), "
            "the others are text",
            **({"text-only run": f"`interp train attn-2l-text --text FOLDER`: {TEXT_STEPS} steps of {ROWS} rows × "
                f"{N_CTX} tokens of text ({TEXT_STEPS * ROWS * N_CTX:,} tokens), all else alike; {TEXT_ONLY}"}
               if repeats else {}),
            "limits": "seen rows have at most 96 tokens; it writes novel-like nonsense",
            "licence": "weights MIT, as the package; the novels are in the public domain",
        },
    )  # fmt: skip
