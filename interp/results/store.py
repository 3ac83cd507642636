"""Cells on disk: `<out>/<experiment>/<model>.<task>-<hash10>/`, published whole by one rename.

    table.parquet      typed, sorted by key, the same bytes for the same numbers
    table.csv          its summary: columns that say something, rounded numbers
    examples.parquet   row key, prompt, value (where the experiment gives it)
    run.json           origin
    artifacts/         patterns (safetensors), circuits (JSON), pages

While a cell is computed it lives in `.partial-<cell>/` beside its place: the row log, and the folder that
becomes the cell. So a reader never sees half a cell, of two writers only the first publishes, and what a
killed one leaves is swept away when the cell is published. No pickle is written or read.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from interp.registry import UserError
from interp.results.frames import DTYPES, Table, examples_schema
from interp.results.rowlog import plain
from interp.results.schemas import SCHEMA_VERSION, SCHEMAS, Column, Schema
from interp.results.writing import writing

CSV_ROWS = 1000
_ARROW = {"name": pa.string(), "index": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}
_PANDAS = {pa.string(): pd.StringDtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


@dataclass(frozen=True)
class Cell:
    """A finished cell. `reused` says that it was there already and nothing was computed."""

    path: Path
    reused: bool = False

    def run(self) -> dict[str, Any]:
        """run.json: the cell's origin."""
        return _read_json(self.path / "run.json")

    def table(self) -> pd.DataFrame:
        """The typed table."""
        return read_parquet(self.path / "table.parquet")

    def schema(self) -> Schema:
        """The table's schema; one that is not ours is read off the file."""
        run = self.run()
        if run.get("schema") in SCHEMAS:
            return SCHEMAS[run["schema"]]
        fields = _arrow_schema(self.path / "table.parquet")
        kinds = {kind: name for name, kind in _ARROW.items()}
        columns = (Column(f.name, kinds[f.type], "", f.name in run.get("key", [])) for f in fields)
        return Schema(str(run.get("schema")), tuple(columns), str(run.get("main")))

    def examples(self) -> pd.DataFrame | None:
        """Numbers per prompt, or None where the experiment kept none."""
        path = self.path / "examples.parquet"
        return read_parquet(path) if path.exists() else None

    def artifacts(self) -> dict[str, Path]:
        """Files that belong to the cell, by name."""
        folder = self.path / "artifacts"
        files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
        return {p.relative_to(folder).as_posix(): p for p in files}

    @property
    def name(self) -> str:
        """`<experiment>/<cell>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    def _repr_html_(self) -> str:
        from interp.plots.show import card, largest

        run, frame, schema = self.run(), self.table(), self.schema()
        told = ("experiment", "model", "task", "seed", "device", "dtype", "commit", "wall_seconds", "reproducible")
        facts = {"rows": len(frame), **{k.replace("_", " "): run.get(k) for k in told}}
        varying = [c for c in frame.columns if c not in schema.key or frame[c].nunique(dropna=False) > 1]
        shown = largest(frame, schema.main)[varying]
        return card(f"Cell {self.name}", facts, shown, about=f"Largest {schema.main} first; .table() has all.")


def slug(name: str | None) -> str:
    """A name as part of a folder's name: the last part of a path, plain characters only; `-` for none.

    >>> slug("org/gpt 2.small"), slug(None)
    ('gpt_2.small', '-')
    """
    if not name:
        return "-"
    last = name.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._+@=-]", "_", last).lstrip(".")[:80] or "-"


def cell_path(out: Path, experiment: str, model: str | None, task: str | None, digest: str) -> Path:
    """Where the cell of this hash lies."""
    return out / slug(experiment) / f"{slug(model)}.{slug(task)}-{digest[:10]}"


def partial_path(cell: Path) -> Path:
    """Where an unfinished cell keeps its rows."""
    return cell.parent / f".partial-{cell.name}"


def finished(path: Path) -> bool:
    """Whether a cell is published there."""
    return (path / "run.json").is_file()


def publish(path: Path, table: Table, run: Mapping[str, Any]) -> Cell:
    """Write a cell beside its place and put it there by one rename; where one is there already, it stays."""
    partial = partial_path(path)
    made = partial / f"publish-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with writing(path.parent):
            made.mkdir(parents=True)
            _write(made, table, run)
            os.rename(made, path)
    except OSError:
        # another writer published first: its rename won, and it may have swept our folder away
        if not finished(path):
            shutil.rmtree(made, ignore_errors=True)
            for empty in (partial, path.parent):
                with suppress(OSError):
                    empty.rmdir()
            raise
        cell = Cell(path, reused=True)
    else:
        _sync(path.parent)
        cell = Cell(path)
    shutil.rmtree(partial, ignore_errors=True)
    return cell


def save(
    table: Table, out: str | Path, *, experiment: str, model: str | None, task: str | None, run: Mapping[str, Any]
) -> Cell:
    """Publish a table made in a notebook as a cell that nothing reuses (`reproducible: false`)."""
    path = cell_path(Path(out), experiment, model, task, secrets.token_hex(5))
    return publish(path, table, {"experiment": experiment, **run, "reproducible": False})


def _write(folder: Path, table: Table, run: Mapping[str, Any]) -> None:
    from interp.results.export import summary

    write_parquet(folder / "table.parquet", table.frame, table.schema)
    head = summary(table.frame, table.schema, most=CSV_ROWS)
    _write_bytes(folder / "table.csv", head.to_csv(index=False, lineterminator="\n").encode())
    if table.examples is not None:
        write_parquet(folder / "examples.parquet", table.examples, examples_schema(table.schema))
    for name, content in table.artifacts.items():
        _write_artifact(folder / "artifacts", name, content)
    record = {
        "schema_version": SCHEMA_VERSION, "schema": table.schema.name, "key": table.schema.key,
        "main": table.schema.main, **run, "notes": dict(table.notes),
        "rows": len(table.frame),
    }  # fmt: skip
    text = json.dumps(record, indent=2, ensure_ascii=False, default=plain)
    _write_bytes(folder / "run.json", text.encode() + b"\n")
    _sync(folder)


def write_parquet(path: Path, frame: pd.DataFrame, schema: Schema) -> None:
    """Write the frame's columns by their kinds; nothing in the file depends on time or machine."""
    kinds = {c.name: c.kind for c in schema.columns}
    fields = [pa.field(name, _ARROW[kinds[name]]) for name in frame.columns]
    arrow = pa.schema(fields, metadata={"schema": schema.name, "main": schema.main})
    data = pa.Table.from_pandas(frame, schema=arrow, preserve_index=False).replace_schema_metadata(arrow.metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(data, sink, compression="zstd")
    _write_bytes(path, sink.getvalue().to_pybytes())


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a table with its types; a broken file raises UserError naming it."""
    _arrow_schema(path)
    data = pq.read_table(path)
    frame: pd.DataFrame = data.to_pandas(types_mapper=_PANDAS.get, ignore_metadata=True)
    return frame.astype({f.name: DTYPES["name"] for f in data.schema if f.type == pa.string()})


def _arrow_schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise UserError(f"{path} cannot be read as a table: {e}") from None


def read_cell(path: str | Path) -> Cell:
    """The cell in this folder; raises UserError where there is none."""
    folder = Path(path)
    if not finished(folder):
        raise UserError(f"{folder} is no cell: it has no run.json")
    return Cell(folder)


def list_cells(out: str | Path) -> list[Cell]:
    """All finished cells under `out`, by name. Unfinished ones and other folders are passed over."""
    found = sorted(Path(out).glob("*/*/run.json"))
    return [Cell(p.parent) for p in found if not p.parent.name.startswith(".")]


def find_cell(out: str | Path, name: str) -> Cell:
    """A cell by folder, by `<experiment>/<cell>`, or by a hash's beginning that only one cell has."""
    if finished(Path(name)):
        return Cell(Path(name))
    cells = list_cells(out)
    near = [c for c in cells if c.name == name or c.path.name == name]
    near = near or [c for c in cells if c.path.name.rsplit("-", 1)[-1].startswith(name)]
    if len(near) == 1:
        return near[0]
    if near:
        raise UserError(f"{name!r} names {len(near)} cells: {', '.join(c.name for c in near[:5])}")
    from interp.registry import unknown

    raise unknown(f"cell under {out}:", name, [c.name for c in cells][:20])


def _write_artifact(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    if folder.resolve() not in path.resolve().parents:
        raise ValueError(f"artifact {name!r} lies outside its cell")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        data = _safetensors(content)
    elif isinstance(content, (str, bytes)):
        data = content.encode() if isinstance(content, str) else content
    elif path.suffix == ".json":
        data = (json.dumps(content, indent=1, sort_keys=True, default=plain) + "\n").encode()
    else:
        raise TypeError(f"artifact {name!r} must be text or bytes, got {type(content).__name__}")
    _write_bytes(path, data)


def _safetensors(arrays: Mapping[str, Any]) -> bytes:
    if any(hasattr(a, "detach") for a in arrays.values()):
        from safetensors.torch import save as save_tensors

        return bytes(save_tensors({k: v.detach().cpu().contiguous() for k, v in arrays.items()}))
    from safetensors.numpy import save as save_arrays

    return bytes(save_arrays(dict(arrays)))


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"{path} cannot be read: {e}") from None
    return read
