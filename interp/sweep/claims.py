"""Claims: which process computes a cell at the moment, so that two workers seldom compute the same one.

A claim is a file `<out>/.claims/<key>`, created exclusively, that says who holds it. Claims are advice: what
makes a cell published once is the rename of `interp.results.store`. A claim is void when its owner is gone:

- on this machine, since its last boot: no process of that id that started at that moment;
- elsewhere, in a Slurm job: the job is not running, or was restarted since;
- elsewhere, without a job: its beat, a counter the owner's machine renews, stands still for `PATIENCE` seconds
  of the observer's own monotonic clock.

No decision rests on a time of day, so a clock that jumps changes nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from interp.sweep.state import read_json, write_json

FOLDER = ".claims"
BEAT = 10.0
PATIENCE = 60.0


@dataclass(frozen=True)
class Owner:
    """A process that computes cells."""

    host: str
    boot: str
    pid: int
    started: str
    """When the process started, in ticks since the boot: a process id that is used again is another process."""
    job: str | None = None
    """Slurm job, with its array index."""
    restarts: int = 0
    run: str = ""
    """The `sweep run` it works for."""
    name: str = field(default_factory=lambda: secrets.token_hex(6))

    @staticmethod
    def here(run: str = "") -> Owner:
        """This process."""
        array, index, job = (os.environ.get(f"SLURM_{k}") for k in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "JOB_ID"))
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0") or 0)
        pid = os.getpid()
        name = f"{array}_{index}" if array and index else job
        return Owner(host_name(), boot_id(), pid, started_at(pid) or "", name, restarts, run)

    def told(self) -> str:
        """In words."""
        return (f"job {self.job} on " if self.job else "") + f"{self.host}, process {self.pid}"


@lru_cache(maxsize=1)
def boot_id() -> str:
    """This machine since its last boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def host_name() -> str:
    # nodes that Slurm simulates on one machine share its host name
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def started_at(pid: int) -> str | None:
    """When a process of this machine started; None where there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def alive_here(owner: Owner) -> bool:
    """Whether a process of this machine is still the one that it was."""
    return started_at(owner.pid) == owner.started


class Claims:
    """The claims of one results folder, on behalf of one owner."""

    def __init__(self, out: Path, owner: Owner, job_runs: Callable[[str, int], bool | None] | None = None) -> None:
        self.folder = out / FOLDER
        self.owner = owner
        self._job_runs = job_runs
        self._beats: dict[str, tuple[int, float]] = {}

    def take(self, key: str) -> Held | None:
        """Claim a cell; None where a living owner has it. A void claim is put away and taken over."""
        path = self.folder / key
        crashes = 0
        for _ in range(3):
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                old = self.read(key)
                if old is None:
                    # just created and not written yet, or written by a disk that was full
                    time.sleep(0.05)
                    old = self.read(key)
                if old is not None and self.alive(old):
                    return None
                if old is not None:
                    crashes = old.crashes + 1 if old.owner.run == self.owner.run else 0
                self._put_away(path)
                continue
            except FileNotFoundError:
                self.folder.mkdir(parents=True, exist_ok=True)
                continue
            claim = Claim(self.owner, crashes)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({**asdict(self.owner), "crashes": crashes}, file)
            return Held(path, claim)
        return None

    def read(self, key: str) -> Claim | None:
        """The claim on a cell, or None where there is none that can be read."""
        value = read_json(self.folder / key)
        if value is None:
            return None
        try:
            crashes = int(value.pop("crashes", 0))
            return Claim(Owner(**value), crashes)
        except (TypeError, ValueError):
            return None

    def all(self) -> Iterator[tuple[str, Claim]]:
        """Every claim there is, void ones too."""
        try:
            names = [e.name for e in os.scandir(self.folder) if e.is_file() and not e.name.startswith(".")]
        except OSError:
            return
        for key in names:
            claim = self.read(key)
            if claim is not None:
                yield key, claim

    def alive(self, claim: Claim) -> bool:
        """Whether the owner of a claim is still at work."""
        owner, me = claim.owner, self.owner
        if owner.boot == me.boot:
            return alive_here(owner)
        if owner.job is not None and self._job_runs is not None:
            if owner.job == me.job:
                return owner.restarts == me.restarts
            runs = self._job_runs(owner.job, owner.restarts)
            if runs is not None:
                return runs
        return self._beating(owner)

    def _beating(self, owner: Owner) -> bool:
        value = read_json(self.folder / "beats" / f"{owner.name}.json") or {}
        count = int(value.get("count", -1))
        before, since = self._beats.get(owner.name, (None, 0.0))
        if count != before:
            self._beats[owner.name] = (count, time.monotonic())
            return True
        return time.monotonic() - since < PATIENCE

    def _put_away(self, path: Path) -> None:
        # moved, not removed: of two that find it void, one moves it and the other finds nothing to move
        away = path.with_name(f".void-{secrets.token_hex(6)}")
        try:
            os.rename(path, away)
            os.unlink(away)
        except OSError:
            return


@dataclass(frozen=True)
class Claim:
    """What a claim says."""

    owner: Owner
    crashes: int = 0
    """How many owners of this run died with the cell in hand before this one took it."""


@dataclass(frozen=True)
class Held:
    """A claim of ours."""

    path: Path
    claim: Claim

    def release(self) -> None:
        """Give the cell free; where another took the claim over, theirs stays."""
        value: Mapping[str, Any] = read_json(self.path) or {}
        if value.get("name") == self.claim.owner.name:
            self.path.unlink(missing_ok=True)


class Heart:
    """Renews the owner's beat in a thread, for observers on other machines."""

    def __init__(self, out: Path, owner: Owner) -> None:
        self._path = out / FOLDER / "beats" / f"{owner.name}.json"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        count = 0
        while True:
            # on a full disk observers elsewhere may compute a cell twice, nothing worse
            with suppress(OSError):
                write_json(self._path, {"count": count})
            count += 1
            if self._stop.wait(BEAT):
                return

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
