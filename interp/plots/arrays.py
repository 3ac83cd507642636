"""What is given, as float64 arrays of a known shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from interp.registry import UserError


def numbers(given: Any, shape: tuple[int, ...] | None, what: str) -> np.ndarray:
    """An array of float64 of this shape; tensors and pandas' nullable numbers too. UserError otherwise."""
    if hasattr(given, "detach"):
        given = given.detach().cpu().float().numpy()
    if hasattr(given, "to_numpy"):
        given = given.to_numpy(dtype="float64", na_value=np.nan)
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise UserError(f"{what} must be numbers: {e}") from None
    if shape is not None and array.shape != shape:
        raise UserError(f"{what} must have the shape {list(shape)}, got {list(array.shape)}")
    return array


def ends(low: Any, high: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the intervals; NaN where none are given."""
    empty = np.full(shape, np.nan)
    return (
        empty if low is None else numbers(low, shape, "low"),
        empty if high is None else numbers(high, shape, "high"),
    )


def scale_limit(*arrays: np.ndarray) -> float:
    """The largest size of any finite value, at least something above 0: where a scale centred at 0 ends."""
    sizes = [float(np.nanmax(np.abs(a), initial=0.0, where=np.isfinite(a))) for a in arrays if a.size]
    return max([*sizes, 0.0]) or 1.0
