"""Typed tables: rows of plain values to a pandas frame of a schema, sorted by its key.

- `typed` builds the frame: unknown columns raise, missing ones are null, infinities become null with the
  reason beside them, a key that occurs twice raises.
- `effect_rows` and `score_rows` turn numbers per prompt into rows with intervals, ratios and p-values.
- `example_rows` keeps the numbers per prompt themselves, for `examples.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp import stats
from interp.registry import UserError, unknown
from interp.results.schemas import ATTRIBUTION, EFFECT, Column, Schema

DTYPES = {"name": "string", "index": "Int64", "number": "float64", "flag": "boolean"}

_KINDS = {"name": "text", "index": "whole numbers", "number": "numbers", "flag": "true or false"}

PROMPT = Column("prompt", "index", "prompt of the task, from 0", key=True)
VALUE = Column("example_value", "number", "the number of this row for this prompt")


@dataclass(frozen=True, eq=False)
class Table:
    """What an experiment returns: a typed frame, and what belongs to it.

    `artifacts` maps a file name to its content: `.safetensors` to a mapping of arrays or tensors, `.json` to
    plain values, any other ending to text or bytes. `notes` goes into run.json.

    >>> table = Table(typed([{"experiment": "mine", "site": "z", "layer": 0, "effect": 0.5, "n": 8}], EFFECT))
    >>> table.frame["effect"].tolist()
    [0.5]
    """

    frame: pd.DataFrame
    schema: Schema = EFFECT
    examples: pd.DataFrame | None = None
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


def typed(rows: Iterable[Mapping[str, Any]] | pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The frame of `schema` with these rows: typed columns in the schema's order, sorted by key.

    Raises UserError for a column that the schema lacks, a value that does not fit its kind, and a key that
    occurs twice.
    """
    given = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame.from_records(list(rows))
    for name in given.columns:
        if name not in schema.names:
            raise unknown(f"column of schema {schema.name}:", name, schema.names)
    columns = {c.name: _column(given, c, schema) for c in schema.columns}
    frame = pd.DataFrame(columns, columns=schema.names)
    frame = _finite(frame, schema)
    return sort_by_key(frame, schema)


