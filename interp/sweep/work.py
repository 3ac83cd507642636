"""Computing the cells of a sweep one by one: what every backend's worker does.

For a cell: skip it where it is published; claim it, or report that another has it; check that the file it was
planned from still says the same; run it; note the digest of its table; release the claim. What it prints goes
to the cell's own log. An error is recorded with its traceback and does not stop the others; a full disk or a
read-only folder does, since every further cell would only fail too.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from interp.registry import UserError
from interp.sweep.claims import Claims, Held, Owner
from interp.sweep.spec import Resources
from interp.sweep.state import State
from interp.sweep.whole import digests

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
FIRST_PACK = 32
"""Edits per forward that are tried first after memory ran out, where the planner chose the number itself."""


class Stopped(BaseException):
    """The worker was told to stop; the cell in hand keeps its streamed rows and is not failed."""


@dataclass(frozen=True)
class Event:
    """What became of a cell: done, reused, busy, failed, blocked (the disk) or stopped."""

    key: str
    state: str
    seconds: float = 0.0
    error: str = ""

    def line(self) -> str:
        return json.dumps(asdict(self))


class Work:
    """Computes cells of one sweep in this process."""

    def __init__(
        self, state: State, owner: Owner, claims: Claims, *, threads: int | None = None, retries: int = 2,
        track: Callable[[Mapping[str, Any], Path], None] | None = None, keep_output: bool = True,
        own_process: bool = False,
    ) -> None:  # fmt: skip
        """`own_process`: this process is the worker's alone, and its environment says how many threads to use."""
        from interp.cells import Loaders

        self.state = state
        self.owner = owner
        self.claims = claims
        self.threads = threads
        self.retries = retries
        self.track = track
        self.keep_output = keep_output
        self.own_process = own_process
        self._map: Any = None
        self._loaders = Loaders(load_model=self._load)

    def cell(self, cell: Mapping[str, Any], resources: Resources) -> Event:
        """Compute one cell, given as a line of the plan."""
        key = str(cell["key"])
        path = self.state.out / str(cell["place"])
        if (path / "run.json").is_file():
            self.state.clear(key)
            return Event(key, "reused")
        try:
            held = self.claims.take(key)
        except OSError as e:
            return Event(key, "blocked", error=f"{e.strerror}: {self.state.out}")
        if held is None:
            return Event(key, "busy")
        try:
            return self._run(cell, key, path, held, resources)
        finally:
            held.release()

    def _run(self, cell: Mapping[str, Any], key: str, path: Path, held: Held, resources: Resources) -> Event:
        started = time.perf_counter()
        try:
            if held.claim.crashes > self.retries:
                raise WorkerDiedError(
                    f"the process that computed it died {held.claim.crashes} times, without a traceback"
                )
            with self._output(key):
                state = self._compute(cell, path, resources)
        except Stopped:
            self._note(Event(key, "stopped", time.perf_counter() - started))
            raise
        except OSError as e:
            return self._failed(cell, key, e, started, "blocked" if e.errno in FULL else "failed")
        except Exception as e:
            return self._failed(cell, key, e, started, "failed")
        event = Event(key, state, time.perf_counter() - started)
        self._note(event, path if state == "done" else None)
        self.state.clear(key)
        return event

    def _compute(self, cell: Mapping[str, Any], path: Path, resources: Resources) -> str:
        from interp.cells import EXPERIMENTS, cell_hash, run_cell

        experiment = EXPERIMENTS[str(cell["experiment"])]
        config = experiment.make_config(cell["config"])
        if cell_hash(experiment, config) != cell["digest"]:
            raise UserError(
                f"a file that {path.name} names, or {experiment.name}'s version, changed since the sweep was planned;"
                " the same command again plans it anew"
            )
        pack = resources.pack
        self._map = resources.device_map
        while True:
            try:
                made = run_cell(
                    experiment, config, out=self.state.out, device=resources.where, threads=self._threads(), pack=pack,
                    loaders=self._loaders, command=f"interp sweep: {self.state.name}",
                )  # fmt: skip
            except Exception as e:
                if not out_of_memory(e) or pack == 1:
                    raise
                pack = max(1, (pack or 2 * FIRST_PACK) // 2)
                traceback.print_exc()
                sys.stderr.write(f"out of memory; trying again with pack {pack}\n")
            else:
                if self.track is not None and not made.reused:
                    self.track(cell, made.path)
                return "reused" if made.reused else "done"
            _free_memory()

    def _threads(self) -> int | None:
        """Threads that PyTorch is told; where it is not loaded, a cell that does without need not load it."""
        return self.threads if not self.own_process or "torch" in sys.modules else None

    def _load(self, name: str, *, device: str, dtype: str, **options: Any) -> Any:
        """`load_model`, or one model over several GPUs where the resources or the cell ask for it."""
        from interp.models.load import load_model

        spread = options.pop("device_map", None) or self._map
        if spread is not None:
            return load_model(name, dtype=dtype, device_map=spread, **options)
        return load_model(name, device=device, dtype=dtype, **options)

    def _failed(self, cell: Mapping[str, Any], key: str, error: Exception, started: float, state: str) -> Event:
        told = f"{type(error).__name__}: {error}"
        record = {
            "key": key, "experiment": cell["experiment"], "config": cell["config"], "place": cell["place"],
            "error": told, "traceback": "".join(traceback.format_exception(error)), "owner": self.owner.told(),
            "log": str(self.state.log(key)),
        }  # fmt: skip
        event = Event(key, state, time.perf_counter() - started, told)
        try:
            if state == "failed":
                self.state.fail(key, record)
        except OSError as e:
            # the record itself cannot be written: whoever reads the event knows the reason all the same
            if e.errno in FULL:
                event = Event(key, "blocked", event.seconds, told)
        self._note(event)
        return event

    def _note(self, event: Event, cell: Path | None = None) -> None:
        """Append to this worker's events; they explain, nothing depends on them."""
        entry = {**asdict(event), "owner": self.owner.name, "run": self.owner.run}
        try:
            if cell is not None:
                entry |= digests(cell)
            path = self.state.at("events", f"{self.owner.name}.jsonl")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError:
            return

    @contextmanager
    def _output(self, key: str) -> Iterator[None]:
        """Standard output and error go to the cell's log, those of libraries in C too."""
        if not self.keep_output:
            yield
            return
        path = self.state.log(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        except OSError:
            yield
            return
        sys.stdout.flush()
        sys.stderr.flush()
        saved = os.dup(1), os.dup(2)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except OSError:
                    continue
            for number, old in zip((1, 2), saved, strict=True):
                os.dup2(old, number)
                os.close(old)
            empty = os.fstat(log).st_size == 0
            os.close(log)
            if empty:
                path.unlink(missing_ok=True)


class WorkerDiedError(RuntimeError):
    """The process that computed a cell died, again and again."""


def thread_variables(threads: int) -> dict[str, str]:
    """What tells libraries that are not loaded yet how many threads to use."""
    return {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS")}


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or here."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
