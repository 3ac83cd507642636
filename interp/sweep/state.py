"""What a sweep keeps beside its cells, in `<out>/.sweep/<name>/`, and the two operations all of it rests on.

    plan.jsonl                the cells as last planned by `run`; what `status` reads
    failed/<key>.json         a failed cell: error, traceback, where its log lies
    logs/<key>.log            what a cell wrote to standard output and error
    events/<owner>.jsonl      what each worker did, and the digest of every table it published
    jobs/<id>.json            cluster jobs and the cells they were given
    runs/<id>.json            one `sweep run`: workers, wall time, overhead
    groups/<array>-<n>.jsonl  cells of a cluster job, as `interp run --cells` reads them

A file appears whole, by a rename, or is created exclusively; nothing else is relied on, so that a network
file system will do. None of it decides whether a cell is done: that is the cell's own folder alone.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from interp.registry import UserError

FOLDER = ".sweep"


class State:
    """Paths and records of one sweep under one results folder. Making one creates nothing."""

    def __init__(self, out: Path, name: str) -> None:
        self.out = out
        self.name = name
        self.folder = out / FOLDER / name

    def at(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    @property
    def plan_file(self) -> Path:
        return self.at("plan.jsonl")

    def log(self, key: str) -> Path:
        return self.at("logs", f"{key}.log")

    def create(self) -> None:
        """Make the folders; a place that cannot be written raises UserError."""
        try:
            for name in ("failed", "logs", "events", "jobs", "runs", "groups"):
                self.at(name).mkdir(parents=True, exist_ok=True)
            write_atomic(self.at(".gitignore"), b"*\n")
        except OSError as e:
            raise UserError(f"results cannot be written to {self.out}: {e.strerror or e}") from None

    # --- failed cells --------------------------------------------------------------------------------------

    def fail(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep why a cell failed; every record is told apart from the one before it by its `id`."""
        write_json(self.at("failed", f"{key}.json"), {**record, "id": secrets.token_hex(4)})

    def clear(self, key: str) -> None:
        """Forget that a cell failed."""
        try:
            os.unlink(self.at("failed", f"{key}.json"))
        except OSError:
            return

    def failed(self) -> dict[str, dict[str, Any]]:
        """Records of failed cells, by key."""
        return dict(records(self.at("failed")))

    # --- published tables ----------------------------------------------------------------------------------

    def digests(self) -> dict[str, dict[str, Any]]:
        """Digests of what workers published, by key: the last one of each."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.at("events").glob("*.jsonl")):
            for entry in read_lines(path):
                if entry.get("state") == "done" and "table" in entry:
                    found[str(entry.get("key"))] = entry
        return found


def write_atomic(path: Path, data: bytes) -> None:
    """Put a file there whole, by a rename. On failure nothing is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with made.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(made, path)
    except OSError:
        made.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False, default=str).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none (absent, half written by a dying disk, no object)."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every JSON object in a folder."""
    try:
        names = sorted(e.name for e in os.scandir(folder) if e.name.endswith(".json") and not e.name.startswith("."))
    except OSError:
        return
    for name in names:
        value = read_json(folder / name)
        if value is not None:
            yield name.removesuffix(".json"), value


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSON-lines file; a torn last line is passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
