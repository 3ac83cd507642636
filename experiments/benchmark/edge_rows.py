"""Rows for work on edges of a small model: every edge exactly, and ACDC."""

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


def acdc_row(shape: str, rounds: int, threads: int, prompts: int = 32, tau: float = 0.01) -> dict[str, Any]:
    """ACDC by KL: `random`, the small model with noise on every parameter so that edges matter; or `toy-ioi`."""
    from interp.circuits.acdc import acdc

    model, task = _noisy(prompts) if shape == "random" else _toy(prompts)
    acdc(model, task, tau)
    times = [timed(lambda: acdc(model, task, tau)) for _ in range(rounds)]
    seconds, found = [t for t, _ in times], times[0][1]
    return {
        "setting": f"{shape}, 3 layers × 4 heads, width 96, {prompts} pairs of {task.clean.width} tokens",
        "method": "acdc", "algorithm": f"ACDC, KL, tau {tau:g}",
        "components": f"{len(found.circuit.graph.edges)} edges", "seconds": median(seconds),
        "seconds_low": min(seconds), "seconds_high": max(seconds), "n": rounds, "unit": "seconds", "device": "cpu",
        "dtype": "float32", "threads": threads,
        "reason": f"{len(found.circuit)} edges kept; {found.rows} circuits run",
    }  # fmt: skip


NOISE = 0.1
"""Standard deviation of what is added to every parameter: at 0.01 nats ACDC then keeps about two dozen edges."""


def _noisy(prompts: int) -> tuple[Any, Any]:
    import torch

    model = edge_model()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.module.parameters():
            p.add_(NOISE * torch.randn(p.shape, generator=generator))
    return model, random_pairs(model, 0, prompts)


def _toy(prompts: int) -> tuple[Any, Any]:
    """The embedded model on IOI prompts of one template, 15 tokens."""
    from interp.models.load import load_model
    from interp.tasks.load import load_task

    model: Any = load_model("toy-ioi")
    return model, load_task("ioi", model, n=prompts, template=TOY_TEMPLATE)


TOY_TEMPLATE = 3
"""A template of 15 tokens."""
