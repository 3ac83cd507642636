"""The `local` backend: a pool of worker processes on this machine.

On a machine with GPUs a worker has its own by CUDA_VISIBLE_DEVICES; the processor's cores are divided among
workers. Workers live as long as the run, are given one cell at a time, and load a model once per group. A
worker that dies is replaced, its cell is tried again (`retries`), and one that kills every worker is recorded
as failed. Workers are in sessions of their own: Ctrl-C, a closed shell and `cancel` reach this process, which
stops them in order; where this process itself is killed they end after the cell in hand. A worker is
`interp run --cells -`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from interp.registry import UserError
from interp.sweep.backends.base import Job, Report, worker_command, worker_threads
from interp.sweep.backends.schedule import Schedule
from interp.sweep.cellfile import head_text
from interp.sweep.expand import SweepCell
from interp.sweep.spec import Resources
from interp.sweep.work import Event, thread_variables
from interp.sweep.worker import STDIN

GRACE = 10.0
"""Seconds a worker has to put its cell in order after it was told to stop."""
WAIT = 0.5
STILLBORN = 3
"""Workers in a row that may die before they are ready."""
SAID = {"key", "experiment", "config", "place"}
"""What is kept of a cell that failed."""


@dataclass(eq=False)
class Worker:
    """One process of the pool."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    ready: bool = False
    cell: SweepCell | None = None
    buffer: bytearray = field(default_factory=bytearray)

    def give(self, line: str, cell: SweepCell | None = None) -> None:
        self.cell = cell
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        except OSError:
            pass  # it has just died; the end of its output says so next

    def dismiss(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except OSError:
                return

    def events(self) -> list[Event] | None:
        """Events that have arrived; None at the end of its output."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        self.buffer += data
        *lines, rest = self.buffer.split(b"\n")
        self.buffer = bytearray(rest)
        return [Event(**json.loads(line)) for line in lines]


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0))


def gpus() -> list[str]:
    """GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [g for g in (part.strip() for part in given.split(",")) if g and g != "-1"]
    return [str(i) for i, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*")))]


def run_local(job: Job) -> Report:
    """Compute the job's cells by a pool. KeyboardInterrupt passes through once all workers have ended."""
    started = time.perf_counter()
    pool = _Pool(job)
    try:
        pool.run()
    finally:
        pool.stop()
    pool.report.wall_seconds = time.perf_counter() - started
    return pool.report


class _Pool:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.report = Report()
        asked = [job.plan.resources[i] for i in sorted({c.resources for c in self._cells()})]
        self.per_worker = max((r.gpus for r in asked), default=0)
        self.gpus = gpus()
        self.size = self._size(asked)
        self.report.workers = self.size
        self.threads = worker_threads(asked[0] if asked else Resources(), job.threads, self.size, cores())
        self.schedule = Schedule(job.plan.groups(job.keys, lambda resources: self.size))
        self.selector = selectors.DefaultSelector()
        self.workers: list[Worker] = []
        self.deaths: dict[str, int] = {}
        self.started = 0
        self.stillborn = 0

    def _cells(self) -> list[SweepCell]:
        wanted = set(self.job.keys)
        return [c for c in self.job.plan.cells if c.key in wanted]

    def _size(self, asked: list[Resources]) -> int:
        if self.per_worker:
            most = len(self.gpus) // self.per_worker
            if not most:
                raise UserError(
                    f"a worker needs {self.per_worker} GPU(s), this machine shows {len(self.gpus)}; set gpus: 0, or"
                    " run it where there are some"
                )
        else:
            most = max(1, cores() // max((r.cpus or self.job.threads or 1 for r in asked), default=1))
        return max(1, min(self.job.workers or most, len(self.job.keys), most if self.per_worker else 10_000))

    # --- the loop ------------------------------------------------------------------------------------------

    def run(self) -> None:
        for number in range(self.size):
            self._start(number)
        while self.workers and not self.report.blocked:
            for ready, _ in self.selector.select(timeout=WAIT):
                self._hear(ready.data)
            self._hand_out()

    def _hear(self, worker: Worker) -> None:
        events = worker.events()
        if events is None:
            self._ended(worker)
            return
        for event in events:
            if event.state == "ready":
                worker.ready, self.stillborn = True, 0
                continue
            cell, worker.cell = worker.cell, None
            if event.state == "busy" and cell is not None:
                self.schedule.later(cell)
            self.report.count(event)
            self.job.on_event(event)

    def _hand_out(self) -> None:
        idle = [w for w in self.workers if w.ready and w.cell is None]
        for worker in idle:
            if self.report.blocked:
                return
            cell = self.schedule.next(worker.number)
            if cell is not None:
                worker.give(self.job.line(cell).text(), cell)
        if idle and all(w.cell is None for w in self.workers if w.ready):
            # all that is left, if anything, is in the hands of others: look again in a moment
            if self.schedule.again():
                time.sleep(WAIT)
            else:
                for worker in self.workers:
                    worker.dismiss()

    def _ended(self, worker: Worker) -> None:
        code = worker.process.wait()
        self.selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        self.workers.remove(worker)
        cell = worker.cell
        if cell is None:
            self.schedule.leave(worker.number)
            if not worker.ready:
                self.stillborn += 1
                if self.stillborn >= STILLBORN:
                    raise UserError(f"workers end before they are ready (exit code {code}): {_tail(worker.log)}")
                self._start(worker.number)
            elif code < 0:
                self._start(worker.number)
            return
        times = self.deaths[cell.key] = self.deaths.get(cell.key, 0) + 1
        if times > self.job.plan.sweep.retries:
            self._give_up(cell, code, times, worker)
        else:
            self.schedule.back(worker.number, cell)
        self._start(worker.number)

    def _give_up(self, cell: SweepCell, code: int, times: int, worker: Worker) -> None:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        error = f"WorkerDiedError: the worker computing it died {times} times, the last time by {how}"
        record = {
            **self.job.line(cell).model_dump(mode="json", include=SAID),
            "error": error, "owner": f"worker {worker.number}",
            "traceback": f"{error}\n(no traceback: the process was killed)\n{_tail(worker.log)}",
            "log": str(self.job.plan.state.log(cell.key)),
        }  # fmt: skip
        self.job.plan.state.fail(cell.key, record)
        event = Event(cell.key, "failed", error=error)
        self.report.count(event)
        self.job.on_event(event)

    # --- processes -----------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        state = self.job.plan.state
        log = state.at("logs", f"worker-{number}.log")
        command = worker_command(STDIN)
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True,
                env=self._environment(number),
            )  # fmt: skip
        worker = Worker(number, process, log)
        worker.give(head_text(self.job.head(self.threads)))
        self.workers.append(worker)
        self.selector.register(process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def _environment(self, number: int) -> dict[str, str]:
        env = {**os.environ, **thread_variables(self.threads)}
        # tokenizers' own threads would come on top
        env.setdefault("TOKENIZERS_PARALLELISM", "false")
        if self.per_worker:
            first = number * self.per_worker
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[first : first + self.per_worker])
        return env

    def stop(self) -> None:
        """End all workers: in order, and by force after a while."""
        for worker in self.workers:
            worker.dismiss()
            if worker.process.poll() is None and (worker.cell is not None or not worker.ready):
                worker.process.terminate()
        end = time.monotonic() + GRACE
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, end - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                worker.process.kill()
                worker.process.wait()
            if worker.process.stdout is not None:
                worker.process.stdout.close()
        self.workers.clear()
        self.selector.close()


def _tail(path: Path, lines: int = 5) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