def sort_by_key(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Rows in key order, nulls first; a key that occurs twice raises UserError."""
    used = [c for c in schema.key if c in frame and frame[c].notna().any()]
    twice = frame.duplicated(used) if used else pd.Series([False] + [True] * (len(frame) - 1))[: len(frame)]
    if len(frame) and twice.any():
        row = frame[used].iloc[int(np.flatnonzero(twice)[0])].dropna().to_dict()
        raise UserError(f"two rows of the {schema.name} table have the same key: {row}")
    if used and len(frame):
        frame = frame.sort_values(used, na_position="first", kind="stable")
    return frame.reset_index(drop=True)


def _column(given: pd.DataFrame, column: Column, schema: Schema) -> pd.Series[Any]:
    if column.name not in given:
        return pd.Series([pd.NA] * len(given), dtype=DTYPES[column.kind]) if column.kind != "number" else pd.Series(
            np.full(len(given), np.nan)
        )  # fmt: skip
    values = given[column.name].reset_index(drop=True)
    try:
        if column.kind == "number":
            return pd.to_numeric(values.astype(object).where(values.notna(), np.nan)).astype("float64")
        if column.kind == "name" and values.dtype != "string":
            strange = [v for v in values.dropna() if not isinstance(v, str)]
            if strange:
                raise TypeError(f"{strange[0]!r} is no text")
        if column.kind == "index" and values.dtype == object:
            values = pd.Series([pd.NA if pd.isna(v) else v for v in values], dtype="object")
        return values.astype(DTYPES[column.kind])  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError) as e:
        raise UserError(f"column {column.name!r} of schema {schema.name} takes {_KINDS[column.kind]}: {e}") from None


def _finite(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    for name in schema.kinds("number"):
        infinite = np.isinf(frame[name].to_numpy())
        if infinite.any():
            frame.loc[infinite, name] = np.nan
            if "reason" in frame:
                old = frame.loc[infinite, "reason"]
                frame.loc[infinite, "reason"] = (old.fillna("") + f"; {name} was infinite").str.removeprefix("; ")
    return frame


def effect_rows(
    keys: Sequence[Mapping[str, Any]],
    values: Float[np.ndarray, "row prompt"],
    baseline: Float[np.ndarray, "*row prompt"],
    how: stats.Resampling,
    *,
    clean: Float[np.ndarray, " prompt"] | None = None,
    corrupt: Float[np.ndarray, " prompt"] | None = None,
    schema: Schema = EFFECT,
    **constants: Any,
) -> pd.DataFrame:
    """Effects of edits: `values[row, prompt]` is the metric under edit `keys[row]`.

    The effect is value − baseline per prompt; `normalized` needs both `clean` and `corrupt`. `constants` are
    columns that are the same in every row (`experiment="ablation"`, `unit="logits"`, …).
    """
    x = np.asarray(values, dtype=np.float64)
    base = np.asarray(baseline, dtype=np.float64)
    got = stats.summarize(x - base, how)
    held = np.isfinite(x)
    columns = {
        "value": _row_means(x, held), "baseline": _row_means(np.broadcast_to(base, x.shape), held),
        "effect": got.mean, **_spread(got),
    }  # fmt: skip
    return _rows(keys, columns, got, x, how, clean, corrupt, schema, constants)


def score_rows(
    keys: Sequence[Mapping[str, Any]],
    scores: Float[np.ndarray, "row prompt"],
    how: stats.Resampling,
    *,
    clean: Float[np.ndarray, " prompt"] | None = None,
    corrupt: Float[np.ndarray, " prompt"] | None = None,
    schema: Schema = ATTRIBUTION,
    **constants: Any,
) -> pd.DataFrame:
    """Attribution scores per prompt; `normalized` is the score's share of mean clean − mean corrupt."""
    x = np.asarray(scores, dtype=np.float64)
    got = stats.summarize(x, how)
    shifted = None if corrupt is None else x + np.asarray(corrupt, dtype=np.float64)
    return _rows(keys, {"score": got.mean, **_spread(got)}, got, shifted, how, clean, corrupt, schema, constants)


def adjusted(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `p_adjusted` over all its rows: for tables put together from several calls."""
    return frame.assign(p_adjusted=stats.benjamini_hochberg(frame["p_value"].to_numpy()))


def example_rows(
    keys: Sequence[Mapping[str, Any]],
    values: Float[np.ndarray, "row prompt"],
    schema: Schema = EFFECT,
    **constants: Any,
) -> pd.DataFrame:
    """One row per row and prompt: the row's key, the prompt, and the number. NaN (no such token) is left out."""
    x = np.asarray(values, dtype=np.float64)
    row, prompt = np.nonzero(~np.isnan(x))
    wide = pd.DataFrame.from_records([{**constants, **k} for k in keys]).iloc[row].reset_index(drop=True)
    kept = [c for c in schema.key if c in wide]
    long = wide[kept].assign(prompt=prompt, example_value=x[row, prompt])
    return typed(long, examples_schema(schema))[[*kept, "prompt", "example_value"]]


def examples_schema(schema: Schema) -> Schema:
    """Schema of the numbers per prompt that belong to a table of `schema`."""
    return Schema(f"{schema.name}_examples", (*(c for c in schema.columns if c.key), PROMPT, VALUE), VALUE.name)


def _row_means(x: np.ndarray, held: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(held, x, 0.0).sum(1) / held.sum(1))


def _spread(got: stats.Summary) -> dict[str, np.ndarray]:
    return {
        "stderr": got.stderr, "ci_low": got.low, "ci_high": got.high, "p_value": got.p_value,
        "p_adjusted": stats.benjamini_hochberg(got.p_value), "n": got.n,
    }  # fmt: skip


def _why(spread: str | None, share: str | None) -> str | None:
    if share is None or share == spread:
        return spread
    return f"normalized: {share}" if spread is None else f"{spread}; normalized: {share}"


def _rows(
    keys: Sequence[Mapping[str, Any]],
    columns: dict[str, np.ndarray],
    got: stats.Summary,
    x: np.ndarray | None,
    how: stats.Resampling,
    clean: np.ndarray | None,
    corrupt: np.ndarray | None,
    schema: Schema,
    constants: Mapping[str, Any],
) -> pd.DataFrame:
    if len(keys) != len(got.mean):
        raise ValueError(f"{len(keys)} keys for {len(got.mean)} rows of values")
    for name, side in (("clean", clean), ("corrupt", corrupt)):
        if side is not None:
            columns[name] = np.full(len(keys), np.asarray(side, dtype=np.float64).mean())
    reasons: list[str | None] = list(got.reason)
    if x is not None and clean is not None and corrupt is not None:
        share = stats.ratio(x, np.asarray(clean), np.asarray(corrupt), how)
        columns |= {
            "normalized": share.value, "normalized_low": share.low, "normalized_high": share.high,
        }  # fmt: skip
        reasons = [_why(a, b) for a, b in zip(reasons, share.reason, strict=True)]
    frame = pd.DataFrame.from_records([{**constants, **k} for k in keys])
    stated = [c for c in frame.columns if c in columns or c == "reason"]
    if stated:
        raise ValueError(f"column {stated[0]!r} is computed here and cannot be given")
    return typed(frame.assign(**columns, reason=pd.Series(reasons, dtype="string")), schema)
