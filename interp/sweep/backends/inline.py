"""The `inline` backend: cells one after the other in this process. For debugging, and where nothing may fork."""

from __future__ import annotations

import time

from interp.sweep.backends.base import Job, Report
from interp.sweep.claims import Claims, Heart, Owner
from interp.sweep.track import tracker
from interp.sweep.work import Work


def run_inline(job: Job) -> Report:
    """Compute the job's cells here; those that other processes have in hand are awaited at the end."""
    started = time.perf_counter()
    report = Report()
    owner = Owner.here(job.run)
    state = job.plan.state
    groups = job.plan.groups(job.keys, lambda resources: 1)
    with Heart(state.out, owner):
        work = Work(
            state.out, owner, Claims(state.out, owner), state=state, threads=job.threads,
            retries=job.plan.sweep.retries, track=tracker(job.plan.sweep.track, state.name),
        )  # fmt: skip
        for event in work.each([job.line(cell) for group in groups for cell in group.cells], wait=True):
            report.count(event)
            job.on_event(event)
    report.wall_seconds = time.perf_counter() - started
    return report
