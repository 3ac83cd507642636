"""Sweep faults: break sweeps on purpose, in every way we know, resume them, and say what was lost.

One row per fault and backend: how it was made, the outcome expected and seen, cells published, lost, published
twice, failed. A fault passes when nothing was lost or doubled, nothing is left behind, and the tables are byte
by byte those of an undisturbed run. The sweeps are of a small probe without a model (`experiments/faults/`).

    interp run sweep_faults                                   # those that take seconds
    interp run sweep_faults --set slow=true                   # all: minutes; needs Slurm (slurm-wlm, munge), root
    interp run sweep_faults --set faults='[disk full]'

Limits: one machine; the cluster's two nodes are simulated on it. Faults that this machine cannot make have a
null in `passed`, and the reason.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.cli import main_for

if TYPE_CHECKING:
    from experiments.faults.local_faults import Fault


class SweepFaults(Config):
    """Settings of `sweep_faults`."""

    backends: tuple[Literal["local", "slurm"], ...] = Field(("local", "slurm"), min_length=1, description="where")
    faults: tuple[str, ...] | None = Field(None, description="names; all by default")
    slow: bool = Field(False, description="also those that take about a minute or more")


def run(config: SweepFaults, context: Context) -> Table:
    """Every fault, streamed: an interrupted run goes on with the faults that are missing."""
    from interp.results.frames import typed
    from interp.results.schemas import FAULTS

    with ExitStack() as stack:
        for fault, why_not in context.progress(list(_chosen(config, stack)), "faults"):
            key = {"fault": fault.name, "backend": fault.backend}
            if key not in context.rows:
                context.rows.add(key, {"how": fault.how, "expected": fault.expected, **_made(fault, why_not)})
    rows = [{"experiment": "sweep_faults", **row} for row in context.rows.rows()]
    notes = {"faults": len(rows), "passed": sum(row.get("passed") is True for row in rows)}
    return Table(typed(rows, FAULTS), FAULTS, notes=notes)


def _chosen(config: SweepFaults, stack: ExitStack) -> Iterator[tuple[Fault, str | None]]:
    """The faults asked for, each with the reason why it cannot be made here, if there is one."""
    from experiments.faults import cluster, slurm_faults
    from experiments.faults.local_faults import LOCAL
    from interp.registry import unknown

    found: list[tuple[Fault, str | None]] = []
    if "local" in config.backends:
        found += [(f, None) for f in LOCAL.values()]
    if "slurm" in config.backends:
        why_not = cluster.missing()
        here: Any = None if why_not else stack.enter_context(cluster.Cluster())
        found += [(f, why_not) for f in slurm_faults.slurm_faults(here).values()]
    names = sorted({f.name for f, _ in found})
    for name in config.faults or ():
        if name not in names:
            raise unknown("fault", name, names)
    for fault, why_not in found:
        if fault.name in (config.faults or names) and (config.slow or config.faults or not fault.slow):
            yield fault, why_not


def _made(fault: Fault, why_not: str | None) -> Mapping[str, Any]:
    """What is seen after the fault and the resume."""
    from experiments.faults.local_faults import Unfit
    from experiments.faults.scene import clear_away

    if why_not is not None:
        return {"reason": why_not}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        try:
            seen = fault.make(Path(folder) / "scene")
        except Unfit as e:
            return {"reason": str(e)}
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as e:
            clear_away(Path(folder))
            return {"passed": False, "seen": "the case itself went wrong", "reason": str(e)[-500:]}
    told = seen.told() + (f"; left behind: {', '.join(seen.left)}" if seen.left else "")
    return {
        "passed": seen.whole, "seen": told, "cells": seen.cells, "published": seen.published, "lost": seen.lost,
        "doubled": seen.doubled, "failed": len(seen.failed), "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


EXPERIMENT = Experiment(
    "sweep_faults", 1, SweepFaults, run, {"smoke": {"backends": ("local",), "faults": ("dead owner's claims",)}}
)

if __name__ == "__main__":
    raise SystemExit(main_for("sweep_faults"))
