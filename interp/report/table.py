"""A table as data for the page's script: columns that say something, each as compactly as it goes.

Text columns are a dictionary and codes, numbers are rounded to six digits. Columns that are the same in every row
become a line above the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from interp.plots.svg import visible
from interp.report.source import Source

DIGITS = 6
_LAST = ("n", "unit", "seed", "reason")
_SPREAD = ("stderr", "p_value")


@dataclass(frozen=True)
class TableData:
    """`payload` for the script; `constants` as (name, value, meaning) for the reader."""

    payload: dict[str, Any]
    constants: list[tuple[str, str, str]]


def table_data(source: Source, drawn: list[tuple[str, str, str]] | None = None, sort: str | None = None) -> TableData:
    """Columns in reading order: what varies in the key, the main number with its interval drawn, the rest.

    `drawn` lists further (number, low, high) columns whose intervals are drawn; `sort` is sorted by size at first.
    """
    frame = source.frame
    about = {c.name: c.about for c in source.schema.columns}
    intervals = list(drawn or [])
    if source.main and source.ends and not intervals:
        intervals = [(source.main, *source.ends)]
    constants, shown = [], []
    for name in frame.columns:
        column = frame[name]
        if column.isna().all():
            continue
        if len(frame) > 1 and column.nunique(dropna=False) == 1 and name not in {n for i in intervals for n in i}:
            constants.append((str(name), _said(column.iloc[0]), about.get(str(name), "")))
        else:
            shown.append(str(name))
    ordered = _order(shown, source, [i[0] for i in intervals])
    ranged = {number: (low, high) for number, low, high in intervals}
    inside = {end for i in intervals for end in i[1:]}
    columns = [_column(frame[n], n, about.get(n, "")) for n in ordered if n not in inside or n in ranged]
    for column in columns:
        ends = ranged.get(column["name"])
        if ends and all(e in frame for e in ends):
            column["low"], column["high"] = (_numbers(frame[e]) for e in ends)
    by_size = sort or (source.main if source.schema.name != "curve" and source.main else None)
    return TableData({"rows": len(frame), "columns": columns, "sort": by_size}, constants)


def _order(shown: list[str], source: Source, intervals: list[str]) -> list[str]:
    key = [c for c in source.schema.key if c in shown and c not in _LAST]
    middle = [c for c in (*intervals, source.main) if c in shown and c not in key]
    rest = [c for c in shown if c not in key and c not in middle and c not in _LAST and c not in _SPREAD]
    flags = [c for c in rest if c in source.schema.kinds("flag")]
    late = [c for c in (*_SPREAD, *_LAST) if c in shown]
    found = [*key, *flags, *middle, *(c for c in rest if c not in flags), *late]
    return list(dict.fromkeys(found))


def _column(values: pd.Series[Any], name: str, about: str) -> dict[str, Any]:
    head = {"name": name, "about": about}
    if values.dtype == "float64":
        return {**head, "kind": "number", "values": _numbers(values)}
    if values.dtype == "Int64":
        return {**head, "kind": "index", "values": [None if pd.isna(v) else int(v) for v in values]}
    codes, words = pd.factorize(values.astype("string"), use_na_sentinel=True)
    return {**head, "kind": "text", "words": [visible(w) for w in words], "codes": codes.tolist()}


def _numbers(values: pd.Series[Any]) -> list[float | None]:
    return [_rounded(float(v)) for v in values.to_numpy(dtype="float64", na_value=math.nan)]


def _rounded(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def _said(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else visible(value)
