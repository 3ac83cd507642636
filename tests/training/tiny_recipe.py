"""A recipe of one second: a GPT-2 of one layer on rows that count up, with dropout on, to try the loop."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from torch import nn

from interp.training.initialise import fresh
from interp.training.recipes import Batch, Figure, Recipe, Settings

VOCAB = 12


def model(generator: torch.Generator) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.2, bos_token_id=0, eos_token_id=0
    )
    return fresh(lambda: GPT2LMHeadModel(config), generator)


def batches(seed: int, step: int) -> list[Batch]:
    rng = random.Random(f"{seed}:{step}")
    starts = [rng.randrange(VOCAB) for _ in range(8)]
    rows = torch.tensor([[(s + i) % VOCAB for i in range(6)] for s in starts])
    return [Batch(rows, torch.ones(rows.shape))]


def evaluate(model: nn.Module, seed: int) -> list[Figure]:
    row = torch.tensor([[3, 4, 5]])
    right = float(model(row).logits[0, -1].argmax() == 6)
    return [Figure("counts", right, 1 / VOCAB, 1 / VOCAB, 0.5, 1, "fraction")]


def export(model: nn.Module, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"exported": True}))


def recipe(steps: int = 12, every: int = 4) -> Recipe:
    settings = Settings(steps=steps, lr=1e-2, warmup=2, checkpoint_every=every)
    return Recipe("tiny", "counts", settings, model, batches, evaluate, export)
