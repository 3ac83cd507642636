"""The `inline` backend: cells one after the other in this process. For debugging, and where nothing may fork."""

from __future__ import annotations

import time

from interp.sweep.backends.base import Job, Report
from interp.sweep.claims import Claims, Heart, Owner
from interp.sweep.track import tracker
from interp.sweep.work import Work

WAIT = 0.5


def run_inline(job: Job) -> Report:
    """Compute the job's cells here; those that other processes have in hand are awaited at the end."""
    started = time.perf_counter()
    report = Report()
    owner = Owner.here(job.run)
    state = job.plan.state
    groups = job.plan.groups(job.keys, lambda resources: 1)
    waiting = [cell for group in groups for cell in group.cells]
    with Heart(state.out, owner):
        work = Work(
            state, owner, Claims(state.out, owner), threads=job.threads, retries=job.plan.sweep.retries,
            track=tracker(job.plan.sweep.track, state.name),
        )  # fmt: skip
        while waiting and not report.blocked:
            busy = []
            for cell in waiting:
                event = work.cell(job.line(cell)["cell"], job.plan.resources[cell.resources])
                report.count(event)
                job.on_event(event)
                if event.state == "blocked":
                    break
                if event.state == "busy":
                    busy.append(cell)
            if len(busy) == len(waiting):
                time.sleep(WAIT)
            waiting = busy
    report.wall_seconds = time.perf_counter() - started
    return report
