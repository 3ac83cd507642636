"""`collect`: one tidy table over all finished cells of a sweep.

Columns are the union of the cells' own, in the schemas' order, after `cell` (its folder) and the settings that
differ between cells and are no columns yet (`set.<name>`, JSON where they are no plain value). What a cell's
table does not have is null. Rows stand in the order of the sweep's cells, then of their tables.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.registry import UserError
from interp.sweep.plan import published
from interp.sweep.state import State
from interp.sweep.status import kept_or_error

if TYPE_CHECKING:
    import pyarrow as pa

THREADS = 4


def collect(state: State) -> pa.Table:
    """The table over all finished cells. Raises UserError where none is finished or one cannot be read."""
    kept = kept_or_error(state)
    done = published(state.out, ((c["key"], c["place"]) for c in kept.cells))
    cells = [c for c in kept.cells if c["key"] in done]
    if not cells:
        raise UserError(f"sweep {state.name}: no cell is finished under {state.out}")
    with ThreadPoolExecutor(THREADS) as pool:
        tables = list(pool.map(_read, [state.out / c["place"] / "table.parquet" for c in cells]))
    return _together(cells, tables)


def _read(path: Path) -> tuple[pa.Table, pa.Schema]:
    """A table without its columns that are all null (most of them are, and reading them is most of the work)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow.remove_metadata()
            names = [name for i, name in enumerate(schema.names) if not _all_null(file.metadata, i)]
            return file.read(columns=names, use_threads=False).replace_schema_metadata(None), schema
    except (pa.ArrowException, OSError, ValueError) as e:
        told = str(e).splitlines()[0][:200]
        raise UserError(f"{path} cannot be read: {told}; `interp sweep run` computes it again") from None


def _all_null(metadata: Any, column: int) -> bool:
    """Whether the file's own statistics say that a column holds nothing."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        found = rows.column(column).statistics
        if found is None or not found.has_null_count or found.null_count != rows.num_rows:
            return False
    return True


def _together(cells: Sequence[Mapping[str, Any]], read: Sequence[tuple[pa.Table, pa.Schema]]) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    schema = pa.unify_schemas(list({tuple(s.names): s for _, s in read}.values()), promote_options="permissive")
    filled = pa.concat_tables([t for t, _ in read], promote_options="permissive")
    index = pa.array(np.repeat(np.arange(len(cells), dtype=np.int32), [t.num_rows for t, _ in read]))

    def spread(values: Sequence[Any]) -> pa.Array:
        return pa.array(values, pa.string()).take(index)

    columns = {"cell": spread([c["place"] for c in cells])}
    for name in _varying(cells):
        if name not in schema.names:
            columns[f"set.{name}"] = spread([_plain(c["config"].get(name)) for c in cells])
    for field in schema:
        present = field.name in filled.column_names
        columns[field.name] = filled.column(field.name) if present else pa.nulls(len(filled), field.type)
    return pa.table(columns)


def _varying(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for c in cells for name in c["config"])
    return [n for n in names if len({_plain(c["config"].get(n)) for c in cells}) > 1]


def _plain(value: Any) -> str | None:
    """A setting as text: one column may hold a name in one cell and a list in another."""
    return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True)


def write_table(table: pa.Table, path: Path) -> None:
    """Write it as Parquet or, by the file's ending, as CSV; by one rename."""
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if path.suffix == ".csv":
            csv.write_csv(table, made)
        else:
            pq.write_table(table, made, compression="zstd")
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)
