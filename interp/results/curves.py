"""Rows of the curve schema from numbers per prompt: mean as `value`, with standard error, interval and n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp import stats
from interp.results.frames import typed
from interp.results.schemas import CURVE, Schema


def curve_rows(
    keys: Sequence[Mapping[str, Any]],
    values: Float[np.ndarray, "row prompt"],
    how: stats.Resampling,
    schema: Schema = CURVE,
    **constants: Any,
) -> pd.DataFrame:
    """One row per key; `constants` are columns that are the same in every row."""
    got = stats.summarize(np.asarray(values, dtype=np.float64), how)
    rows = []
    for i, key in enumerate(keys):
        spread = {"value": got.mean[i], "stderr": got.stderr[i], "ci_low": got.low[i], "ci_high": got.high[i]}
        rows.append({**constants, **key, **spread, "n": int(got.n[i]), "reason": got.reason[i]})
    return typed(rows, schema)
