"""Rows for work on edges: every edge of a small model exactly, and edge attribution of a GPT-2 small shape."""

from __future__ import annotations

from statistics import median
from typing import Any

from experiments.benchmark.patching_rows import timed
from experiments.benchmark.shapes import random_pairs

EDGE_MODEL = {"n_layer": 3, "n_head": 4, "n_embd": 96, "n_inner": 384, "vocab_size": 54, "n_positions": 32}


def edge_model(seed: int = 0) -> Any:
    """3 layers of 4 heads, width 96, MLP 384, vocabulary 54: 262 edges. Random weights."""
    import torch
    import transformers as tf

    from interp.models.load import load_model

    torch.manual_seed(seed)
    module = tf.GPT2LMHeadModel(tf.GPT2Config(**EDGE_MODEL, attn_implementation="eager")).eval()
    return load_model(module)


def exact_edges_row(rounds: int, threads: int, prompts: int = 32) -> dict[str, Any]:
    """All 262 edges patched exactly, 32 pairs of 15 tokens."""
    from interp.interventions.edges import edge_effects

    model = edge_model()
    task = random_pairs(model, 0, prompts)
    edge_effects(model, task)
    times = [timed(lambda: edge_effects(model, task)) for _ in range(rounds)]
    seconds = [t for t, _ in times]
    return {
        "setting": f"3 layers × 4 heads, width 96, {prompts} pairs of 15 tokens, different from the start",
        "method": "edge_effects", "algorithm": "exact edge patching", "components": f"{len(times[0][1])} edges",
        "seconds": median(seconds), "seconds_low": min(seconds), "seconds_high": max(seconds), "n": rounds,
        "unit": "seconds", "device": "cpu", "dtype": "float32", "threads": threads,
    }  # fmt: skip
