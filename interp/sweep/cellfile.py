"""The file of `interp run --cells FILE`: JSON lines, a cell each, written by a person or by a sweep for its workers.

    {"experiment": "ablation", "config": {"seed": 1}}      a cell; `preset` and `resources` where wanted
    {"sweep": "heads", "out": "/shared/heads", …}          the first line of a sweep's: what its cells belong to

A sweep's lines have the name, place and digest that were planned, so that a cell whose files have changed since
is told; of a person's file they are made when it is read, all cells being checked before the first one runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic

from interp.registry import UserError
from interp.sweep.spec import Part, Resources, Settings
from interp.sweep.state import read_lines


class Head(Part):
    """What the cells of a sweep's file have in common."""

    sweep: str
    out: str
    run: str = ""
    """The `sweep run` that wrote it."""
    threads: int | None = pydantic.Field(default=None, ge=1)
    retries: int = 2
    track: Literal["wandb", "mlflow"] | None = None
    ahead: bool = False
    """Import what models need before the first cell, whose seconds are then its own."""


class CellLine(Part):
    """One cell, and what it is run with."""

    experiment: str
    config: Settings = pydantic.Field(default={})
    preset: str | None = None
    resources: Resources = Resources()
    key: str = ""
    place: str = ""
    digest: str = ""

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True)) + "\n"


def head_text(head: Head) -> str:
    return json.dumps(head.model_dump(mode="json", exclude_defaults=True)) + "\n"


def keys_of(path: Path) -> set[str]:
    """Keys of the cells of a file that a sweep wrote."""
    return {str(entry["key"]) for entry in read_lines(path) if "key" in entry}


def read_cells(path: Path) -> tuple[Head | None, list[CellLine]]:
    """A file, read whole. Whatever is wrong in it is reported together."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise UserError(f"--cells {path}: {getattr(e, 'strerror', None) or e}") from None
    wrong: list[str] = []
    head, cells = split_head(_parsed(lines, wrong))
    found = list(cells)
    if wrong or not found:
        raise UserError(f"--cells {path}: {'; '.join(wrong) or 'no cells in it'}")
    return head, found


def stream_cells(lines: Iterable[str]) -> tuple[Head | None, Iterator[CellLine]]:
    """Cells as their lines come. What is wrong is told when its turn comes."""
    return split_head(_parsed(lines, None))


def split_head(parsed: Iterator[Head | CellLine]) -> tuple[Head | None, Iterator[CellLine]]:
    """The head, where the first line is one, and the cells."""
    first = next(parsed, None)

    def cells() -> Iterator[CellLine]:
        if isinstance(first, CellLine):
            yield first
        for line in parsed:
            if isinstance(line, Head):
                raise UserError("--cells: the line about the sweep must be the first one")
            yield line

    return (first if isinstance(first, Head) else None), cells()


def _parsed(lines: Iterable[str], wrong: list[str] | None) -> Iterator[Head | CellLine]:
    """Heads and cells by line; what cannot be read goes to `wrong`, or is raised where there is no such list."""
    whole = _Whole()
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            yield whole.line(text)
        except (ValueError, RecursionError) as e:
            told = f"line {number}: {e if isinstance(e, UserError) else f'no JSON: {e}'}"
            if wrong is None:
                raise UserError(f"--cells: {told}") from None
            wrong.append(told)


class _Whole:
    """Reads lines; completes those that name no place. A file that several cells name is digested once."""

    def __init__(self) -> None:
        self._files: Any = None

    def line(self, text: str) -> Head | CellLine:
        value = json.loads(text)
        if not isinstance(value, dict) or not {"sweep", "experiment"} & value.keys():
            raise UserError("expected an object with experiment, config and perhaps preset and resources")
        kind = Head if "sweep" in value else CellLine
        try:
            line = kind.model_validate(value)
        except pydantic.ValidationError as e:
            first = e.errors()[0]
            name = ".".join(str(p) for p in first["loc"])
            raise UserError(f"{name}: {first['msg']}, got {first['input']!r}") from None
        return line if isinstance(line, Head) or line.digest else self._completed(line)

    def _completed(self, line: CellLine) -> CellLine:
        from interp.cells import EXPERIMENTS
        from interp.sweep.expand import Files, cell_of

        self._files = self._files or Files()
        experiment = EXPERIMENTS[line.experiment]
        cell = cell_of(experiment, experiment.make_config(line.config, line.preset), self._files)
        return CellLine(
            experiment=cell.experiment, config=dict(cell.config), resources=line.resources, key=cell.key,
            place=cell.place, digest=cell.digest,
        )  # fmt: skip
