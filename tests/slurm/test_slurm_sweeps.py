"""Sweeps on a real Slurm of one machine: arrays, faults, GPUs. Skipped, with the reason, where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.faults.cluster import Cluster
from experiments.faults.scene import reference, wait_for
from experiments.faults.slurm_faults import names, scene_of, slurm_faults
from interp.sweep.backends.queue import JobRecord, job_runs, job_states, live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

QUICK = ("array", "worker killed", "time-out", "pre-empted", "scancel", "shell closed")
"""A kill, a time-out with requeue, a pre-emption, and resumes: what `make test` runs."""


def whole(name: str, cluster: Cluster, folder: Path) -> None:
    seen = slurm_faults(cluster)[name].make(folder / "scene")
    assert seen.whole, f"{seen.told()}; left behind: {seen.left}"


@pytest.mark.parametrize("name", QUICK)
def test_quick(name: str, cluster: Cluster, tmp_path: Path) -> None:
    whole(name, cluster, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in [*names(False), *names(True)] if n not in QUICK])
def test_other(name: str, cluster: Cluster, tmp_path: Path) -> None:
    whole(name, cluster, tmp_path)


def test_each_worker_has_gpus_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    """Two jobs at once that ask for a GPU each: each is bound to one, none twice."""
    scene = scene_of(tmp_path / "scene", 2)
    scene.resources |= {"gpus": 1, "device": "cpu"}
    scene.write()
    holds = [scene.fault("hold", seed) for seed in (0, 1)]
    process = scene.start()
    bound = set()
    for seed in (0, 1):
        variables = Path(f"/proc/{scene.held(seed)}/environ").read_bytes().decode().split("\0")
        env = dict(v.partition("=")[::2] for v in variables)
        bound.add((env["SLURMD_NODENAME"], env["CUDA_VISIBLE_DEVICES"]))
    for hold in holds:
        hold.unlink()
    assert process.wait(120) == 0
    assert len(bound) == 2
    assert {gpu for _, gpu in bound} <= {"0", "1"}
    assert scene.seen(reference(tmp_path / "undisturbed", 2)).whole


def test_what_the_cluster_refuses_is_told_in_a_line(cluster: Cluster, tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "scene", 1)
    scene.resources |= {"gpus": 9, "device": "cpu"}
    scene.write()
    done = scene.run()
    assert done.returncode == 2
    assert "the cluster refused the jobs" in done.stderr
    assert "node configuration is not available" in done.stderr


def test_status_and_detach(cluster: Cluster, tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "scene", 3)
    hold = scene.fault("hold", 0)
    done = scene.run("--detach")
    assert done.returncode == 0, done.stderr
    assert "3 cells are with the cluster" in done.stdout
    scene.held(0)
    # two run at once: the others have to be done before one is alone
    wait_for(lambda: scene.done() == 2, "the other two cells")
    told = scene.call("status", str(scene.yaml)).stdout
    hold.unlink()
    assert "2 of 3 done, 1 running, 0 queued, 0 waiting, 0 failed" in told
    assert re.search(r"running  probe/\S+  job \d+_\d on n[12], process \d+", told)
    assert scene.run().returncode == 0
    assert len(list(scene.state.at("jobs").glob("*.json"))) == 3
    assert scene.seen(reference(tmp_path / "undisturbed", 3)).whole


def test_what_the_queue_says(cluster: Cluster) -> None:
    job = cluster.ask("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 60").strip()
    wait_for(lambda: job in cluster.jobs(), "the job")
    record = JobRecord(job, "slurm", "", "", "")
    assert job_runs(job, 0) is True
    assert job_runs(job, 1) is False
    assert job_states([record]) == {job: "RUNNING"}
    assert job_states([JobRecord("1", "slurm", "", "", "")]) == {"1": "GONE"}
    assert job_runs("1", 0) is False
    cluster.ask("scancel", job)
    wait_for(lambda: job_states([record]) == {job: "CANCELLED"}, "the job's end")
    assert not live("CANCELLED")
    assert job_runs(job, 0) is False


def test_submitit_without_a_cluster(tmp_path: Path) -> None:
    """The same path through submitit's local executor: processes of this machine."""
    scene = scene_of(tmp_path / "scene", 2)
    scene.backend = ("--backend", "slurm", "--cluster", "local")
    done = scene.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert scene.seen(reference(tmp_path / "undisturbed", 2)).whole
