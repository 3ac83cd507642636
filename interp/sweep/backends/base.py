"""What a backend is given and gives back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interp.cells import EXPERIMENTS
from interp.sweep.cellfile import CellLine, Head
from interp.sweep.expand import SweepCell
from interp.sweep.plan import Plan
from interp.sweep.spec import Resources
from interp.sweep.work import Event


@dataclass(frozen=True)
class Job:
    """One `sweep run`: the plan, the cells to compute, and how."""

    plan: Plan
    keys: list[str]
    run: str
    """Name of this run."""
    workers: int | None = None
    threads: int | None = None
    on_event: Callable[[Event], None] = lambda event: None

    def head(self, threads: int) -> Head:
        """What a worker's cells have in common."""
        plan = self.plan
        models = any("model" in EXPERIMENTS[name].config.model_fields for name in {c.experiment for c in plan.cells})
        return Head(
            sweep=plan.state.name, out=str(plan.out.absolute()), run=self.run, threads=threads,
            retries=plan.sweep.retries, track=plan.sweep.track, ahead=models,
        )  # fmt: skip

    def line(self, cell: SweepCell) -> CellLine:
        """A cell and its resources, as a worker reads them."""
        return CellLine(
            experiment=cell.experiment, config=dict(cell.config), resources=self.plan.resources[cell.resources],
            key=cell.key, place=cell.place, digest=cell.digest,
        )  # fmt: skip


def worker_command(cells: str) -> list[str]:
    """`interp run --cells …`, by the paths of this environment: another machine's $PATH need not have it."""
    program = Path(sys.executable).with_name("interp")
    # `python -m` looks into the working directory first; a worker does so only where this process does
    here = "" in sys.path or os.getcwd() in sys.path
    if not here and os.access(program, os.X_OK):
        return [str(program), "run", "--cells", cells]
    return [sys.executable, *([] if here else ["-P"]), "-m", "interp", "run", "--cells", cells]


@dataclass
class Report:
    """What became of a run's cells."""

    done: int = 0
    reused: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    blocked: str | None = None
    """Why nothing more could be written."""
    cell_seconds: float = 0.0
    wall_seconds: float = 0.0
    workers: int | None = 1
    """Workers at once; None where a cluster decides."""
    waiting: int = 0
    """Cells handed to a cluster whose end was not awaited."""

    def count(self, event: Event) -> None:
        if event.state == "done":
            self.done += 1
            self.failed.pop(event.key, None)
        elif event.state == "reused":
            self.reused += 1
        elif event.state == "failed":
            self.failed[event.key] = event.error
        elif event.state == "blocked":
            self.blocked = self.blocked or event.error
        self.cell_seconds += event.seconds

    @property
    def overhead(self) -> float | None:
        """(workers × wall − Σ cell seconds) / Σ cell seconds."""
        if not self.cell_seconds or self.workers is None:
            return None
        return (self.workers * self.wall_seconds - self.cell_seconds) / self.cell_seconds

    def record(self) -> Mapping[str, Any]:
        return {
            "done": self.done, "reused": self.reused, "failed": len(self.failed), "blocked": self.blocked,
            "workers": self.workers, "wall_seconds": round(self.wall_seconds, 3),
            "cell_seconds": round(self.cell_seconds, 3), "overhead": self.overhead,
        }  # fmt: skip


def worker_threads(resources: Resources, threads: int | None, workers: int, cores: int) -> int:
    """Threads of one of `workers` workers: as asked, else an equal share of the cores."""
    return threads or resources.cpus or max(1, cores // max(1, workers))
