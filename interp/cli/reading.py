"""Cells on the screen: top rows with intervals, lists, comparisons, exports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from interp.cells import out_folder
from interp.registry import UserError
from interp.results.compare import compare, contrasts
from interp.results.export import export, has_points, ranked
from interp.results.schemas import Schema
from interp.results.store import Cell, find_cell, list_cells

_PLACES = ("kv_head", "head", "expert", "neuron", "pos", "pos_label")


def label(row: dict[str, Any], also: list[str]) -> str:
    """A row's place in words: `L1.z head 2 pos END`, `L0.h1 → L2.h3.q`, then other columns that vary.

    >>> label({"site": "z", "layer": 1, "head": 2, "metric": "kl"}, ["metric"])
    'L1.z head 2 kl'
    """
    held = {k: v for k, v in row.items() if not pd.isna(v)}
    words = []
    if "src" in held or "dst" in held:
        words.append(f"{held.get('src', '?')} → {held.get('dst', '?')}")
    if "src_label" in held or "dst_label" in held:
        words.append(f"{held.get('src_label', '')} → {held.get('dst_label', '')}")
    if "layer" in held and "src" not in held:
        words.append(f"L{held['layer']}" + (f".{held['site']}" if "site" in held else ""))
    elif "site" in held:
        words.append(str(held["site"]))
    words += [f"{'pos' if k == 'pos_label' else k.replace('_', ' ')} {held[k]}" for k in _PLACES if k in held]
    words += [f"{held[k]:.5g}" if isinstance(held[k], float) else str(held[k]) for k in also if k in held]
    return " ".join(words) or "all"


def _varying(frame: pd.DataFrame, schema: Schema) -> list[str]:
    places = {*_PLACES, "src", "dst", "src_label", "dst_label", "layer", "site"}
    return [c for c in schema.key if c in frame and c not in places and frame[c].nunique(dropna=False) > 1]


def _number(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:.4g}"


def _between(low: Any, high: Any) -> str:
    return "" if pd.isna(low) or pd.isna(high) else f"[{low:.4g}, {high:.4g}]"


def top_rows(frame: pd.DataFrame, schema: Schema, top: int) -> Grid:
    """A table of the rows largest in the schema's main column; one with published numbers as it stands."""
    published = ["published"] if "published" in frame else []
    rows = frame if published else ranked(frame, schema)
    rows = rows if top <= 0 else rows.head(top)
    interval = {"ci_low", "ci_high"} <= {*frame.columns}
    share = "normalized" in frame and frame["normalized"].notna().any()
    flag = [c for c in schema.kinds("flag") if c in frame]
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("where")
    heads = [
        *published,
        schema.main,
        *(["95% interval"] if interval else []),
        *(["of gap", "95% interval"] if share else []),
    ]
    for head in [*heads, *flag, "n"]:
        grid.add_column(head, justify="right")
    also = _varying(frame, schema)
    for row in rows.to_dict("records"):
        cells = [label({str(k): v for k, v in row.items() if k in schema.key}, also)]
        cells += [_number(row.get(c)) for c in (*published, schema.main)]
        cells += [_between(row["ci_low"], row["ci_high"])] if interval else []
        if share:
            cells += [_number(row["normalized"]), _between(row["normalized_low"], row["normalized_high"])]
        cells += ["" if pd.isna(row[c]) else str(row[c]) for c in flag]
        grid.add_row(*(Text(c) for c in cells), Text("" if pd.isna(row.get("n")) else str(row["n"])))
    return grid


def _console() -> Console:
    # a pipe has no width of its own: long labels must not be cut there
    return Console() if sys.stdout.isatty() else Console(width=160)


def print_cell(cell: Cell, top: int = 10) -> None:
    """What stands in a cell, briefly, and where its files are."""
    run, frame = cell.run(), cell.table()
    schema = cell.schema()
    console = _console()
    title = [str(run.get("experiment"))]
    title += [f"model {run['model']}"] if run.get("model") else []
    title += [f"task {run['task']}"] if run.get("task") else []
    title += [f"{c} {frame[c].iloc[0]}" for c in ("metric", "unit") if c in frame and frame[c].nunique() == 1]
    console.print(Text(", ".join(title)))
    whole = top <= 0 or "published" in frame
    console.print(top_rows(frame, schema, 0 if whole else top))
    shown = len(frame) if whole else min(top, len(frame))
    state = "already there, not computed again" if cell.reused else f"{run.get('wall_seconds', 0):.1f} s"
    order = "figures of the whole first, then points, largest first" if has_points(frame) else "largest first"
    console.print(Text(f"{shown} of {len(frame)} rows, {'all of them' if whole else order}; {state}. Files:"))
    # one path on one line, however narrow the screen is
    typer.echo(f"  {cell.path}/")


def show_cells(out: Path | None) -> int:
    """One line per finished cell."""
    folder = out_folder(out)
    cells = list_cells(folder)
    if not cells:
        typer.echo(f"no cells under {folder}")
    for cell in cells:
        run = cell.run()
        typer.echo(f"{cell.name}  {run.get('rows')} rows  {run.get('schema')}  {run.get('wall_seconds')} s")
    return 0


def show_cell(name: str, top: int, out: Path | None) -> int:
    """Top rows, then the origin."""
    cell = find_cell(out_folder(out), name)
    print_cell(cell, top)
    run = cell.run()
    for key in ("config", "device", "dtype", "threads", "pack", "weights", "tasks", "versions", "commit", "command"):
        typer.echo(f"{key}: {run.get(key)}")
    return 0


def show_comparison(a: str, b: str, top: int, out: Path | None) -> int:
    """Rows of both cells side by side."""
    one, other = (find_cell(out_folder(out), name) for name in (a, b))
    schema = one.schema()
    if schema != other.schema():
        raise UserError(f"{a} is a table of schema {schema.name}, {b} of schema {other.schema().name}")
    left, right = one.table(), other.table()
    both = compare(left, right, schema)
    for name, (x, y) in contrasts(left, right, schema).items():
        typer.echo(f"{name}: {x} (a) against {y} (b)")
    order = both["difference"].abs().sort_values(ascending=False, kind="stable", na_position="first").index
    rows = both.loc[order if top <= 0 else order[:top]]
    grid = Grid(box=None, pad_edge=False)
    for head in ("where", f"{schema.main} a", f"{schema.main} b", "b − a", "found"):
        grid.add_column(head, justify="left" if head in ("where", "found") else "right")
    also = _varying(both, schema)
    for row in rows.to_dict("records"):
        place = label({str(k): v for k, v in row.items() if k in schema.key}, also)
        numbers = [_number(row[k]) for k in (f"{schema.main}_a", f"{schema.main}_b", "difference")]
        grid.add_row(*(Text(t) for t in (place, *numbers, str(row["found"]))))
    _console().print(grid)
    largest = both["difference"].abs().max()
    typer.echo(f"{len(both)} rows; largest difference {_number(largest) or 'none'}; "
               f"only in a: {(both['found'] == 'a').sum()}, only in b: {(both['found'] == 'b').sum()}")  # fmt: skip
    return 0


def export_cell(name: str, to: str, file: Path | None, out: Path | None) -> int:
    """A cell's table as text, or in a file."""
    cell = find_cell(out_folder(out), name)
    if to == "parquet" and file is None:
        raise UserError("--format parquet is no text: give a file with --to")
    text = export(cell.table(), cell.schema(), to, file)
    if text is not None:
        typer.echo(text, nl=False)
    return 0
