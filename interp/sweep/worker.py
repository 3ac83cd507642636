"""`python -m interp.sweep.worker`: the process that computes cells, for the pool on one machine and for a cluster.

    … worker --state OUT NAME --feed            cells come on standard input, one line each; events go out
    … worker --state OUT NAME --group FILE      all cells of a file, then those that others had in hand

A line is a JSON object {cell, resources}. SIGTERM, SIGINT, SIGUSR2 stop it in the middle of a cell (streamed
rows and the claim are put in order first); so does the end of standard input, after the cell in hand.
Exit codes: 0 all done, 1 some failed, 75 stopped, 74 the disk is full or cannot be written.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from interp.sweep.claims import Claims, Heart, Owner
from interp.sweep.spec import Resources
from interp.sweep.state import State, read_lines
from interp.sweep.work import Event, Stopped, Work, thread_variables

DONE, SOME_FAILED, BLOCKED, STOPPED = 0, 1, 74, 75
WAIT = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = argparse.ArgumentParser(prog="interp.sweep.worker")
    words.add_argument("--state", nargs=2, required=True, metavar=("OUT", "NAME"))
    words.add_argument("--run", default="")
    words.add_argument("--threads", type=int)
    words.add_argument("--retries", type=int, default=2)
    words.add_argument("--track")
    words.add_argument("--ahead", action="store_true", help="import what models need before the first cell")
    source = words.add_mutually_exclusive_group(required=True)
    source.add_argument("--feed", action="store_true")
    source.add_argument("--group", type=Path)
    given = words.parse_args(argv)
    _stop_on_signals()
    # a worker that is told to stop does not search for cycles first
    atexit.register(gc.freeze)
    if given.threads is not None:
        os.environ.update(thread_variables(given.threads))
    if given.ahead:
        _import_ahead()
    # events have a way out of their own: whatever cells print must not get between them
    events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    state = State(Path(given.state[0]), given.state[1])
    owner = Owner.here(given.run)
    try:
        with Heart(state.out, owner):
            from interp.sweep.track import tracker

            work = Work(
                state, owner, Claims(state.out, owner, job_runs), threads=given.threads, retries=given.retries,
                track=tracker(given.track, state.name), own_process=True,
            )  # fmt: skip
            return _feed(work, events) if given.feed else _group(work, given.group, events)
    except Stopped:
        return STOPPED


def job_runs(job: str, restarts: int) -> bool | None:
    """Whether a Slurm job runs and was not restarted since; asked for only where a claim names a job."""
    from interp.sweep.backends.queue import job_runs as ask

    return ask(job, restarts)


def _stop_on_signals() -> None:
    def stop(number: int, frame: Any) -> None:
        # once: what is put in order on the way out must not be interrupted by the signals that follow
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(each, stop)


def _feed(work: Work, events: TextIO) -> int:
    """Cells as they come on standard input; each is answered by one event."""
    events.write(Event("", "ready").line() + "\n")
    code = DONE
    for line in sys.stdin:
        entry = json.loads(line)
        event = work.cell(entry["cell"], _resources(entry))
        events.write(event.line() + "\n")
        if event.state == "blocked":
            return BLOCKED
        code = SOME_FAILED if event.state == "failed" else code
    return code


def _group(work: Work, path: Path, events: TextIO) -> int:
    """All cells of a file. Those that others have in hand are looked at again at the end, until they are done."""
    waiting = list(read_lines(path))
    code = DONE
    while waiting:
        busy = []
        for entry in waiting:
            event = work.cell(entry["cell"], _resources(entry))
            events.write(event.line() + "\n")
            if event.state == "blocked":
                return BLOCKED
            code = SOME_FAILED if event.state == "failed" else code
            if event.state == "busy":
                busy.append(entry)
        if len(busy) == len(waiting):
            time.sleep(WAIT)
        waiting = busy
    return code


def _resources(entry: Mapping[str, Any]) -> Resources:
    return Resources.model_validate(entry.get("resources", {}))


def _import_ahead() -> None:
    """What models need is imported before the first cell, whose seconds are then its own."""
    import transformers  # noqa: F401

    import interp.models.load  # noqa: F401


if __name__ == "__main__":
    # on a cluster the job's own process answers the signals that announce its end; see backends/slurm.py
    raise SystemExit(main())
