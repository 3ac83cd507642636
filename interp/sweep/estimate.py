"""How long cells will take, from the `wall_seconds` of finished cells like them.

A cell's estimate is the median over finished cells of the same experiment, model and task; else of the same
experiment and model; else of the experiment. Where there is none at all, nothing is claimed (None).
At most `SAMPLE` records of each kind are read.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from interp.sweep.expand import SweepCell

SAMPLE = 12


class Estimates:
    """Seconds per cell by experiment, model and task, read from finished cells under a results folder."""

    def __init__(self, out: Path, experiments: Iterable[str]) -> None:
        found: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for experiment in sorted(set(experiments)):
            for kind, paths in _by_kind(out / experiment).items():
                model, task = kind
                for path in paths[:SAMPLE]:
                    seconds = _seconds(path)
                    if seconds is not None:
                        for name in ((experiment, model, task), (experiment, model), (experiment,)):
                            found[name].append(seconds)
        self._known = {name: median(seconds) for name, seconds in found.items()}

    def of(self, cell: SweepCell) -> float | None:
        """Expected seconds of a cell, or None."""
        experiment, folder = cell.place.split("/", 1)
        model, task = _kind(folder)
        for name in ((experiment, model, task), (experiment, model), (experiment,)):
            if name in self._known:
                return self._known[name]
        return None


def _kind(folder: str) -> tuple[str, str]:
    model, _, task = folder.rpartition("-")[0].rpartition(".")
    return model, task


def _by_kind(folder: Path) -> dict[tuple[str, str], list[Path]]:
    found: dict[tuple[str, str], list[Path]] = defaultdict(list)
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError:
        return {}
    for name in names:
        found[_kind(name)].append(folder / name / "run.json")
    return found


def _seconds(path: Path) -> float | None:
    try:
        value = json.loads(path.read_bytes()).get("wall_seconds")
    except (OSError, ValueError, AttributeError):
        return None
    return float(value) if isinstance(value, (int, float)) else None
