"""Whether a published cell is whole, and what is done with one that is not.

A table whose worker noted its digest must have it, as long as run.json is the one that was published with it;
any other table must be readable to its last row and have as many rows as run.json says. A broken cell is
moved aside (`.broken-…`, by one rename) and computed again; nothing is deleted.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interp.sweep.state import read_json


def digests(cell: Path) -> dict[str, str]:
    """sha256 of a cell's table and run.json."""
    found = {}
    for name in ("table.parquet", "run.json"):
        with (cell / name).open("rb") as file:
            found[name.partition(".")[0]] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def broken(cell: Path, noted: Mapping[str, Any] | None = None) -> str | None:
    """What is wrong with a published cell; None where it is whole."""
    run = read_json(cell / "run.json")
    if run is None:
        return "run.json cannot be read"
    try:
        now = digests(cell)
    except OSError as e:
        return f"{Path(e.filename or cell).name}: {e.strerror}"
    if noted and noted.get("run") == now["run"]:
        return None if noted.get("table") == now["table"] else "table.parquet is not what was published"
    return _unreadable(cell / "table.parquet", run.get("rows"))


def _unreadable(path: Path, rows: Any) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as e:
        return f"table.parquet cannot be read: {str(e).splitlines()[0][:200]}"
    if rows is not None and table.num_rows != rows:
        return f"table.parquet has {table.num_rows} rows, run.json says {rows}"
    return None


def put_aside(cell: Path, noted: Mapping[str, Any] | None = None) -> bool:
    """Move a broken cell out of its place; False where another did it first."""
    aside = cell.with_name(f".broken-{cell.name}-{secrets.token_hex(4)}")
    try:
        os.rename(cell, aside)
    except OSError:
        if cell.exists():
            raise
        return False
    if broken(aside, noted) is None:
        # between the look and the move another put a whole one there: it goes back
        try:
            os.rename(aside, cell)
        except OSError:
            return False
        return False
    return True
