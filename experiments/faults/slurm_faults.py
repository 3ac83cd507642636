"""Faults on a cluster, through submitit: the sweeps of `local_faults`, on the Slurm of `cluster`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from experiments.faults.cluster import Cluster
from experiments.faults.local_faults import ALL, Fault, check
from experiments.faults.scene import Scene, Seen, end, kill, reference, wait_for
from interp.sweep.backends.queue import job_records

Make = Callable[[Cluster, Path], Seen]
M = TypeVar("M", bound=Make)
_FAULTS: list[tuple[str, str, str, Make, bool]] = []
LONG = 240.0


def slurm_faults(cluster: Cluster) -> dict[str, Fault]:
    """The faults, made on this cluster."""
    return {
        name: Fault(name, how, expected, lambda folder, make=make: make(cluster, folder), "slurm", slow)  # type: ignore[misc]
        for name, how, expected, make, slow in _FAULTS
    }


def names(slow: bool) -> list[str]:
    """Names of those that take about a minute or more, or of the others."""
    return [name for name, _, _, _, s in _FAULTS if s is slow]


def fault(name: str, how: str, expected: str = ALL, slow: bool = False) -> Callable[[M], M]:
    def keep(make: M) -> M:
        _FAULTS.append((name, how, expected, make, slow))
        return make

    return keep


def scene_of(folder: Path, cells: int = 4, *, one_each: bool = True, minutes: int = 30, **more: object) -> Scene:
    """A sweep of probes for the cluster; by default a job per cell."""
    return Scene(
        folder, cells=cells, backend=("--backend", "slurm"),
        resources={"minutes": minutes, "array_parallelism": 2, "cpus": 1},
        group={"most": 1} if one_each else {"fill": 1.0}, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _whole(scene: Scene, folder: Path, process: subprocess.Popen[str], patience: float = LONG) -> Seen:
    text = end(process, patience)
    check(process.returncode == 0, f"exit {process.returncode}: {text}")
    return scene.seen(reference(folder / "undisturbed", scene.cells, scene.rows))


@fault("array", "none: 24 cells as an array, two at once, on two nodes")
def array(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 24, one_each=False)
    scene.group = {"most": 3}
    scene.write()
    process = scene.start()
    most = 0
    while process.poll() is None:
        most = max(most, len(cluster.jobs()))
        time.sleep(0.1)
    check(1 <= most <= 2, f"{most} jobs ran at once")
    return _whole(scene, folder, process)


@fault("worker killed", "kill -9 of the worker of a job, after two streamed rows and half a third")
def worker_killed(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 2)
    armed = scene.fault("kill", 1)
    seen = _whole(scene, folder, scene.start())
    check(not armed.exists(), "no worker was killed")
    return seen


@fault("job killed", "kill -9 of all processes of a job; what it leaves is submitted again")
def job_killed(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 2)
    hold = scene.fault("hold", 0)
    process = scene.start()
    worker = scene.held(0)
    parents = [int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]), worker]
    hold.unlink()
    kill(parents)
    return _whole(scene, folder, process)


@fault("time-out", "the warning that Slurm sends before the time limit: checkpoint and requeue")
def timed_out(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 2, one_each=False)
    hold = scene.fault("hold", 1)
    process = scene.start()
    worker = scene.held(1)
    job = wait_for(cluster.jobs, "a running job")[0]
    (scene.faults / "held-1").unlink()
    cluster.ask("scancel", "--signal=USR2", job)
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), "the worker's end")
    scene.held(1)
    check("Restarts=1" in cluster.ask("scontrol", "show", "job", "-o", job), "the job was not requeued")
    hold.unlink()
    return _whole(scene, folder, process)


@fault("requeued", "`scontrol requeue` of a running job, without a warning")
def requeued(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 2, one_each=False)
    hold = scene.fault("hold", 1)
    process = scene.start()
    scene.held(1)
    (scene.faults / "held-1").unlink()
    cluster.ask("scontrol", "requeue", wait_for(cluster.jobs, "a running job")[0])
    scene.held(1)
    hold.unlink()
    return _whole(scene, folder, process)


@fault("pre-empted", "a job of a higher partition takes both nodes: warning, requeue", slow=True)
def pre_empted(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 4)
    holds = [scene.fault("hold", seed) for seed in (0, 1)]
    process = scene.start()
    workers = [scene.held(seed) for seed in (0, 1)]
    for seed in (0, 1):
        (scene.faults / f"held-{seed}").unlink()
    nodes = str(len(cluster.names))
    subprocess.run(
        ["sbatch", "-p", "high", "-N", nodes, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"], check=True,
        capture_output=True,
    )  # fmt: skip
    wait_for(lambda: not any(Path(f"/proc/{w}").exists() for w in workers), "the workers' end")
    for seed in (0, 1):
        scene.held(seed)
    for hold in holds:
        hold.unlink()
    return _whole(scene, folder, process)


@fault("scancel", "`interp sweep cancel` while jobs run and wait; then resume")
def cancelled(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 4)
    hold = scene.fault("hold", 0)
    process = scene.start()
    scene.held(0)
    done = scene.call("cancel", str(scene.yaml))
    check("cluster job" in done.stdout, done.stdout + done.stderr)
    text = end(process)
    check(process.returncode == 130, f"exit {process.returncode}: {text}")
    wait_for(lambda: not cluster.jobs("RUNNING,PENDING,COMPLETING"), "the end of the jobs")
    hold.unlink()
    return _whole(scene, folder, scene.start())


@fault("shell closed", "SIGHUP to the submitting session; the jobs go on, and the same command follows them")
def shell_closed(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 3)
    hold = scene.fault("hold", 0)
    process = scene.start()
    scene.held(0)
    os.killpg(process.pid, signal.SIGHUP)
    end(process)
    before = len(list(scene.state.at("jobs").glob("*.json")))
    again = scene.start()
    scene.begun(2)
    hold.unlink()
    seen = _whole(scene, folder, again)
    check(len(list(scene.state.at("jobs").glob("*.json"))) == before, "cells were submitted twice")
    return seen


@fault("two submitters", "the same sweep submitted twice at the same moment")
def two_submitters(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 4, step=0.05)
    both = [scene.start(), scene.start()]
    text = end(both[0], LONG)
    check(both[0].returncode == 0, text)
    return _whole(scene, folder, both[1])


@fault("node lost", "daemon, steps and processes of a node killed at once; Slurm restarts the job elsewhere", slow=True)
def node_lost(cluster: Cluster, folder: Path) -> Seen:
    scene = scene_of(folder, 2)
    hold = scene.fault("hold", 0)
    process = scene.start()
    worker = scene.held(0)
    variables = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    node = next(v.decode().partition("=")[2] for v in variables if v.startswith(b"SLURMD_NODENAME="))
    cluster.crash(node)
    (scene.faults / "held-0").unlink()
    try:
        wait_for((scene.faults / "held-0").exists, "the job on the other node", LONG)
    finally:
        cluster.start_node(node)
        hold.unlink()
    return _whole(scene, folder, process)


@fault("real time limit", "a job of one minute with more than a minute of cells: requeued until done", slow=True)
def time_limit(cluster: Cluster, folder: Path) -> Seen:
    # two cells of 40 s in one job
    scene = scene_of(folder, 2, one_each=False, minutes=1, rows=5, step=8.0)
    process = scene.start()
    seen = _whole(scene, folder, process, 2 * LONG)
    told = [cluster.ask("scontrol", "show", "job", "-o", job.id) for job in job_records(scene.state)]
    check(len(told) == 1 and bool(re.search(r"\bRestarts=[1-9]", told[0])), f"no job was requeued: {told}")
    return seen
