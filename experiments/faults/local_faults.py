"""Faults on one machine. Each takes a folder, breaks a sweep of probes in it, resumes it, and says what is there.

A fault is a function registered by name with the way it is made and what is expected. All expect that every
cell is published exactly once, with the tables of an undisturbed run; those that leave failed cells say so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from experiments.faults.scene import Scene, Seen, end, kill, reference, wait_for

ALL = "every cell published once, tables as undisturbed"


class Unfit(Exception):  # noqa: N818
    """This machine cannot make the fault; the message says why."""


@dataclass(frozen=True)
class Fault:
    """One fault: `make(folder)` breaks a sweep and returns what is seen after the resume."""

    name: str
    how: str
    expected: str
    make: Callable[[Path], Seen]
    backend: str = "local"
    slow: bool = False


LOCAL: dict[str, Fault] = {}
F = TypeVar("F", bound=Callable[[Path], Seen])


def fault(
    name: str, how: str, expected: str = ALL, *, into: dict[str, Fault] = LOCAL, backend: str = "local",
    slow: bool = False,
) -> Callable[[F], F]:  # fmt: skip
    def keep(make: F) -> F:
        into[name] = Fault(name, how, expected, make, backend, slow)
        return make

    return keep


def check(what: bool, why: str) -> None:
    """The fault did happen, or the sweep did say what it should: else the case proves nothing."""
    if not what:
        raise AssertionError(why)


@fault("worker killed", "kill -9 of a worker after two streamed rows, a torn third row behind them")
def worker_killed(folder: Path) -> Seen:
    scene = Scene(folder)
    armed = [scene.fault("kill", seed) for seed in (1, 4)]
    done = scene.run()
    check(not any(a.exists() for a in armed), "no worker was killed")
    check(done.returncode == 0, done.stderr)
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault(
    "cell kills every worker", "kill -9 each time one cell is computed",
    "the others published, that cell failed by name; published after the cause is gone",
)  # fmt: skip
def killer_cell(folder: Path) -> Seen:
    scene = Scene(folder)
    armed = scene.fault("killall", 2)
    done = scene.run()
    first = scene.seen(reference(folder / "undisturbed", scene.cells))
    check(done.returncode == 1 and list(first.failed) == [scene.key(2)], f"not named: {done.stdout}{done.stderr}")
    check("SIGKILL" in first.failed[scene.key(2)] and first.published == 5, first.told())
    armed.unlink()
    scene.run()
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault("submitter and workers killed", "kill -9 of the whole session in the middle of two cells (as a power cut)")
def all_killed(folder: Path) -> Seen:
    scene = Scene(folder)
    holds = [scene.fault("hold", seed) for seed in (0, 3)]
    process = scene.start()
    workers = [scene.held(seed) for seed in (0, 3)]
    kill([process.pid, *workers])
    end(process)
    for hold in holds:
        hold.unlink()
    check(scene.run().returncode == 0, "the resume failed")
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault("submitter killed", "kill -9 of the submitting process; its workers end by themselves")
def submitter_killed(folder: Path) -> Seen:
    scene = Scene(folder)
    hold = scene.fault("hold", 0)
    process = scene.start()
    scene.held(0)
    kill([process.pid])
    process.wait()
    # the worker that was left behind still has cell 0 in hand while the resume begins
    again = scene.start()
    wait_for(lambda: scene.done() == scene.cells - 1, "the other cells")
    hold.unlink()
    text = end(again)
    check(again.returncode == 0, text)
    return scene.seen(reference(folder / "undisturbed", scene.cells))


def _signalled(folder: Path, stop: Callable[[Scene, subprocess.Popen[str]], None], said: str) -> Seen:
    scene = Scene(folder)
    hold = scene.fault("hold", 2)
    process = scene.start()
    worker = scene.held(2)
    stop(scene, process)
    text = end(process)
    check(process.returncode == 130 and said in text, f"exit {process.returncode}: {text}")
    check(not Path(f"/proc/{worker}").exists(), "a worker outlived the sweep")
    hold.unlink()
    check(not (scene.out / ".claims" / scene.key(2)).exists(), "the claim was not given back")
    check(scene.run().returncode == 0, "the resume failed")
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault("Ctrl-C", "SIGINT in the middle of a cell")
def control_c(folder: Path) -> Seen:
    return _signalled(folder, lambda _, p: p.send_signal(signal.SIGINT), "the same command resumes")


@fault("shell closed", "SIGHUP to the session in the middle of a cell")
def shell_closed(folder: Path) -> Seen:
    return _signalled(folder, lambda _, p: os.killpg(p.pid, signal.SIGHUP), "the same command resumes")


@fault("cancel", "`interp sweep cancel` in the middle of a cell")
def cancelled(folder: Path) -> Seen:
    def stop(scene: Scene, process: subprocess.Popen[str]) -> None:
        done = scene.call("cancel", str(scene.yaml))
        check(f"told process {process.pid} to stop" in done.stdout, done.stdout + done.stderr)

    return _signalled(folder, stop, "the same command resumes")


@fault(
    "cell raises", "a RuntimeError in one cell",
    "the others published, that cell failed with its traceback; published after the cause is gone",
)  # fmt: skip
def cell_raises(folder: Path) -> Seen:
    scene = Scene(folder)
    armed = scene.fault("raise", 5)
    done = scene.run()
    first = scene.seen(reference(folder / "undisturbed", scene.cells))
    check(done.returncode == 1 and first.published == 5, done.stdout + done.stderr)
    told = first.failed[scene.key(5)]
    check("was told to fail" in told and "probe.py" in told, told)
    armed.unlink()
    scene.run()
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault("tables broken", "of published cells: a table cut in half, one with a byte turned, one gone, a torn run.json")
def tables_broken(folder: Path) -> Seen:
    scene = Scene(folder)
    scene.run()
    cut, turned, gone, torn = (scene.path(seed) for seed in range(4))
    data = (cut / "table.parquet").read_bytes()
    (cut / "table.parquet").write_bytes(data[: len(data) // 2])
    flipped = bytearray((turned / "table.parquet").read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (turned / "table.parquet").write_bytes(bytes(flipped))
    (gone / "table.parquet").unlink()
    (torn / "run.json").write_text('{"schema_version": 1, "exp', encoding="utf-8")
    done = scene.run()
    check(done.returncode == 0 and done.stdout.count("moved aside") == 4, done.stdout + done.stderr)
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault("half-written cell", "what a crash leaves in the middle of publishing: half a table beside the cell's place")
def half_written(folder: Path) -> Seen:
    scene = Scene(folder)
    scene.run()
    for seed in (0, 1):
        cell = scene.path(seed)
        half = cell.parent / f".partial-{cell.name}" / "publish-99-dead"
        shutil.copytree(cell, half)
        shutil.rmtree(cell)
        data = (half / "table.parquet").read_bytes()
        (half / "table.parquet").write_bytes(data[: len(data) // 3])
        (half / "run.json").unlink()
        # the two are published a second time because this case removed them
        for path in scene.state.at("events").glob("*.jsonl"):
            kept = [ln for ln in path.read_text(encoding="utf-8").splitlines() if scene.key(seed) not in ln]
            path.write_text("".join(f"{ln}\n" for ln in kept), encoding="utf-8")
    check(scene.run().returncode == 0, "the resume failed")
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault("two submitters", "the same sweep run twice at the same moment")
def two_submitters(folder: Path) -> Seen:
    scene = Scene(folder, cells=8, step=0.02)
    both = [scene.start(), scene.start()]
    told = [end(process) for process in both]
    check(all(p.returncode == 0 for p in both), "\n".join(told))
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault(
    "changed config", "the sweep file changed between two runs", "new cells beside the old ones, which are untouched"
)
def changed_config(folder: Path) -> Seen:
    scene = Scene(folder, cells=3)
    scene.run()
    old = {seed: (scene.path(seed), (scene.path(seed) / "run.json").stat().st_mtime_ns) for seed in range(3)}
    scene.rows = 5
    scene.write()
    done = scene.run()
    check("3 of 3 cells are published" in done.stdout, done.stdout + done.stderr)
    for seed, (path, stamp) in old.items():
        check(scene.path(seed) != path and (path / "run.json").stat().st_mtime_ns == stamp, "an old cell was touched")
    return scene.seen(reference(folder / "undisturbed", 3, rows=5))


@fault(
    "task file changed", "the content of a file that cells name changed: once between two runs, once during one",
    "no table of the old content under the new one's name; the cell caught between fails by name, then is published",
)  # fmt: skip
def task_file_changed(folder: Path) -> Seen:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pairs.csv"
    file.write_text("clean,corrupt\na,b\n", encoding="utf-8")
    scene = Scene(folder, cells=4, file=file, backend=("--backend", "local", "--workers", "1"))
    scene.run()
    old = {seed: (scene.path(seed) / "table.parquet").read_bytes() for seed in range(4)}
    file.write_text("clean,corrupt\nc,d\n", encoding="utf-8")
    hold = scene.fault("hold", 0)
    process = scene.start()
    scene.held(0)
    file.write_text("clean,corrupt\ne,f\n", encoding="utf-8")
    hold.unlink()
    text = end(process)
    check(process.returncode == 1 and "changed since the sweep was planned" in text, text)
    check(scene.run().returncode == 0, "the resume failed")
    now = reference(folder / "undisturbed", 4, file=file)
    check(all(now[seed] != old[seed] for seed in range(4)), "the file's content is not part of the numbers")
    return scene.seen(now)


@fault("clock jumps", "every process sees a clock that jumps by a day to and fro; claims and logs dated 1970 and 2100")
def clock_jumps(folder: Path) -> Seen:
    scene = Scene(folder, env={"PROBE_CLOCK": "1"})
    scene.fault("kill", 1)
    hold = scene.fault("hold", 3)
    process = scene.start()
    scene.held(3)
    for i, path in enumerate(sorted(p for p in scene.out.rglob("*") if p.is_file())):
        stamp = 4_102_444_800 if i % 2 else 0
        os.utime(path, (stamp, stamp))
    before = scene.at_work()
    second = scene.start()
    wait_for(lambda: scene.at_work() - before, "the second run's worker")
    hold.unlink()
    told = [end(p) for p in (process, second)]
    check(process.returncode == 0 and second.returncode == 0, "\n".join(told))
    return scene.seen(reference(folder / "undisturbed", scene.cells))


@fault("dead owner's claims", "claims of a process that is gone, of its number in other hands, and one without content")
def dead_claims(folder: Path) -> Seen:
    from dataclasses import asdict, replace

    from interp.sweep.claims import Owner
    from interp.sweep.state import write_json

    scene = Scene(folder)
    scene.fault("raise", 0)
    scene.run()
    (scene.faults / "raise-0").unlink()
    shutil.rmtree(scene.out / "probe")
    shutil.rmtree(scene.state.at("events"))
    gone = subprocess.Popen(["true"])
    gone.wait()
    me = Owner.here()
    owners = [replace(me, pid=gone.pid), replace(me, started="1"), replace(me, boot="before")]
    for seed, owner in enumerate(owners[:2]):
        write_json(scene.out / ".claims" / scene.key(seed), asdict(owner))
    (scene.out / ".claims" / scene.key(2)).touch()
    check(scene.run().returncode == 0, "the resume failed")
    return scene.seen(reference(folder / "undisturbed", scene.cells))


def _mounted(folder: Path, mount: str, message: str, before: bool = False) -> Seen:
    """Run the sweep where `mount` (shell) has changed what can be written, then resume it elsewhere."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        raise Unfit("`unshare -m` is not allowed here")
    # names of folders are part of no cell, the texts of rows are: larger tables fill a small disk
    scene = Scene(folder, cells=12, rows=60)
    if before:
        scene.fault("raise", 0)
        scene.run()
        (scene.faults / "raise-0").unlink()
    scene.out.mkdir(exist_ok=True)
    script = f'{mount} && "$@"; code=$?; {{ cp -a {scene.out}/. {folder}/kept/; }} 2>/dev/null; exit $code'
    (folder / "kept").mkdir()
    process = scene.start(prefix=("unshare", "-m", "bash", "-c", script, "bash"))
    text = end(process)
    check(process.returncode in (1, 2) and message in text, f"exit {process.returncode}: {text}")
    if not before:
        # what was on the full disk when the sweep stopped; the resume has a larger one
        shutil.copytree(folder / "kept", scene.out, dirs_exist_ok=True)
        check(0 < len(list(scene.out.glob("probe/-*/run.json"))) < 12, "the disk was not filled in the middle")
    done = scene.run()
    check(done.returncode == 0, done.stdout + done.stderr)
    return scene.seen(reference(folder / "undisturbed", scene.cells, rows=60))


@fault("disk full", "a tmpfs of 300 kB as results folder, full after some cells (`unshare -m`)")
def disk_full(folder: Path) -> Seen:
    return _mounted(folder, f"mount -t tmpfs -o size=300k none {folder}/out", "No space left on device")


@fault("read-only folder", "the results folder mounted read-only (`unshare -m`, bind) with one cell left to do")
def read_only(folder: Path) -> Seen:
    out = folder / "out"
    mount = f"mount --bind {out} {out} && mount -o remount,ro,bind {out}"
    return _mounted(folder, mount, "Read-only file system", before=True)
