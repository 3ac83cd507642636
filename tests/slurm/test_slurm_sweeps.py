"""Sweeps on a real Slurm of one machine: arrays, faults, GPUs. Skipped, with the reason, where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.faults.cluster import Cluster
from experiments.faults.scene import reference
from experiments.faults.slurm_faults import names, scene_of, slurm_faults
from interp.sweep.backends.queue import JobRecord, job_runs, job_states, live

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

QUICK = ("array", "worker killed", "time-out", "scancel", "shell closed")


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
    told = scene.call("status", str(scene.yaml)).stdout
    assert "1 running" in told
    assert "n1" in told or "n2" in told
    hold.unlink()
    assert scene.run().returncode == 0
    assert len(list(scene.state.at("jobs").glob("*.json"))) == 3
    assert scene.seen(reference(tmp_path / "undisturbed", 3)).whole


def test_what_the_queue_says(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = cluster.ask("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 60").strip()
    for _ in range(100):
        if cluster.jobs() == [job]:
            break
    record = JobRecord(job, "slurm", "", "", "")
    assert job_runs(job, 0) is True
    assert job_runs(job, 1) is False
    assert job_states([record]) == {job: "RUNNING"}
    assert job_states([JobRecord("1", "slurm", "", "", "")]) == {"1": "GONE"}
    assert job_runs("1", 0) is False
    cluster.ask("scancel", job)
    assert not live(job_states([record])[job]) or job_states([record])[job] == "COMPLETING"
    # a controller that does not answer is no proof that a job is gone
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    assert job_states([record]) == {job: "UNKNOWN"}
    assert live("UNKNOWN")
    assert job_runs(job, 0) is None


def test_submitit_without_a_cluster(tmp_path: Path) -> None:
    """The same path through submitit's local executor: processes of this machine."""
    scene = scene_of(tmp_path / "scene", 2)
    scene.backend = ("--backend", "slurm", "--cluster", "local")
    done = scene.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert scene.seen(reference(tmp_path / "undisturbed", 2)).whole
    shutil.rmtree(scene.out / "probe")
