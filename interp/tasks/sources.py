"""Rows of a table, one at a time: CSV and TSV, JSON lines, a JSON array, frames, or any rows of mappings.

Files are streamed, in UTF-8 (with or without a byte-order mark) or UTF-16. Nothing is cached: a file changed
in place is read anew, and its digest is of the bytes read.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.registry import UserError

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
Row = Mapping[str, Any]


def is_file_name(name: str | Path) -> bool:
    """A path object, a name with a table's suffix, or a name with a folder in it.

    >>> is_file_name("pairs.csv"), is_file_name("./ioi"), is_file_name("ioi")
    (True, True, False)
    """
    if isinstance(name, Path):
        return True
    return Path(name).suffix.lower() in SUFFIXES or "/" in name or "\\" in name


@dataclass(frozen=True)
class Broken:
    """A row that could not be read, and why."""

    reason: str


@dataclass(frozen=True)
class Source:
    """A table: its rows, and what is known of them before reading."""

    name: str
    rows: Iterable[Row | Broken]
    columns: tuple[str, ...] | None = None
    """Column names where the format has them up front, else None."""
    text_cells: bool = False
    """Cells come as text only, so that numbers and lists in them must be recognised."""
    digest: str | None = None
    """sha256 of the file."""


def open_source(table: Any) -> Source:
    """A source from a path, a frame, or an iterable of mappings. UserError where it is none of them."""
    if isinstance(table, str | Path):
        return _file(Path(table))
    if hasattr(table, "itertuples") and hasattr(table, "columns"):
        columns = _each_once("frame", [str(c) for c in table.columns])
        values = table.itertuples(index=False, name=None)
        return Source("frame", (dict(zip(columns, v, strict=True)) for v in values), columns)
    if isinstance(table, Iterable) and not isinstance(table, Mapping | bytes):
        return Source("table", _mappings(table))
    raise UserError(
        f"a table is a CSV or JSON-lines file, a frame, or a list of rows (dicts); got {type(table).__name__}"
    )


def _mappings(rows: Iterable[Any]) -> Iterator[Row | Broken]:
    for row in rows:
        yield row if isinstance(row, Mapping) else Broken(f"is a {type(row).__name__}, not a dict")


def _file(path: Path) -> Source:
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name no file can have
        raise UserError(f"no such file: {path}")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path.name}: a table's name ends in one of {', '.join(SUFFIXES)}")
    with path.open("rb") as f:
        head = f.read(4096)
        f.seek(0)
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    encoding = _encoding(head)
    if not head.decode(encoding, "ignore").strip():
        raise UserError(f"{path.name} is empty")
    if path.suffix.lower() in (".csv", ".tsv"):
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        columns = _header(path, encoding, delimiter)
        return Source(path.name, _csv_rows(path, encoding, delimiter), columns, True, digest)
    array = head.decode(encoding, "ignore").lstrip().startswith("[")
    rows = _json_array(path, encoding) if array else _json_lines(path, encoding)
    return Source(path.name, rows, digest=digest)


def _encoding(head: bytes) -> str:
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    # without a mark, UTF-16 text of this alphabet has a zero in every other byte
    if len(head) >= 4 and head[1] == head[3] == 0:
        return "utf-16-le"
    if len(head) >= 4 and head[0] == head[2] == 0:
        return "utf-16-be"
    return "utf-8-sig"


def _header(path: Path, encoding: str, delimiter: str) -> tuple[str, ...]:
    with path.open(encoding=encoding, newline="") as f, _reading(path):
        names = next((row for row in csv.reader(f, delimiter=delimiter) if any(row)), [])
    return _each_once(path.name, names)


def _each_once(name: str, columns: list[str]) -> tuple[str, ...]:
    twice = sorted(column for column, times in Counter(columns).items() if times > 1)
    if twice:
        more = f" and {len(twice) - 10} more" if len(twice) > 10 else ""
        raise UserError(f"{name}: column names occur twice: {', '.join(map(repr, twice[:10]))}{more}")
    return tuple(columns)


def _csv_rows(path: Path, encoding: str, delimiter: str) -> Iterator[Row | Broken]:
    with path.open(encoding=encoding, newline="") as f, _reading(path):
        header: list[str] | None = None
        for cells in csv.reader(f, delimiter=delimiter):
            if not any(cells):
                continue
            if header is None:
                header = cells
            elif len(cells) != len(header):
                yield Broken(f"does not have as many cells as the header has columns ({len(header)})")
            else:
                yield dict(zip(header, cells, strict=True))


def _json_lines(path: Path, encoding: str) -> Iterator[Row | Broken]:
    with path.open(encoding=encoding) as f, _reading(path):
        for line in f:
            if line.strip():
                yield _json_row(line)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; UserError where a key is given twice, which JSON lets pass."""
    held = dict(pairs)
    if len(held) < len(pairs):
        raise UserError(f"gives {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} more than once")
    return held


def _json_row(line: str) -> Row | Broken:
    try:
        row = json.loads(line, object_pairs_hook=_once)
    except UserError as e:
        return Broken(str(e))
    except (ValueError, RecursionError):
        return Broken("is not JSON")
    return row if isinstance(row, dict) else Broken("is not a JSON object")


def _json_array(path: Path, encoding: str) -> Iterator[Row | Broken]:
    with path.open(encoding=encoding) as f, _reading(path):
        try:
            rows = json.load(f, object_pairs_hook=_once)
        except UserError as error:
            raise UserError(f"{path.name}: a row {error}") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{path.name} begins with '[' but is not a JSON array: {error}") from error
    for row in rows:
        if isinstance(row, list):
            yield {str(i): cell for i, cell in enumerate(row)}
        else:
            yield row if isinstance(row, dict) else Broken("is not a JSON object")


class _reading:  # noqa: N801 - a context manager, read as a verb
    """Turns the decoder's and the CSV reader's errors into one line that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnicodeError):
            raise UserError(f"{self.path.name} is neither UTF-8 nor UTF-16: {error}") from error
        if isinstance(error, csv.Error):
            raise UserError(f"{self.path.name} is not CSV: {error}") from error
