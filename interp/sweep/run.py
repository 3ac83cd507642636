"""`sweep run` (and `resume`, which is the same): plan, look over what is done, compute the rest, say what failed.

1. expand the file; 2. cells that are published but broken are moved aside; 3. cells that are not published go
to the backend, failed ones of earlier runs among them; 4. the record of the run is closed with its figures.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from interp.registry import UserError, unknown
from interp.results.store import partial_path
from interp.sweep.backends.base import Job, Report
from interp.sweep.claims import Owner, alive_here, boot_id
from interp.sweep.plan import Plan
from interp.sweep.state import State, records, write_json
from interp.sweep.whole import broken, put_aside
from interp.sweep.work import Event

BACKENDS = ("inline", "local", "slurm")


@dataclass(frozen=True)
class Options:
    """How a sweep is run; none of it is part of a cell's identity."""

    backend: str = "local"
    workers: int | None = None
    threads: int | None = None
    cluster: str = "slurm"
    """For the slurm backend: slurm, or submitit's `local` and `debug` executors, which need no cluster."""
    wait: bool = True
    """Stay until the cluster's jobs have ended."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    plan: Plan
    report: Report
    before: int
    """Cells that were published when it began."""
    put_aside: dict[str, str]
    """Cells that were found broken, and how."""
    failed: dict[str, str]
    """Cells that are not published and have a recorded error, by place."""

    @property
    def complete(self) -> bool:
        return len(self.plan.done()) == len(self.plan.cells)


def run_sweep(
    plan: Plan,
    options: Options | None = None,
    on_start: Callable[[int, int], None] = lambda todo, done: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Compute what a sweep's plan lacks. Ctrl-C passes through as KeyboardInterrupt, all records in order."""
    options = options or Options()
    if options.backend not in BACKENDS:
        raise unknown("backend", options.backend, list(BACKENDS))
    for name, count in (("workers", options.workers), ("threads", options.threads)):
        if count is not None and count < 1:
            raise UserError(f"--{name} must be at least 1, got {count}")
    state = plan.state
    state.create()
    aside = look_over(plan)
    try:
        plan.save()
    except OSError as e:
        raise UserError(f"results cannot be written to {plan.out}: {e.strerror or e}") from None
    done = plan.done()
    todo = [c.key for c in plan.cells if c.key not in done]
    on_start(len(todo), len(done))
    run = secrets.token_hex(4)
    job = Job(plan, todo, run, options.workers, options.threads, on_event)
    report = _recorded(state, run, options, job) if todo else Report()
    done_now, failures = plan.done(), state.failed()
    failed = {
        c.place: str(failures[c.key].get("error"))
        for c in plan.cells if c.key in failures and c.key not in done_now
    }  # fmt: skip
    return Outcome(plan, report, len(done), aside, failed)


def look_over(plan: Plan) -> dict[str, str]:
    """Move broken cells aside; their places and what is wrong with them. Clear up behind whole ones.

    A worker that was stopped between publishing and clearing up left streamed rows; whoever writes to such a
    folder still finds the cell published (`interp.results.store.publish`), so that it may go at any time.
    """
    noted = plan.state.digests()
    found = {}
    done = plan.done()
    for cell in plan.cells:
        if cell.key in done:
            path = plan.out / cell.place
            why = broken(path, noted.get(cell.key))
            if why is None:
                shutil.rmtree(partial_path(path), ignore_errors=True)
            elif put_aside(path, noted.get(cell.key)):
                found[cell.place] = why
    return found


def _recorded(state: State, run: str, options: Options, job: Job) -> Report:
    """Run the backend, with a record by which `cancel` finds this process."""
    record = {"run": run, "backend": options.backend, "owner": asdict(Owner.here(run)), "state": "running"}
    path = state.at("runs", f"{run}.json")
    write_json(path, record)
    ended: dict[str, object] = {"state": "interrupted"}
    try:
        with ends_by_signal():
            report = _backend(job, options)
        ended = {"state": "blocked" if report.blocked else "ended", **report.record()}
    finally:
        # on a full disk the screen says it all the same
        with suppress(OSError):
            write_json(path, {**record, **ended})
    return report


def _backend(job: Job, options: Options) -> Report:
    if options.backend == "inline":
        from interp.sweep.backends.inline import run_inline

        return run_inline(job)
    if options.backend == "local":
        from interp.sweep.backends.local import run_local

        return run_local(job)
    from interp.sweep.backends.slurm import run_slurm

    return run_slurm(job, options.cluster, options.wait)


class Hangup(KeyboardInterrupt):
    """The shell was closed or `cancel` was called: the same as Ctrl-C."""


@contextmanager
def ends_by_signal() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does."""

    def hang_up(number: int, frame: Any) -> None:
        raise Hangup(signal.Signals(number).name)

    try:
        before = {s: signal.signal(s, hang_up) for s in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread: nobody sends signals to it
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Cancelled:
    """What `cancel` stopped, and runs it could not reach."""

    processes: list[int]
    jobs: list[str]
    elsewhere: list[str]


def cancel_sweep(state: State) -> Cancelled:
    """Stop every run of a sweep: processes of this machine by SIGTERM, cluster jobs by the cluster."""
    processes, elsewhere = [], []
    for _, record in records(state.at("runs")):
        if record.get("state") != "running":
            continue
        owner = Owner(**record["owner"])
        if owner.boot != boot_id():
            elsewhere.append(owner.host)
        elif alive_here(owner) and owner.pid != os.getpid():
            os.kill(owner.pid, signal.SIGTERM)
            processes.append(owner.pid)
    from interp.sweep.backends.queue import cancel_jobs

    return Cancelled(processes, cancel_jobs(state), elsewhere)
