"""A cell without a model that can be made to die: the experiment whose sweeps are broken on purpose.

It streams one row per item, so that a killed one resumes; its numbers depend on its config and its file only.
Faults are files in the folder $PROBE_FAULTS, named `<fault>-<seed>`; they are no part of the config:

    kill-3      kill -9 of the worker after two rows, a torn third row behind it; once (`killall-3`: every time)
    raise-3     raise a RuntimeError, as long as the file is there
    hold-3      say that the cell is in hand (`held-3`), and wait until the file is gone
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import numpy as np
from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.results.frames import effect_rows

PROMPTS = 8
AFTER = 2


class ProbeConfig(Config):
    """Settings of the probe."""

    seed: int = Field(0, ge=0)
    rows: int = Field(4, ge=1)
    step: float = Field(0.0, ge=0, description="seconds that a row takes")
    file: str | None = Field(None, description="a file whose content is part of the numbers")
    label: str = ""


def run(config: ProbeConfig, context: Context) -> Table:
    """One row per item, streamed."""
    salt = 0
    if config.file is not None:
        salt = int(hashlib.sha256(Path(config.file).read_bytes()).hexdigest()[:8], 16)
    keys = [{"site": "z", "layer": 0, "head": i} for i in range(config.rows)]
    for i, key in enumerate(keys):
        if i == min(AFTER, config.rows - 1):
            _faults(config, context)
        if key not in context.rows:
            time.sleep(config.step)
            drawn = np.random.default_rng([config.seed, salt, i]).normal(i, 1, size=PROMPTS)
            context.rows.add(key, {"values": drawn})
    values = np.array([(context.rows.get(key) or {})["values"] for key in keys])
    base = np.zeros(PROMPTS)
    frame = effect_rows(keys, values, base, context.resampling(PROMPTS), clean=base + 2, corrupt=base, unit="logits")
    return Table(frame)


def _faults(config: ProbeConfig, context: Context) -> None:
    folder = os.environ.get("PROBE_FAULTS")
    if folder is None:
        return
    hold, held = (Path(folder, f"{name}-{config.seed}") for name in ("hold", "held"))
    if hold.exists():
        held.write_text(f"{os.getpid()}\n", encoding="ascii")
        while hold.exists():
            time.sleep(0.02)
    for name, once in (("kill", True), ("killall", False)):
        path = Path(folder, f"{name}-{config.seed}")
        if path.exists():
            if once:
                path.unlink()
            with context.rows.path.open("a", encoding="utf-8") as file:
                file.write('{"key": {"site": "z", "lay')
            os.kill(os.getpid(), signal.SIGKILL)
    if Path(folder, f"raise-{config.seed}").exists():
        raise RuntimeError(f"the probe of seed {config.seed} was told to fail")


PROBE = Experiment("probe", 1, ProbeConfig, run, {"smoke": {"rows": 2}})
