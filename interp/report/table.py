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
HALF = 0.5
"""Key columns filled in fewer of the rows come after the numbers, so that these stay in view."""
SPARSE = 0.1
"""Columns filled in fewer of the rows than this share come last."""
_LAST = ("n", "unit", "seed", "reason")
_BESIDE = (("normalized", "normalized_low", "normalized_high"), ("ratio", "ratio_low", "ratio_high"))
"""Further numbers with intervals of their own, which are written and not drawn."""
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
    intervals = list(drawn or ([(source.main, *source.ends)] if source.main and source.ends else []))
    beside = [i for i in _BESIDE if all(c in frame and frame[c].notna().any() for c in i)]
    ranged = {number: ends for number, *ends in [*intervals, *beside]}
    inside = {end for ends in ranged.values() for end in ends}
    constants, shown = [], []
    for name in map(str, frame.columns):
        column = frame[name]
        if column.isna().all():
            continue
        if len(frame) > 1 and column.nunique(dropna=False) == 1 and name not in ranged and name not in inside:
            constants.append((name, _said(column.iloc[0]), about.get(name, "")))
        else:
            shown.append(name)
    columns = []
    for name in _order(shown, source, list(ranged)):
        if name in inside:
            continue
        columns.append(_column(frame[name], name, about.get(name, "")))
        if name in ranged:
            low, high = (_numbers(frame[end]) for end in ranged[name])
            columns[-1] |= {"low": low, "high": high, "drawn": any(i[0] == name for i in intervals)}
            columns[-1]["between"] = source.between(*ranged[name])
    by_size = sort or (source.main if source.schema.name != "curve" and source.main else None)
    return TableData({"rows": len(frame), "columns": columns, "sort": by_size}, constants)


def _order(shown: list[str], source: Source, intervals: list[str]) -> list[str]:
    key = [c for c in source.schema.key if c in shown and c not in _LAST]
    middle = [c for c in (*intervals, source.main) if c in shown and c not in key]
    rest = [c for c in shown if c not in key and c not in middle and c not in _LAST and c not in _SPREAD]
    flags = [c for c in rest if c in source.schema.kinds("flag")]
    late = [c for c in (*_SPREAD, *_LAST) if c in shown]
    where = [c for c in key if source.frame[c].notna().mean() >= HALF]
    partly = [c for c in key if c not in where]
    found = [*where, *flags, *middle, *partly, *(c for c in rest if c not in flags), *late]
    sparse = [c for c in found if source.frame[c].notna().mean() < SPARSE]
    found = [*(c for c in found if c not in sparse), *sparse]
    return list(dict.fromkeys(found))


def _column(values: pd.Series[Any], name: str, about: str) -> dict[str, Any]:
    head = {"name": name, "about": about}
    if values.dtype == "float64":
        return {**head, "kind": "number", "values": _numbers(values)}
    if values.dtype == "Int64":
        return {**head, "kind": "index", "values": [None if pd.isna(v) else int(v) for v in values]}
    if values.dtype == "boolean":
        values = values.map({True: "yes", False: "no"})
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
