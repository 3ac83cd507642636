"""A sweep of probes in a folder of its own: start it, break it, resume it, and see what was lost.

A cell counts as published when its folder is whole; as doubled when two workers say they published it, or two
folders hold it; as lost when neither published nor failed under its name. Tables are compared byte by byte
with those of an undisturbed run of the same sweep.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from interp.sweep.state import State, read_lines

PATIENCE = 120.0
_ENTRY = "[interp.experiments]\nprobe = experiments.faults.probe:PROBE\n"
# a clock that jumps about a day to and fro, at every look, in every process of the scene
_CLOCK = """
import os, time
if os.environ.get("PROBE_CLOCK"):
    real, jumps = time.time, iter(range(10**9))
    time.time = lambda: real() + (86400 if next(jumps) % 2 else -86400)
"""


@dataclass(frozen=True)
class Seen:
    """What a sweep looks like at the end."""

    cells: int
    published: int
    lost: int
    doubled: int
    failed: dict[str, str]
    """Traceback of each failed cell, by key."""
    different: int
    """Tables that are not, byte by byte, those of an undisturbed run."""
    left: list[str]
    """Folders of unfinished cells and claims that are still there."""

    @property
    def whole(self) -> bool:
        """Every cell published exactly once as an undisturbed run does, and nothing left behind."""
        counts = (self.lost, self.doubled, len(self.failed), self.different, len(self.left))
        return self.published == self.cells and not any(counts)

    def told(self) -> str:
        """In words."""
        said = f"{self.published} of {self.cells} published once, {self.lost} lost, {self.doubled} doubled"
        said += f", {len(self.failed)} failed and named" if self.failed else ""
        return said + (", tables as undisturbed" if not self.different else f", {self.different} tables differ")


@dataclass
class Scene:
    """One sweep of probes under `folder`. Its file is written at once."""

    folder: Path
    cells: int = 6
    rows: int = 4
    step: float = 0.0
    backend: Sequence[str] = ("--backend", "local", "--workers", "2")
    resources: dict[str, Any] = field(default_factory=dict)
    group: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.faults = self.folder / "faults"
        self.out = self.folder / "out"
        site = self.folder / "site"
        info = site / "probe-1.0.dist-info"
        for made in (self.faults, info):
            made.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(_ENTRY, encoding="utf-8")
        (site / "sitecustomize.py").write_text(_CLOCK, encoding="utf-8")
        self.yaml = self.folder / "probes.yaml"
        self.write()

    def write(self) -> None:
        """Write the sweep file as the fields say."""
        settings: dict[str, Any] = {"rows": self.rows, "step": self.step}
        if self.file is not None:
            settings["file"] = str(self.file)
        block = {"experiment": "probe", "set": settings, "grid": {"seed": list(range(self.cells))}}
        value: dict[str, Any] = {"name": "probes", "out": str(self.out), "cells": [block]}
        value |= {"resources": self.resources} if self.resources else {}
        value |= {"group": self.group} if self.group else {}
        self.yaml.write_text(yaml.safe_dump(value), encoding="utf-8")

    def environment(self) -> dict[str, str]:
        """Environment of every process of the scene."""
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join([str(self.folder / "site"), str(root), os.environ.get("PYTHONPATH", "")])
        one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        env = {**os.environ, **one, "PYTHONPATH": path.rstrip(os.pathsep), "PROBE_FAULTS": str(self.faults)}
        env.pop("INTERP_RESULTS", None)
        return {**env, **self.env}

    # --- faults --------------------------------------------------------------------------------------------

    def fault(self, name: str, seed: int) -> Path:
        """Arm a fault of the probe."""
        path = self.faults / f"{name}-{seed}"
        path.touch()
        return path

    def held(self, seed: int) -> int:
        """Wait until a cell that is held is in hand; the process that has it."""
        path = self.faults / f"held-{seed}"
        return int(wait_for(lambda: path.exists() and path.read_text(encoding="ascii").strip(), f"cell {seed} in hand"))

    def begun(self, runs: int) -> None:
        """Wait until so many `sweep run`s have planned and begun."""
        wait_for(lambda: len(list(self.state.at("runs").glob("*.json"))) >= runs, f"the beginning of {runs} runs")

    def done(self) -> int:
        """Cells that are published at the moment."""
        return len(list(self.out.glob("probe/-*/run.json")))

    def at_work(self) -> set[str]:
        """Workers that say that they live."""
        return {path.name for path in self.out.glob(".claims/beats/*.json")}

    # --- commands ------------------------------------------------------------------------------------------

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "interp", "sweep", *words]

    def start(self, *words: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        """`sweep run` in the background, in a session of its own as under a shell."""
        command = [*prefix, *self.command("run", str(self.yaml), *self.backend, *words)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment(),
            start_new_session=True, cwd=self.folder,
        )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`sweep run`, to its end."""
        return self.call("run", str(self.yaml), *self.backend, *words)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Any `interp sweep` command, to its end."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, env=self.environment(), cwd=self.folder, check=False,
        )  # fmt: skip

    # --- what is there -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return State(self.out, "probes")

    def plan(self) -> list[dict[str, Any]]:
        """The cells as the last run planned them."""
        return list(read_lines(self.state.plan_file))[1:]

    def key(self, seed: int) -> str:
        return str(next(c["key"] for c in self.plan() if c["config"]["seed"] == seed))

    def path(self, seed: int) -> Path:
        return self.out / str(next(c["place"] for c in self.plan() if c["config"]["seed"] == seed))

    def seen(self, reference: dict[int, bytes]) -> Seen:
        """Count; `reference` is what an undisturbed run gives by seed."""
        cells = self.plan()
        published, different = 0, 0
        for cell in cells:
            folder = self.out / cell["place"]
            if _whole(folder):
                published += 1
                different += (folder / "table.parquet").read_bytes() != reference[cell["config"]["seed"]]
        failures = {k: str(v.get("traceback", "")) for k, v in self.state.failed().items()}
        keys = {c["key"] for c in cells}
        failed = {k: v for k, v in failures.items() if k in keys}
        lost = len(cells) - published - len(failed)
        return Seen(len(cells), published, lost, self._doubled(cells), failed, different, self._left(cells))

    def _doubled(self, cells: list[dict[str, Any]]) -> int:
        said = Counter(
            entry["key"] for path in self.state.at("events").glob("*.jsonl") for entry in read_lines(path)
            if entry.get("state") == "done"
        )  # fmt: skip
        aside = Counter(p.name.rsplit("-", 2)[1] for p in self.out.glob("probe/.broken-*"))
        digests = {c["key"]: c["digest"][:10] for c in cells}
        # a table that was broken afterwards is rightly published once more
        return sum(said[key] - aside[short] > 1 for key, short in digests.items())

    def _left(self, cells: list[dict[str, Any]]) -> list[str]:
        names = {Path(c["place"]).name for c in cells}
        partial = [p.name for p in self.out.glob("probe/.partial-*") if p.name.removeprefix(".partial-") in names]
        claims = [p.name for p in self.out.glob(".claims/*") if p.is_file()]
        return partial + claims


