"""Numbers one under the other: a dot each, its 95% interval as a line, the zero line through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.plots.arrays import ends, numbers
from interp.plots.axes import Scale, padded
from interp.plots.figure import Figure
from interp.plots.svg import drawing, hover, interval, line, number, short, text, tip, width_of
from interp.registry import UserError

MOST = 200
ROW = 24.0
LINE = 44
"""Characters of a label on one line."""


def bars(
    values: Any,
    labels: Sequence[object],
    *,
    low: Any = None,
    high: Any = None,
    title: str = "",
    unit: str = "",
    about: str = "",
    limits: tuple[float, float] | None = None,
    between: str = "95%",
) -> Figure:
    """Draw `values[i]` beside `labels[i]`, in the order given; `between` says what low and high are.

    UserError where shapes differ or there are over 200 rows.

    >>> bars([2.0, -1.0], ["a1.h0", "m2"], low=[1.5, -1.2], high=[2.5, -0.8]).svg.startswith("<svg")
    True
    """
    shape = (len(labels),)
    if not 0 < shape[0] <= MOST:
        raise UserError(f"{shape[0]} rows cannot be drawn as bars: between 1 and {MOST}")
    array = numbers(values, shape, "values")
    lows, highs = ends(low, high, shape)
    every = np.concatenate([array, lows, highs, [0.0]])
    every = every[np.isfinite(every)]
    span = limits or padded(float(every.min()), float(every.max()), 0.04)
    parts = (array, lows, highs, [str(name) for name in labels], span, (unit, between), title)
    return Figure(_draw(*parts, 640.0, False), title, about, narrow=_draw(*parts, 330.0, True))


def _draw(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, labels: list[str], span: tuple[float, float],
    said_as: tuple[str, str], title: str, width: float, stacked: bool,
) -> str:  # fmt: skip
    """Labels stand left of the bars, or over them where it is narrow."""
    unit, between = said_as
    beside = 6.0 if stacked else min(300.0, max(width_of(short(n, LINE), 10.5) for n in labels) + 14)
    numbers_said = [
        " ".join(p for p in (number(v), interval(a, b)) if p) for v, a, b in zip(values, low, high, strict=True)
    ]
    said = max(width_of(s, 10.5) for s in numbers_said) + 12
    x = Scale(*span, beside + 4, width - (10 if stacked else said))
    two = not stacked and any(len(n) > LINE for n in labels)
    row = ROW * (1.75 if stacked else 1.5 if two else 1.0)
    top = 8.0
    bottom = top + row * len(labels)
    body = []
    for t in x.ticks(4 if stacked else 6):
        body.append(line(x(t), top, x(t), bottom, "axis" if t == 0 else "rule"))
        body.append(text(x(t), bottom + 15, number(t), "dim small mid"))
    if unit:
        body.append(text((x.start + x.end) / 2, bottom + 31, unit, "dim small mid"))
    for i, name in enumerate(labels):
        y = top + row * i + (row * 0.72 if stacked else row / 2)
        first, second = (short(name, LINE), "") if stacked or len(name) <= LINE else _halves(name)
        body.append(text(6, y - (12 if stacked else 3 if second else -4), first, "ink small halo"))
        if second:
            body.append(text(6, y + 11, second, "ink small"))
        value = numbers_said[i]
        if stacked:
            body.append(text(width - 4, y - 12, value, "dim small end halo"))
        else:
            body.append(text(width - said + 8, y + 4, value, "dim small"))
        body += _mark(values[i], low[i], high[i], x, y, tip(name, values[i], low[i], high[i], unit, between), i)
    return drawing(width, bottom + (40 if unit else 24), body, title or "numbers with intervals")


def _halves(name: str) -> tuple[str, str]:
    """A long label on two lines, broken at a space where there is one; the second is cut."""
    at = name.rfind(" ", LINE // 2, LINE)
    at = at if at > 0 else LINE
    return name[:at], short(name[at:].strip(), LINE)


def _mark(value: float, low: float, high: float, x: Scale, y: float, said: str, i: int) -> list[str]:
    if not np.isfinite(value):
        return []
    sign = "down" if value < 0 else "up"
    zero = min(max(x(0.0) if not x.log else x.start, x.start), x.end)
    y, middle = round(y, 1), f"{x(value):.1f}"
    parts = [f'<line x1="{zero:.1f}" y1="{y}" x2="{middle}" y2="{y}" class="{sign}" stroke-width="7" opacity=".35"/>']
    if np.isfinite(low) and np.isfinite(high):
        parts.append(f'<line x1="{x(low):.1f}" y1="{y}" x2="{x(high):.1f}" y2="{y}" class="{sign} ci"/>')
    dot = f'<circle cx="{middle}" cy="{y}" r="4" class="point {sign}fill" data-at="{i},0">{hover(said)}</circle>'
    return [*parts, dot]
