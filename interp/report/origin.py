"""What a page says in words: the question, what came out, the settings and the origin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.listing import listing
from interp.plots.svg import interval, number, visible
from interp.report.drawing import place
from interp.report.source import Source

_PLACE = ("model", "task", "metric", "split")


def question(experiment: str) -> tuple[str, str]:
    """An experiment's title and question: the first line of its module's docstring, at the colon."""
    about = next((row.about for row in listing("experiments") if row.name == experiment), "")
    head, colon, rest = about.partition(": ")
    if not colon:
        return experiment.replace("_", " ").capitalize(), about
    return head, rest[:1].upper() + rest[1:]


def place_of(source: Source) -> str:
    """`toy-ioi, ioi, logit_diff`: what the table is about."""
    said = []
    for name in _PLACE:
        value = source.run.get(name) or (source.frame[name].iloc[0] if _constant(source.frame, name) else None)
        if value is not None and not pd.isna(value):
            said.append(f"{name} {visible(value)}")
    return ", ".join(said)


def _constant(frame: pd.DataFrame, name: str) -> bool:
    return name in frame and len(frame) > 0 and frame[name].nunique(dropna=False) == 1


def outcome(source: Source) -> str:
    """The largest row in a sentence; nothing for tables without a main number or whose rows are not ranked."""
    main, frame = source.main, source.frame
    if main is None or source.schema.name not in ("effect", "attribution"):
        return ""
    if "site" in frame and "metric" in frame:  # the sum of all parts stands as a row of its own
        frame = frame[(frame["site"] != frame["metric"]).fillna(True)]
    units = frame["unit"].nunique() if "unit" in frame else 1
    if units > 1:
        return ""
    if frame.empty or frame[main].isna().all():
        return ""
    row = frame.iloc[int(frame[main].abs().argmax())].to_dict()
    unit = "" if pd.isna(row.get("unit")) else f" {row['unit']}"
    between = interval(*(row[c] for c in source.confident)) if source.confident else ""
    return f"Largest: {visible(place(row, source))}, {number(row[main])}{unit}{f' {between}' if between else ''}."


def settings(source: Source) -> list[tuple[str, str]]:
    """The config, a line per setting."""
    config = source.run.get("config")
    return [(str(k), _plain(v)) for k, v in config.items()] if isinstance(config, Mapping) else []


def origin(source: Source) -> list[tuple[str, str]]:
    """Where the numbers come from: versions, hashes, device, time."""
    run = source.run
    rows: list[tuple[str, Any]] = [
        ("made by", run.get("command")), ("experiment version", run.get("version")), ("seed", run.get("seed")),
        ("device", run.get("device")), ("dtype", run.get("dtype")), ("threads", run.get("threads")),
        ("edits per pass", run.get("pack")), ("plain passes only", run.get("plain")),
        *((f"weights of {k}", v) for k, v in _mapping(run.get("weights"))),
        *((f"prompts of {k}", v) for k, v in _mapping(run.get("tasks"))),
        *((f"file {k}", v) for k, v in _mapping(run.get("files"))),
        ("versions", ", ".join(f"{k} {v}" for k, v in _mapping(run.get("versions")))),
        ("commit", run.get("commit")), ("wall time", _seconds(run.get("wall_seconds"))),
        ("peak memory", _bytes(run.get("peak_memory_bytes"))), ("reproducible", run.get("reproducible")),
        ("without a registered name", ", ".join(map(str, run.get("unregistered") or []))),
        ("hash of the settings", run.get("hash")),
        *((k, v) for k, v in _mapping(run.get("notes"))),
    ]  # fmt: skip
    return [(name, _plain(value)) for name, value in rows if value not in (None, "", [], {})]


def _mapping(value: Any) -> list[tuple[str, Any]]:
    return [(str(k), v) for k, v in value.items()] if isinstance(value, Mapping) else []


def _plain(value: Any) -> str:
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return visible({"true": "yes", "false": "no", "null": "–"}.get(said, said) if not isinstance(value, str) else said)


def _seconds(value: Any) -> str | None:
    return None if not isinstance(value, (int, float)) else f"{value:.1f} s"


def _bytes(value: Any) -> str | None:
    return None if not isinstance(value, (int, float)) else f"{value / 2**20:.0f} MiB"
