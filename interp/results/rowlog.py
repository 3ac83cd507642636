"""The row log of a long experiment: keyed rows streamed to `rows.jsonl`, and read again after a crash.

One line per row, `{"key": {…}, "row": {…}}`, appended and flushed as it is computed. Reading ignores lines
that do not parse (a torn one at the end, wherever a writer died) and keeps the first row of each key, so
each row is there once. Rows always come back as JSON gives them, so that a resumed run and an undisturbed
one see the same values; floats survive exactly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from interp.results.writing import writing


class RowLog:
    """Keyed rows on disk. Nothing is created before the first row is added.

    >>> import tempfile
    >>> log = RowLog(Path(tempfile.mkdtemp()) / "rows.jsonl")
    >>> log.add({"layer": 0}, {"value": 1.5})
    >>> {"layer": 0} in log, len(log), [key for key in log.missing([{"layer": 0}, {"layer": 1}])]
    (True, 1, [{'layer': 1}])
    """

    def __init__(self, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.settings = dict(settings or {})
        self._rows: dict[str, dict[str, Any]] = {}
        self._parts: dict[str, int] = {}
        self._file: TextIO | None = None
        self._read()

    def _read(self) -> None:
        part = "{}"
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if not isinstance(entry, dict):
                continue
            if "settings" in entry:
                part = canonical(entry["settings"])
            elif "key" in entry and "row" in entry:
                self._keep(entry, part)

    def _keep(self, entry: dict[str, Any], part: str) -> None:
        name = canonical(entry["key"])
        if name not in self._rows:
            self._rows[name] = {"key": entry["key"], "row": entry["row"]}
            self._parts[part] = self._parts.get(part, 0) + 1

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Which settings (device, threads, pack, …) how many rows were computed under."""
        return [{"settings": json.loads(part), "rows": count} for part, count in self._parts.items()]

    def add(self, key: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Append one row; a key that is there already raises ValueError."""
        if key in self:
            raise ValueError(f"row {dict(key)} is in the log already")
        line = json.dumps({"key": key, "row": row}, default=plain)
        with writing(self.path.parent):
            file = self._opened()
            file.write(line + "\n")
            file.flush()
        self._keep(json.loads(line), canonical(self.settings))

    def _opened(self) -> TextIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")
            self._file = self.path.open("a", encoding="utf-8")
            # a line of our own after a torn one, never a continuation of it
            self._file.write(("\n" if torn else "") + json.dumps({"settings": self.settings}, default=plain) + "\n")
        return self._file

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of this key, or None."""
        entry = self._rows.get(canonical(key))
        return None if entry is None else entry["row"]

    def missing(self, keys: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Those of `keys` that have no row yet, in their order."""
        for key in keys:
            if key not in self:
                yield key

    def rows(self) -> list[dict[str, Any]]:
        """All rows, each with its key's fields beside its own, in the order of their keys."""
        entries = [self._rows[name] for name in sorted(self._rows)]
        return [{**e["key"], **e["row"]} for e in entries]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Mapping) and canonical(key) in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Push what was written to the disk itself and let go of the file."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            with writing(self.path.parent):
                file.flush()
                os.fsync(file.fileno())
        finally:
            # on a full disk closing fails once more, over what could not be flushed
            with suppress(OSError):
                file.close()

    def __enter__(self) -> RowLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=plain)


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy or torch as plain Python values; anything else raises TypeError."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
