"""Computing the cells of a sweep one by one: what every backend's worker does.

For a cell: skip it where it is published; claim it, or report that another has it; check that the file it was
planned from still says the same; run it; note the digest of its table; release the claim. What it prints goes
to the cell's own log. An error is recorded with its traceback and does not stop the others; a full disk or a
read-only folder does, since every further cell would only fail too. Cells of no sweep are kept no records of:
what they print and their tracebacks go to standard error.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from interp.registry import UserError
from interp.sweep.cellfile import CellLine
from interp.sweep.claims import Claims, Held, Owner
from interp.sweep.state import State
from interp.sweep.whole import digests

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
FIRST_PACK = 32
"""Edits per forward that are tried first after memory ran out, where the planner chose the number itself."""
WAIT = 1.0
"""Seconds until cells that others have in hand are looked at again."""


class Stopped(BaseException):
    """The worker was told to stop; the cell in hand keeps its streamed rows and is not failed."""


@dataclass(frozen=True)
class Event:
    """What became of a cell: done, reused, busy, failed, blocked (the disk) or stopped."""

    key: str
    state: str
    seconds: float = 0.0
    error: str = ""
    cell: str = ""
    """The cell's folder."""
    bad_input: bool = False
    """It failed before anything was computed: by what was asked for."""

    def line(self) -> str:
        return json.dumps(asdict(self))


class Work:
    """Computes cells in this process: those of a sweep, whose records are `state`, or of no sweep."""

    def __init__(
        self, out: Path, owner: Owner, claims: Claims, *, state: State | None = None, threads: int | None = None,
        retries: int = 2, track: Callable[[CellLine, Path], None] | None = None, own_process: bool = False,
        command: str | None = None,
    ) -> None:  # fmt: skip
        """`own_process`: this process is the worker's alone, and its environment says how many threads to use."""
        from interp.cells import Loaders

        self.out = out
        self.state = state
        self.owner = owner
        self.claims = claims
        self.threads = threads
        self.retries = retries
        self.track = track
        self.own_process = own_process
        self.command = f"interp sweep: {state.name}" if state else command
        self._map: Any = None
        self._loaders = Loaders(load_model=self._load)

    def each(self, cells: Iterable[CellLine], wait: bool) -> Iterator[Event]:
        """Compute cells in turn, until the disk is full. With `wait`, those that others have in hand are looked at
        again at the end, until they are done."""
        while True:
            seen, busy = 0, []
            for cell in cells:
                event = self.cell(cell)
                yield event
                if event.state == "blocked":
                    return
                seen += 1
                if event.state == "busy":
                    busy.append(cell)
            if not busy or not wait:
                return
            if len(busy) == seen:
                time.sleep(WAIT)
            cells = busy

    def cell(self, cell: CellLine) -> Event:
        """Compute one cell."""
        return replace(self._cell(cell), cell=str(self.out / cell.place))

    def _cell(self, cell: CellLine) -> Event:
        # the cell of no sweep that is there already is looked at by run_cell
        if self.state is not None and (self.out / cell.place / "run.json").is_file():
            self.state.clear(cell.key)
            return Event(cell.key, "reused")
        try:
            held = self.claims.take(cell.key)
        except OSError as e:
            return Event(cell.key, "blocked", error=f"{e.strerror}: {self.out}")
        if held is None:
            return Event(cell.key, "busy")
        try:
            return self._run(cell, held)
        finally:
            held.release()

    def _run(self, cell: CellLine, held: Held) -> Event:
        started = time.perf_counter()
        try:
            if held.claim.crashes > self.retries:
                raise WorkerDiedError(
                    f"the process that computed it died {held.claim.crashes} times, without a traceback"
                )
            with self._output(cell.key):
                state = self._compute(cell)
        except Stopped:
            self._note(Event(cell.key, "stopped", time.perf_counter() - started))
            raise
        except OSError as e:
            return self._failed(cell, e, started, "blocked" if e.errno in FULL else "failed")
        except Exception as e:
            return self._failed(cell, e, started, "failed")
        event = Event(cell.key, state, time.perf_counter() - started)
        self._note(event, self.out / cell.place if state == "done" else None)
        if self.state is not None:
            self.state.clear(cell.key)
        return event

    def _compute(self, cell: CellLine) -> str:
        from interp.cells import EXPERIMENTS, cell_hash, run_cell

        experiment = EXPERIMENTS[cell.experiment]
        config = experiment.make_config(cell.config)
        if cell_hash(experiment, config) != cell.digest:
            since = "the sweep was planned" if self.state is not None else "the cells were read"
            raise UserError(
                f"a file that {Path(cell.place).name} names, or {experiment.name}'s version, changed since {since};"
                " the same command again plans it anew"
            )
        pack = cell.resources.pack
        self._map = cell.resources.device_map
        while True:
            try:
                made = run_cell(
                    experiment, config, out=self.out, device=cell.resources.where, threads=self._threads(), pack=pack,
                    loaders=self._loaders, command=self.command,
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

    def _failed(self, cell: CellLine, error: Exception, started: float, state: str) -> Event:
        told = f"{type(error).__name__}: {error}"
        event = Event(cell.key, state, time.perf_counter() - started, told, bad_input=isinstance(error, UserError))
        if self.state is None:
            if not event.bad_input:
                traceback.print_exception(error)
            return event
        record = {
            "key": cell.key, "experiment": cell.experiment, "config": cell.config, "place": cell.place,
            "error": told, "traceback": "".join(traceback.format_exception(error)), "owner": self.owner.told(),
            "log": str(self.state.log(cell.key)),
        }  # fmt: skip
        try:
            if state == "failed":
                self.state.fail(cell.key, record)
        except OSError as e:
            # the record itself cannot be written: whoever reads the event knows the reason all the same
            if e.errno in FULL:
                event = replace(event, state="blocked")
        self._note(event)
        return event

    def _note(self, event: Event, cell: Path | None = None) -> None:
        """Append to this worker's events; they explain, nothing depends on them."""
        if self.state is None:
            return
        told = {k: v for k, v in asdict(event).items() if k not in ("cell", "bad_input")}
        entry = {**told, "owner": self.owner.name, "run": self.owner.run}
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
        if self.state is None:
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
