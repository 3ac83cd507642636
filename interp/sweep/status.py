"""Where a sweep stands: waiting, queued, running, done, failed with reasons. Reads the kept plan, imports nothing
that computes, and writes nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.registry import UserError, unknown
from interp.sweep.cellfile import keys_of
from interp.sweep.claims import Claims, Owner
from interp.sweep.plan import Kept, kept_plan, published
from interp.sweep.state import State


@dataclass(frozen=True)
class Line:
    """A cell, and what is to be said of it."""

    key: str
    place: str
    about: str


@dataclass(frozen=True)
class Status:
    """Counts add up to `total`: a cell is in one of the five states."""

    name: str
    total: int
    done: int
    running: list[Line]
    failed: list[Line]
    queued: int
    waiting: int
    jobs: dict[str, int]
    """Cluster jobs by state."""
    changed: bool
    """The sweep file has other content than when it was run last."""

    @property
    def over(self) -> bool:
        """Nothing is at work and nothing is queued."""
        return not self.running and not self.queued


def sweep_status(state: State, file: Path) -> Status:
    """The status of a sweep that was run; raises UserError where it never was."""
    kept = kept_or_error(state)
    from interp.sweep.backends.queue import job_runs

    claims = Claims(state.out, Owner.here(), job_runs)
    done = published(state.out, ((c["key"], c["place"]) for c in kept.cells))
    places = {c["key"]: c["place"] for c in kept.cells}
    running = {
        key: Line(key, places[key], claim.owner.told())
        for key, claim in claims.all() if key in places and key not in done and claims.alive(claim)
    }  # fmt: skip
    failed = [
        Line(key, places[key], str(record.get("error")))
        for key, record in state.failed().items() if key in places and key not in done and key not in running
    ]  # fmt: skip
    taken = done | set(running) | {line.key for line in failed}
    queued, jobs = _queued(state, set(places) - taken)
    waiting = len(places) - len(taken) - len(queued)
    lines = [running[k] for k in places if k in running]
    return Status(
        state.name, len(places), len(done), lines, failed, len(queued), waiting, jobs, kept.changed(file)
    )  # fmt: skip


def _queued(state: State, keys: set[str]) -> tuple[set[str], dict[str, int]]:
    from interp.sweep.backends.queue import job_records, job_states, live

    records = job_records(state)
    if not records:
        return set(), {}
    states = job_states(records)
    count: dict[str, int] = {}
    queued: set[str] = set()
    files: set[str] = set()
    for job in records:
        count[states[job.id]] = count.get(states[job.id], 0) + 1
        if live(states[job.id]):
            files.add(job.group)
    for file in files:
        queued |= keys_of(Path(file)) & keys
    return queued, {k: v for k, v in sorted(count.items()) if k != "GONE"}


def kept_or_error(state: State) -> Kept:
    kept = kept_plan(state)
    if kept is None:
        raise UserError(f"sweep {state.name} has not been run under {state.out}; `interp sweep plan` shows its cells")
    return kept


def find_one(state: State, name: str) -> dict[str, Any]:
    """The cell of a sweep by its key, its folder (name or path), or the beginning of its hash."""
    cells = kept_or_error(state).cells
    path = os.path.relpath(Path(name).resolve(), state.out.resolve())
    exact = [c for c in cells if name in (c["key"], c["place"], c["place"].rpartition("/")[2]) or path == c["place"]]
    near = exact or [c for c in cells if c["digest"].startswith(name)]
    if len(near) == 1:
        return near[0]
    if near:
        raise UserError(f"{name!r} names {len(near)} cells: {', '.join(c['place'] for c in near[:5])}")
    raise unknown(f"cell of sweep {state.name}:", name, [c["place"] for c in cells][:20])


def cell_log(state: State, name: str) -> str:
    """What a cell printed, and the traceback of its last failure."""
    cell = find_one(state, name)
    parts = []
    with suppress(OSError):
        parts.append(state.log(cell["key"]).read_text(encoding="utf-8", errors="replace"))
    record = state.failed().get(cell["key"])
    if record is not None and not (state.out / cell["place"] / "run.json").is_file():
        parts.append(f"failed on {record.get('owner')}:\n{record.get('traceback')}")
    return "\n".join(p.rstrip("\n") for p in parts if p)
