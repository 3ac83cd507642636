"""What the cluster's queue says of our jobs, and the records of the jobs that were submitted.

Slurm is asked by `squeue` and `scontrol`, which answer from the controller's memory; no accounting database is
needed. An answer that does not come (the controller is down for a moment) is no answer: nothing is taken for
gone because of it. Jobs of submitit's local executor are processes of this machine.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from interp.sweep.claims import started_at
from interp.sweep.state import State, records

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT",
}  # fmt: skip
WAIT = 60


@dataclass(frozen=True)
class JobRecord:
    """A submitted job: its id on the cluster and the cells it was given."""

    id: str
    cluster: str
    run: str
    group: str
    """File with its cells."""
    folder: str
    """submitit's folder, with the job's own log."""
    started: str | None = None
    """For a job that is a process of this machine: when it started."""


def job_records(state: State) -> list[JobRecord]:
    """Every job that was submitted for a sweep."""
    return [JobRecord(**value) for _, value in records(state.at("jobs"))]


def job_states(jobs: Iterable[JobRecord]) -> dict[str, str]:
    """State of each job by id: Slurm's word, or GONE; UNKNOWN where the queue does not answer."""
    jobs = list(jobs)
    slurm = [j for j in jobs if j.cluster == "slurm"]
    found = _slurm_states({j.id.partition("_")[0] for j in slurm}) if slurm else {}
    states = {j.id: (found.get(j.id, "GONE") if found is not None else "UNKNOWN") for j in slurm}
    for job in jobs:
        if job.cluster == "local":
            runs = started_at(int(job.id)) == job.started and job.started is not None
            states[job.id] = "RUNNING" if runs else "GONE"
        elif job.cluster == "debug":
            states[job.id] = "GONE"
    return states


def live(state: str) -> bool:
    """Whether a job of this state may still compute cells."""
    return state not in ENDED and state != "GONE"


def _slurm_states(ids: set[str]) -> dict[str, str] | None:
    """`{job_index: state}` of all tasks of these arrays; None where the controller does not answer."""
    # all jobs of the user are asked for: a list with one id that is forgotten already is refused as a whole
    done = _ask("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T")
    if done is None:
        return None
    found = {}
    for line in done.splitlines():
        job, _, state = line.strip().partition("|")
        if job.partition("_")[0] in ids:
            found[job] = state
    return found


def job_runs(job: str, restarts: int) -> bool | None:
    """Whether a job is running and has been restarted just so often; None where the queue does not answer."""
    told = _ask("scontrol", "show", "job", "--oneliner", job, missing="")
    if told is None:
        return None
    state = re.search(r"\bJobState=(\S+)", told)
    again = re.search(r"\bRestarts=(\d+)", told)
    if state is None:
        return False
    return state[1] in ("RUNNING", "COMPLETING", "SUSPENDED") and int(again[1] if again else 0) == restarts


def _ask(*words: str, missing: str | None = None) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return missing if "Invalid job id" in done.stderr else None
    return done.stdout


def cancel_jobs(state: State) -> list[str]:
    """Cancel every job of a sweep that is still in the queue; their ids."""
    jobs = job_records(state)
    if not jobs:
        return []
    states = job_states(jobs)
    stopped = [j for j in jobs if live(states[j.id])]
    for job in stopped:
        _submitit_job(job).cancel()
    return [j.id for j in stopped]


def _submitit_job(job: JobRecord) -> Any:
    import submitit

    kind = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}[job.cluster]
    return kind(folder=job.folder, job_id=job.id)