def _whole(cell: Path) -> bool:
    import pyarrow.parquet as pq

    try:
        rows = json.loads((cell / "run.json").read_text(encoding="utf-8"))["rows"]
        return bool(pq.read_table(cell / "table.parquet").num_rows == rows)
    except (OSError, ValueError):
        return False


def reference(folder: Path, cells: int, rows: int = 4, step: float = 0.0, file: Path | None = None) -> dict[int, bytes]:
    """Tables of an undisturbed run, by seed: computed in this process, one thread."""
    from experiments.faults.probe import PROBE, ProbeConfig
    from interp.cells import run_cell

    text = None if file is None else str(file)
    made = {}
    for seed in range(cells):
        config = ProbeConfig(seed=seed, rows=rows, step=0.0, file=text)
        made[seed] = (run_cell(PROBE, config, out=folder).path / "table.parquet").read_bytes()
    return made


def wait_for(true: Any, what: str, patience: float = PATIENCE) -> Any:
    """Wait until `true()`; its value. Raises TimeoutError."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        value = true()
        if value:
            return value
        time.sleep(0.02)
    raise TimeoutError(f"waited {patience:.0f} s in vain: {what}")


def end(process: subprocess.Popen[str], patience: float = PATIENCE) -> str:
    """What a process printed, once it has ended."""
    try:
        return process.communicate(timeout=patience)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def clear_away(folder: Path) -> None:
    """Kill what a case that went wrong left running: processes whose faults are made under this folder."""
    mark = f"PROBE_FAULTS={folder}/".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if any(variable.startswith(mark) for variable in path.read_bytes().split(b"\0")):
                os.kill(int(path.parent.name), signal.SIGKILL)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
