"""The plan of a sweep: cells, what is done, groups, the time and money left. Nothing is run, nothing written.

`run` keeps the plan it works on as `plan.jsonl`, so that `status` over ten thousand cells need not expand the
file again nor import what computes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.registry import UserError
from interp.sweep.spec import Exclusion, Resources, SweepFile, chosen_preset, read_file
from interp.sweep.state import State, read_lines, write_atomic

if TYPE_CHECKING:
    from interp.sweep.expand import SweepCell
    from interp.sweep.grouping import CellGroup


@dataclass(frozen=True)
class Plan:
    """A sweep's cells, in the file's order."""

    file: Path
    sweep: SweepFile
    preset: str | None
    state: State
    cells: list[SweepCell]
    resources: list[Resources]
    excluded: list[tuple[Exclusion, int]]
    repeated: int
    shared: dict[str, tuple[Any, ...]]

    @property
    def out(self) -> Path:
        return self.state.out

    def done(self) -> set[str]:
        """Keys of cells that are published."""
        return published(self.out, ((c.key, c.place) for c in self.cells))

    def groups(self, keys: Iterable[str], at_once: Callable[[Resources], int], least: float = 1.0) -> list[CellGroup]:
        """Groups of the cells with these keys; see `grouping.grouped`."""
        from interp.sweep.estimate import Estimates
        from interp.sweep.grouping import grouped

        wanted = set(keys)
        cells = [c for c in self.cells if c.key in wanted]
        seconds = Estimates(self.out, (c.place.split("/", 1)[0] for c in cells))
        return grouped(cells, self.shared, self.resources, self.sweep.group, seconds.of, at_once, least)

    def save(self) -> None:
        """Keep the plan for `status`."""
        head = {
            "sweep": self.state.name, "file": str(self.file), "sha256": file_digest(self.file), "preset": self.preset,
            "resources": [r.model_dump(mode="json") for r in self.resources],
        }  # fmt: skip
        lines = [head, *(_line(c) for c in self.cells)]
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        write_atomic(self.state.plan_file, data)


def _line(cell: SweepCell) -> dict[str, Any]:
    return {
        "key": cell.key, "experiment": cell.experiment, "config": cell.config, "place": cell.place,
        "digest": cell.digest, "resources": cell.resources,
    }  # fmt: skip


def make_plan(file: str | Path, preset: str | None = None, out: str | Path | None = None) -> Plan:
    """Read a sweep file and expand it. Raises UserError, with a line number, for whatever is wrong."""
    from interp.sweep.expand import expand

    path = Path(file)
    sweep, found = read_file(path)
    made = expand(sweep, found, chosen_preset(sweep, preset))
    if not made.cells:
        raise UserError(f"{path} has no cells" + (f" under preset {preset!r}" if preset else ""))
    state = state_of(path, sweep, out)
    return Plan(path, sweep, preset, state, made.cells, made.resources, made.excluded, made.repeated, made.shared)


def state_of(file: Path, sweep: SweepFile, out: str | Path | None = None) -> State:
    """The sweep's records under its results folder: `--out`, else the file's `out`, else $INTERP_RESULTS."""
    folder = Path(out or sweep.out or os.environ.get("INTERP_RESULTS") or "results")
    blocked = next((p for p in (folder, *folder.parents) if p.exists() and not p.is_dir()), None)
    if blocked:
        raise UserError(f"results cannot go to {folder}: {blocked} is a file, a folder was expected")
    return State(folder, sweep.name or file.stem)


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Kept:
    """The plan that the last `run` worked on, as `status`, `logs` and `collect` read it."""

    head: dict[str, Any]
    cells: list[dict[str, Any]]

    def changed(self, file: Path) -> bool:
        """Whether the sweep file has other content now."""
        return bool(self.head.get("sha256") != file_digest(file))


def kept_plan(state: State) -> Kept | None:
    """What `Plan.save` kept, or None where the sweep was never run here."""
    lines = list(read_lines(state.plan_file))
    return Kept(lines[0], lines[1:]) if lines and "sweep" in lines[0] else None


def published(out: Path, cells: Iterable[tuple[str, str]]) -> set[str]:
    """Keys of those cells (key, place) whose folder is there with its run.json."""
    root = str(out)
    done = set()
    for key, place in cells:
        try:
            os.stat(f"{root}/{place}/run.json")
        except OSError:
            continue
        done.add(key)
    return done
