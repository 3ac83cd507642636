"""Curves over x, one per series, with their 95% bands; hovering over a point shows its number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from interp.plots.arrays import numbers
from interp.plots.axes import Scale, padded
from interp.plots.axes import frame as plot_frame
from interp.plots.colours import LINE_STYLES
from interp.plots.figure import Figure
from interp.plots.svg import drawing, hover, number, short, text, tip, width_of
from interp.registry import UserError

WIDE = (520.0, 240.0)
NARROW = (330.0, 220.0)
MOST_SERIES = 14
MARKED = 60
"""Curves of at most this many points get a mark at each."""


@dataclass(frozen=True, eq=False)
class _Curve:
    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def lines(
    frame: pd.DataFrame,
    *,
    x: str = "x",
    y: str = "value",
    series: str = "series",
    low: str = "ci_low",
    high: str = "ci_high",
    title: str = "",
    unit: str = "",
    x_title: str = "",
    log_x: bool | None = None,
    about: str = "",
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw column `y` over column `x`, one curve per value of `series`; absent `series`, `low`, `high` are left out.

    `log_x=None` takes a logarithmic axis where x is positive and spans a factor of 50. `limits` fixes the y axis.
    UserError where x or y is no column, there is no point, or there are more than 14 series.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"x": [0, 1, 2], "value": [0.1, 0.4, 0.9], "series": "head 0"})
    >>> lines(frame, title="by layer").svg.startswith("<svg")
    True
    """
    curves = _curves(frame, x, y, series, low, high)
    every = np.concatenate([c.x for c in curves])
    log = bool(every.min() > 0 and every.max() / every.min() >= 50) if log_x is None else log_x
    if log and every.min() <= 0:
        raise UserError(f"a logarithmic axis needs x above 0, got {every.min():g}")
    parts = (curves, log, title, unit, x_title or x, limits)
    return Figure(_draw(*parts, WIDE), title, about, narrow=_draw(*parts, NARROW))


def _curves(frame: pd.DataFrame, x: str, y: str, series: str, low: str, high: str) -> list[_Curve]:
    for name in (x, y):
        if name not in frame:
            raise UserError(f"there is no column {name!r} to draw; there are: {', '.join(map(str, frame.columns))}")
    columns = {k: numbers(frame[c], (len(frame),), c) if c in frame else np.full(len(frame), np.nan)
               for k, c in {"x": x, "y": y, "low": low, "high": high}.items()}  # fmt: skip
    said = frame[series].tolist() if series in frame else [""] * len(frame)
    names = ["" if pd.isna(n) else str(n) for n in said]
    held = np.isfinite(columns["x"]) & np.isfinite(columns["y"])
    curves = []
    for name in dict.fromkeys(n for n, h in zip(names, held, strict=True) if h):
        # compared one by one: numpy cuts zero bytes off the ends of texts
        mine = np.flatnonzero(held & [n == name for n in names])
        mine = mine[np.argsort(columns["x"][mine], kind="stable")]
        curves.append(_Curve(name, *(columns[k][mine] for k in ("x", "y", "low", "high"))))
    if not curves:
        raise UserError(f"there is no point with both {x} and {y} to draw")
    if len(curves) > MOST_SERIES:
        raise UserError(f"{len(curves)} curves are too many for one figure: at most {MOST_SERIES}")
    return curves


def _draw(
    curves: list[_Curve], log: bool, title: str, unit: str, x_title: str, limits: tuple[float, float] | None,
    size: tuple[float, float],
) -> str:  # fmt: skip
    width, height = size
    legend, used = _legend(curves, width)
    top = used + 26
    heights = np.concatenate([v for c in curves for v in (c.y, c.low, c.high)])
    heights = heights[np.isfinite(heights)]
    least, most = limits or padded(float(heights.min()), float(heights.max()))
    places = np.concatenate([c.x for c in curves])
    margin = 1.0 if log else float(places.max() - places.min()) * 0.02 or 0.5
    lowest, highest = float(places.min()), float(places.max())
    x_ends = (lowest / 1.05, highest * 1.05) if log else (lowest - margin, highest + margin)
    left = max(width_of(number(t, 4), 10.5) for t in (*Scale(least, most, 0, 1).ticks(), 0)) + 14
    x = Scale(*x_ends, left, width - 10, log)
    y = Scale(least, most, top + height, top)
    narrow = width < 500
    body = [*legend, *plot_frame(x, y, x_title, unit, 4 if narrow else 6, 4 if narrow else 5)]
    for i, curve in enumerate(curves):
        body += _curve(curve, i % LINE_STYLES, x, y, x_title, unit)
    return drawing(width, top + height + 42, body, title or "curves")


def _curve(curve: _Curve, style: int, x: Scale, y: Scale, x_title: str, unit: str) -> list[str]:
    body = []
    banded = np.isfinite(curve.low) & np.isfinite(curve.high)
    if banded.sum() > 1:
        there = [(x(a), y(b)) for a, b in zip(curve.x[banded], curve.high[banded], strict=True)]
        back = [(x(a), y(b)) for a, b in zip(curve.x[banded], curve.low[banded], strict=True)]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*there, *back[::-1]])
        body.append(f'<polygon points="{points}" class="band f{style}"/>')
    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(curve.x, curve.y, strict=True))
    body.append(f'<polyline points="{points}" class="line s{style}"/>')
    if len(curve.x) > MARKED:
        return body
    for a, b, lo, hi in zip(curve.x, curve.y, curve.low, curve.high, strict=True):
        where = " · ".join(p for p in (curve.name, f"{x_title} {number(a, 5)}") if p)
        body.append(
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" class="point f{style}" data-at="{style},{number(a, 6)}">'
            f"{hover(tip(where, b, lo, hi, unit))}</circle>"
        )
    return body


def _legend(curves: list[_Curve], width: float) -> tuple[list[str], float]:
    """Names with their strokes, in rows; the height they use."""
    if len(curves) == 1 and not curves[0].name:
        return [], 0.0
    body: list[str] = []
    x, y = 8.0, 14.0
    for i, curve in enumerate(curves):
        name = short(curve.name or "–", 40)
        room = 40 + width_of(name)
        if x > 8 and x + room > width:
            x, y = 8.0, y + 18
        body.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" class="line s{i % LINE_STYLES}"/>')
        body.append(text(x + 30, y, name, "ink small"))
        x += room
    return body, y
