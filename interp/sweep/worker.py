"""`interp run --cells FILE`: the process that computes cells, typed by hand, of the pool here, or of a cluster's job.

    interp run --cells FILE     all cells of a file, then those that others had in hand
    interp run --cells -        cells as they come on standard input

Every line of the file is answered by one on standard output, in JSON: the state of its cell (done, reused,
failed, busy, blocked), where the cell lies, its seconds, its error. SIGTERM, SIGINT, SIGUSR2 stop it in the
middle of a cell (streamed rows and the claim are put in order first); so does the end of standard input, after
the cell in hand. What cells print goes to the sweep's logs or, where no sweep wrote the file, to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.sweep.cellfile import CellLine, Head, read_cells, stream_cells
from interp.sweep.claims import Claims, Heart, Owner
from interp.sweep.state import State
from interp.sweep.work import Event, Stopped, Work, thread_variables

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
STDIN = "-"
Answer = Callable[[Event], Any]
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


@dataclass(frozen=True)
class Given:
    """Flags of the command line, over what the file says."""

    out: Path | None = None
    threads: int | None = None
    resources: Mapping[str, Any] | None = None
    """`device` and `pack`."""


def run_file(path: Path, given: Given) -> int:
    """Compute the cells of a file; the exit code: done, some failed (or a full disk), bad input, interrupted."""
    try:
        with _stopped_by_signals(), _answers() as answer:
            feed = str(path) == STDIN
            _divide(given.threads)
            head, cells = stream_cells(sys.stdin) if feed else read_cells(path)
            threads = given.threads or (head.threads if head else None)
            _divide(threads)
            work = _work(head, given, threads, f"interp run --cells {path}")
            with Heart(work.out, work.owner):
                if head is not None:
                    if head.ahead:
                        _import_ahead()
                    answer(Event("", "ready"))
                return _answered(work.each(_over(cells, given.resources), wait=not feed), answer)
    except Stopped:
        return INTERRUPTED


def _divide(threads: int | None) -> None:
    """Before the libraries are loaded that read it."""
    if threads is not None:
        os.environ.update(thread_variables(threads))


def _work(head: Head | None, given: Given, threads: int | None, command: str) -> Work:
    from interp.cells import out_folder
    from interp.sweep.track import tracker

    out = out_folder(given.out or (head.out if head else None))
    owner = Owner.here(head.run if head else "")
    claims = Claims(out, owner, job_runs)
    if head is None:
        return Work(out, owner, claims, threads=threads, own_process=True, command=command)
    return Work(
        out, owner, claims, state=State(out, head.sweep), threads=threads, retries=head.retries,
        track=tracker(head.track, head.sweep), own_process=True,
    )  # fmt: skip


def _over(cells: Iterable[CellLine], resources: Mapping[str, Any] | None) -> Iterator[CellLine]:
    for cell in cells:
        over = cell.resources.model_copy(update=dict(resources)) if resources else cell.resources
        yield cell.model_copy(update={"resources": over})


def _answered(events: Iterable[Event], answer: Answer) -> int:
    code = DONE
    for event in events:
        answer(event)
        if event.state == "blocked":
            return FAILED
        if event.state == "failed" and code != FAILED:
            code = BAD_INPUT if event.bad_input else FAILED
    return code


def job_runs(job: str, restarts: int) -> bool | None:
    """Whether a Slurm job runs and was not restarted since; asked for only where a claim names a job."""
    from interp.sweep.backends.queue import job_runs as ask

    return ask(job, restarts)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        # once: what is put in order on the way out must not be interrupted by the signals that follow
        for each in _STOPS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    before = {each: signal.signal(each, stop) for each in _STOPS}
    try:
        yield
    finally:
        # after a stop they stay ignored to the end: one that comes late must not change the exit code
        if signal.getsignal(signal.SIGTERM) is stop:
            for each, handler in before.items():
                signal.signal(each, handler)


@contextmanager
def _answers() -> Iterator[Answer]:
    """Standard output for the answers alone: whatever cells print must not get between them."""
    out = sys.stdout
    out.flush()
    try:
        number = out.fileno()
    except (OSError, ValueError):  # a stream of Python's own, as under pytest
        with redirect_stdout(sys.stderr):
            yield lambda event: out.write(event.line() + "\n")
        return
    answers = os.fdopen(os.dup(number), "w", buffering=1, encoding="utf-8")
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield lambda event: answers.write(event.line() + "\n")
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _import_ahead() -> None:
    import transformers  # noqa: F401

    import interp.models.load  # noqa: F401
