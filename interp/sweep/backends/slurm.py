"""The `slurm` backend: groups of cells as jobs of an array, submitted through submitit.

A job runs `interp run --cells FILE` and nothing else: its log begins with that line, which does the same when
it is typed by hand. Results are the cells on the shared disk, never what the job returns. A job that nears its
time limit, or is pre-empted with a warning, is told by SIGUSR2: submitit calls `checkpoint`, which stops the
worker in order, and requeues the job. One that is requeued without a word starts the same command, which goes
on with what is not published yet.

`run` submits the cells that no job in the queue has already, and follows the queue; where jobs ended and left
cells behind (a node was lost), they are submitted again, `retries` times. Closing the shell changes nothing
for the jobs: the same command again follows them. `cancel` ends them.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from interp.registry import UserError
from interp.sweep.backends.base import Job, Report, worker_command, worker_threads
from interp.sweep.backends.job import ShellJob
from interp.sweep.backends.queue import JobRecord, job_records, job_states, live
from interp.sweep.cellfile import head_text, keys_of
from interp.sweep.claims import started_at
from interp.sweep.grouping import CellGroup
from interp.sweep.spec import Resources
from interp.sweep.state import State, read_json, write_atomic, write_json
from interp.sweep.work import Event

POLL = (1.0, 15.0)
"""Seconds between two looks at the queue: a tenth of the time that has passed, within these."""
WORTH = 300.0
"""Seconds of work that a job should hold: its start costs up to a minute."""
ARRAY = 1000
"""Jobs of one array at most; more go into several arrays."""
CLUSTERS = ("slurm", "local", "debug")


def run_slurm(job: Job, cluster: str = "slurm", wait: bool = True) -> Report:
    """Submit the job's cells and follow them. Ctrl-C ends the following, not the jobs."""
    if cluster not in CLUSTERS:
        from interp.registry import unknown

        raise unknown("cluster", cluster, list(CLUSTERS))
    started = time.perf_counter()
    report = Report(workers=None)
    follower = _Follower(job, cluster, report)
    for _ in range(job.plan.sweep.retries + 1):
        left = follower.left()
        if not left:
            break
        follower.submit(left)
        if not wait:
            report.waiting = len(follower.left())
            break
        if follower.follow():
            break
    follower.tell()
    report.wall_seconds = time.perf_counter() - started
    return report


