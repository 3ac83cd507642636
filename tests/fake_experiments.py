"""Small experiments without a model, for tests of cells and of the command line."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from interp.cells import Config, Context, Experiment, Table
from interp.registry import UserError
from interp.results.frames import effect_rows, example_rows


class HeadsConfig(Config):
    n: int = pydantic.Field(16, ge=1, le=32)
    seed: int = 0
    heads: int = 8
    sites: str = "z"
    file: str | None = None
    options: dict[str, Any] = {}  # noqa: RUF012
    dtype: str = "float32"


def numbers(config: HeadsConfig, head: int) -> np.ndarray:
    """32 pairs exist, the first n are used."""
    return np.random.default_rng([config.seed, head]).normal(head / 4, 1, size=32)[: config.n]


def heads(config: HeadsConfig, context: Context) -> Table:
    """One row per head, streamed; dies after `FAKE_DIE` rows as kill -9 would have it, a torn line behind it."""
    if config.sites not in ("z", "q"):
        raise UserError(f"unknown site {config.sites!r}")
    base = np.zeros(config.n)
    keys = [{"layer": 0, "head": h, "site": config.sites} for h in range(config.heads)]
    for key in context.progress(list(context.rows.missing(keys)), "heads"):
        if len(context.rows) == int(os.environ.get("FAKE_DIE", "-1")):
            with context.rows.path.open("a") as file:
                file.write('{"key": {"layer": 0, "hea')
            os.kill(os.getpid(), getattr(signal, os.environ.get("FAKE_SIGNAL", "SIGKILL")))
        context.rows.add(key, {"values": numbers(config, key["head"])})
    values = np.array([context.rows.get(k)["values"] for k in keys])  # type: ignore[index]
    frame = effect_rows(keys, values, base, context.resampling(config.n), clean=base + 2, corrupt=base, unit="logits")
    return Table(frame, examples=example_rows(keys, values))


def broken(config: HeadsConfig, context: Context) -> Table:
    raise RuntimeError("the sky fell")


HEADS = Experiment("fake_heads", 1, HeadsConfig, heads, {"smoke": {"n": 8, "heads": 2}})
BROKEN = Experiment("fake_broken", 1, HeadsConfig, broken)


def install(folder: Path) -> None:
    """Metadata of an installed package whose entry points are these experiments (and one that is not there)."""
    info = folder / "fake_experiments-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-experiments\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[interp.experiments]\nfake_heads = fake_experiments:HEADS\nfake_broken = fake_experiments:BROKEN\n"
        "fake_absent = fake_nowhere.at_all:NONE\nfake_slow = fake_slow:SLOW\n"
    )
    (folder / "fake_slow.py").write_text('"""Takes a day to import."""\nraise SystemExit("imported")\n')
