"""Cells made for the tests of pages: a grid of heads with hostile tokens and patterns, edges, a long table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.results.frames import Table, typed
from interp.results.schemas import EFFECT, Schema
from interp.results.store import Cell, publish

TOKENS = [
    "<bos>", "</script><script>window.hacked=1</script>", "\u2028", "\"'`", "🙂", "\n",
    "<img src=x onerror=window.hacked=2>", "{{ 7*7 }}", "\u202eabc", "\x00", "&amp;", "a", "b", "c", "d",
]  # fmt: skip


def grid(layers: int, heads: int, seed: int = 0, **constants: Any) -> list[dict[str, Any]]:
    """One row per head; the largest is 9 at L1.h2."""
    values = np.random.default_rng(seed).normal(size=(layers, heads)).clip(-3, 3)
    values[1, 2] = 9.0
    return [
        {**constants, "site": "z", "layer": i, "head": j, "effect": v, "ci_low": v - 0.5, "ci_high": v + 0.5,
         "unit": "logits", "n": 64}
        for (i, j), v in np.ndenumerate(values)
    ]  # fmt: skip


def run_of(**more: Any) -> dict[str, Any]:
    return {
        "experiment": "activation_patching", "model": "gpt2-small", "task": "ioi", "seed": 0,
        "config": {"model": "gpt2", "hostile": TOKENS[1]}, "command": "interp run", "notes": {}, **more,
    }  # fmt: skip


def heads_cell(out: Path, layers: int = 12, heads: int = 12, digest: str = "0" * 10, seed: int = 0) -> Cell:
    """Heads with patterns of two prompts and hostile tokens."""
    rng = np.random.default_rng(1)
    patterns = {}
    for layer in range(layers):
        weights = np.tril(rng.random((2, heads, len(TOKENS), len(TOKENS))).astype("float32")) ** 6
        patterns[f"L{layer}.pattern"] = weights / weights.sum(-1, keepdims=True)
    frame = typed(grid(layers, heads, seed, metric="logit_diff", task=TOKENS[1], model="gpt2-small"), EFFECT)
    table = Table(frame, artifacts={"patterns.safetensors": patterns, "patterns.json": {"tokens": [TOKENS, TOKENS]}})
    prompts = [{"tokens": TOKENS, "labels": {"S2": 11}}]
    return publish(out / "activation_patching" / f"gpt2.ioi-{digest}", table, run_of(prompts=prompts, hash=digest))


def edges_cell(out: Path) -> Cell:
    """Three edges."""
    rows = [
        {"src": s, "dst": d, "effect": v, "ci_low": v - 0.1, "ci_high": v + 0.1, "unit": "logits", "n": 9}
        for s, d, v in [("input", "a0.h1<q>", 4.0), ("a0.h1", "a1.h0<v>", -2.0), ("a1.h0", "logits", 1.0)]
    ]
    return publish(out / "path_patching" / "m.t-2222222222", Table(typed(rows, EFFECT)), run_of(prompts=[]))


def long_cell(out: Path, rows: int) -> Cell:
    """A table of this many rows."""
    at = np.arange(rows)
    effect = np.random.default_rng(2).normal(size=rows)
    frame = pd.DataFrame({
        "metric": "logit_diff", "method": [f"method {k}" for k in at // 144], "layer": at // 12 % 12, "head": at % 12,
        "site": "z", "effect": effect, "ci_low": effect - 0.5, "ci_high": effect + 0.5, "unit": "logits", "n": 64,
    })  # fmt: skip
    return publish(out / "activation_patching" / "big.ioi-1111111111", Table(typed(frame, EFFECT)), run_of())


def own_cell(out: Path) -> Cell:
    """A table of a user's own experiment and schema."""
    from interp.results.schemas import Column

    columns = (Column("colour", "name", "a colour", key=True), Column("weight", "number", "its weight"))
    schema = Schema("colours", columns, "weight")
    rows = [{"colour": c, "weight": w} for c, w in (("red", 3.0), ("green", 1.0), ("blue", -2.0))]
    run = {**run_of(), "experiment": "colours", "model": None, "task": None, "config": {}}
    return publish(out / "colours" / "-.--3333333333", Table(typed(rows, schema), schema), run)
