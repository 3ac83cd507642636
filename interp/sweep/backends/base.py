"""What a backend is given and gives back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from interp.cells import EXPERIMENTS
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

    def command(self, threads: int) -> list[str]:
        """A worker's command line, up to where its cells come from."""
        state = self.plan.state
        # `python -m` looks into the working directory first; a worker does so only where this process does
        path = [] if "" in sys.path or os.getcwd() in sys.path else ["-P"]
        words = [
            sys.executable, *path, "-m", "interp.sweep.worker", "--state", str(state.out), state.name,
            "--run", self.run, "--threads", str(threads), "--retries", str(self.plan.sweep.retries),
        ]  # fmt: skip
        if any("model" in EXPERIMENTS[name].config.model_fields for name in {c.experiment for c in self.plan.cells}):
            words.append("--ahead")
        return [*words, "--track", self.plan.sweep.track] if self.plan.sweep.track else words

    def line(self, cell: Any) -> dict[str, Any]:
        """A cell and its resources, as a worker reads them."""
        resources = self.plan.resources[cell.resources]
        return {
            "cell": {
                "key": cell.key, "experiment": cell.experiment, "config": dict(cell.config), "place": cell.place,
                "digest": cell.digest,
            },
            "resources": resources.model_dump(mode="json", exclude_defaults=True),
        }  # fmt: skip


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