class _Follower:
    def __init__(self, job: Job, cluster: str, report: Report) -> None:
        self.job = job
        self.state: State = job.plan.state
        self.cluster = cluster
        self.report = report
        self.told: set[str] = set()
        self.places = {c.key: c.place for c in job.plan.cells}
        self.before = {key: _stamp(self.state, key) for key in job.keys}

    def left(self) -> list[str]:
        """Cells that are neither published nor failed in this run."""
        done = self.job.plan.done()
        return [k for k in self.job.keys if k not in done and not self._failed(k)]

    def _failed(self, key: str) -> bool:
        return _stamp(self.state, key) not in (None, self.before[key])

    def mine(self) -> list[JobRecord]:
        """Jobs of this sweep in the queue."""
        jobs = job_records(self.state)
        states = job_states(jobs)
        return [j for j in jobs if live(states[j.id])]

    def submit(self, keys: list[str]) -> int:
        """Submit cells that no job in the queue was given; the number of new jobs."""
        given = {key for j in self.mine() for key in keys_of(Path(j.group))}
        groups = self.job.plan.groups([k for k in keys if k not in given], lambda r: r.array_parallelism, WORTH)
        by_resources: dict[str, list[CellGroup]] = {}
        for group in groups:
            by_resources.setdefault(group.resources.model_dump_json(), []).append(group)
        count = 0
        for same in by_resources.values():
            for first in range(0, len(same), ARRAY):
                count += self._array(same[first : first + ARRAY])
        return count

    def _array(self, groups: list[CellGroup]) -> int:
        import submitit

        resources = groups[0].resources
        # a folder of its own: a new cluster counts jobs from 1 again, and old files would be taken for theirs
        folder = self.state.at("submitit", secrets.token_hex(6))
        try:
            more = {"slurm_max_num_timeout": resources.requeues} if self.cluster == "slurm" else {}
            executor = submitit.AutoExecutor(folder=folder, cluster=self.cluster, **more)
        except RuntimeError as e:
            raise UserError(f"no cluster {self.cluster!r} here: {e}") from None
        threads = worker_threads(resources, self.job.threads, 1, 1)
        files = [self._group_file(f"{folder.name}-{i}", group, threads) for i, group in enumerate(groups)]
        commands = [worker_command(str(file)) for file in files]
        executor.update_parameters(**_parameters(resources, self.state.name, self.cluster, commands[0]))
        try:
            with executor.batch():
                jobs = [executor.submit(ShellJob(command)) for command in commands]
        except Exception as e:
            raise UserError(f"the cluster refused the jobs: {_last_line(e)}") from None
        for job, file in zip(jobs, files, strict=True):
            started = started_at(int(job.job_id)) if self.cluster == "local" else None
            record = JobRecord(job.job_id, self.cluster, self.job.run, str(file), str(folder), started)
            write_json(self.state.at("jobs", f"{folder.name}-{job.job_id}.json"), asdict(record))
        if self.cluster == "debug":
            for job in jobs:
                job.exception()
        return len(jobs)

    def _group_file(self, name: str, group: CellGroup, threads: int) -> Path:
        lines = [head_text(self.job.head(threads)), *(self.job.line(cell).text() for cell in group.cells)]
        path = self.state.at("groups", f"{name}.jsonl").absolute()
        write_atomic(path, "".join(lines).encode())
        return path

    def follow(self) -> bool:
        """Until no job of this sweep is in the queue; True where there is nothing to submit again."""
        started = time.monotonic()
        while True:
            # the queue first: what a job published before it left the queue is then seen
            jobs = self.mine()
            self.tell()
            if not self.left():
                return True
            if not jobs:
                return self._cancelled()
            time.sleep(min(POLL[1], max(POLL[0], (time.monotonic() - started) / 10)))

    def _cancelled(self) -> bool:
        states = job_states([j for j in job_records(self.state) if j.run == self.job.run])
        return any(s == "CANCELLED" for s in states.values())

    def _seconds(self, key: str) -> float:
        run = read_json(self.job.plan.out / self.places[key] / "run.json") or {}
        return float(run.get("wall_seconds") or 0.0)

    def tell(self) -> None:
        """Events for cells whose end has been seen since the last look."""
        done = self.job.plan.done()
        for key in self.job.keys:
            if key in self.told:
                continue
            if key in done:
                event = Event(key, "done", self._seconds(key))
            elif self._failed(key):
                record = read_json(self.state.at("failed", f"{key}.json")) or {}
                event = Event(key, "failed", error=str(record.get("error", "")))
            else:
                continue
            self.told.add(key)
            self.report.count(event)
            self.job.on_event(event)


def _parameters(resources: Resources, name: str, cluster: str, command: Sequence[str] = ()) -> dict[str, Any]:
    """submitit's names for what a job asks for; the script says what task 0 runs."""
    asked: dict[str, Any] = {"timeout_min": resources.minutes, "name": name}
    if resources.gpus:
        asked["gpus_per_node"] = resources.gpus
    if cluster != "slurm":
        return asked
    asked |= {"cpus_per_task": resources.cpus or 1, "nodes": 1, "tasks_per_node": 1}
    if resources.memory_gb:
        asked["mem_gb"] = resources.memory_gb
    optional = {k: getattr(resources, k) for k in ("partition", "account", "qos", "constraint")}
    asked |= {f"slurm_{k}": v for k, v in optional.items() if v is not None}
    asked |= {
        "slurm_array_parallelism": resources.array_parallelism,
        # a limit of a minute leaves no room for the usual warning of 90 seconds
        "slurm_signal_delay_s": min(90, resources.minutes * 20),
    }
    # the script ends with submitit's own line; here is what that comes to
    told = f"# task 0 runs the following (task N: the file that ends in -N.jsonl), in {Path.cwd()}:"
    lines = [told, f"# {shlex.join(command)}"] if command else []
    asked["slurm_setup"] = [*(line.replace("\n", " ") for line in lines), *resources.setup]
    if resources.slurm:
        asked["slurm_additional_parameters"] = dict(resources.slurm)
    return asked


def _stamp(state: State, key: str) -> str | None:
    """Which record of a failure is there."""
    record = read_json(state.at("failed", f"{key}.json"))
    return None if record is None else str(record.get("id"))


def _last_line(error: Exception) -> str:
    output = getattr(error, "stderr", None) or str(error)
    text = output.decode(errors="replace") if isinstance(output, bytes) else str(output)
    return (text.strip().splitlines() or [type(error).__name__])[-1]
