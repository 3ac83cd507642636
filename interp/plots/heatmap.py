"""A heat map: values over rows × columns, on a scale centred at 0, with a legend of the scale.

A cell shows its value where there is room; hovering (or the arrow keys, in a page) shows value and interval. A dot
marks cells whose interval includes 0. Cells without a value are dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.plots.arrays import ends, numbers, scale_limit
from interp.plots.colours import STEPS, level, strong
from interp.plots.figure import Figure
from interp.plots.svg import drawing, hover, number, short, text, tip, width_of
from interp.registry import UserError

MOST_CELLS = 12_000
ROOM_FOR_VALUE = 40
LEGEND = 200


def heatmap(
    values: Any,
    rows: Sequence[object],
    columns: Sequence[object],
    *,
    low: Any = None,
    high: Any = None,
    title: str = "",
    unit: str = "",
    row_title: str = "",
    column_title: str = "",
    limit: float | None = None,
    about: str = "",
) -> Figure:
    """Draw `values[row, column]`; `low` and `high` are the intervals' ends, NaN where there is no number.

    `limit` ends the scale at ±limit (the largest size by default): give several maps the same one to compare them.
    UserError where shapes differ, or for more than 12,000 cells.

    >>> heatmap([[0.5, -0.25]], ["layer 0"], ["head 0", "head 1"], title="effects").svg.startswith("<svg")
    True
    """
    shape = (len(rows), len(columns))
    if shape[0] * shape[1] > MOST_CELLS:
        raise UserError(f"a heat map of {shape[0]} × {shape[1]} is too large to draw: at most {MOST_CELLS} cells")
    array = numbers(values, shape, "values")
    lows, highs = ends(low, high, shape)
    end = limit or scale_limit(array)
    names = [short(c, 14) for c in columns]
    turned = any(len(n) > 4 for n in names)
    wide = max(22.0, min(56.0, 400 / max(1, len(columns))))
    tall = max(18.0, min(28.0, 420 / max(1, len(rows))))
    left = min(150.0, max([width_of(short(r, 22)) for r in rows] + [width_of(row_title, 10.5)])) + 12
    top = (max(width_of(n, 10.5) for n in names) * 0.75 + 14 if turned else 20.0) + (16 if column_title else 0)
    body = _axes(rows, names, columns, (left, top, wide, tall), turned, row_title, column_title)
    uncertain = False
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            v, lo, hi = array[i, j], lows[i, j], highs[i, j]
            said = hover(tip(_place(row_title, row, column_title, column), v, lo, hi, unit))
            x, y = left + j * wide, top + i * tall
            body.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" rx="2"'
                f' class="cell {level(v, end)}" data-at="{i},{j}">{said}</rect>'
            )
            colour = "on" if strong(v, end) else "ink"
            if np.isfinite(v) and wide >= ROOM_FOR_VALUE:
                body.append(_still(text(x + wide / 2, y + tall / 2 + 4, number(v, 2), f"{colour} small mid")))
            if np.isfinite(v) and lo <= 0 <= hi:
                body.append(f'<circle cx="{x + wide - 5:.1f}" cy="{y + 5:.1f}" r="1.6" class="{colour} quiet"/>')
                uncertain = True
    bottom = top + len(rows) * tall
    body += _legend(left, bottom + 14, end, unit, uncertain, bool((array < 0).any()))
    width = max(
        left + len(columns) * wide + (30 if turned else 6), left + LEGEND + 16 + width_of(short(unit, 24), 10.5)
    )
    return Figure(
        drawing(width, bottom + 52 + (18 if uncertain else 0), body, title or "heat map", "plot grid"), title, about
    )


def _place(row_title: str, row: object, column_title: str, column: object) -> str:
    return f"{row_title} {row} · {column_title} {column}".replace("  ", " ").strip()


def _still(element: str) -> str:
    """Text on a cell must not catch the pointer."""
    return element.replace("<text ", '<text pointer-events="none" ', 1)


def _axes(
    rows: Sequence[object], names: Sequence[str], columns: Sequence[object], at: tuple[float, float, float, float],
    turned: bool, row_title: str, column_title: str,
) -> list[str]:  # fmt: skip
    left, top, wide, tall = at
    body = [text(left, 11, column_title, "dim small")] if column_title else []
    if row_title:
        body.append(text(left - 6, top - 6, row_title, "dim small end"))
    for i, row in enumerate(rows):
        body.append(text(left - 6, top + i * tall + tall / 2 + 4, short(row, 22), "ink small end"))
    every = max(1, -(-len(names) * 16 // max(1, int(len(names) * wide)))) if not turned else 1
    for j, name in enumerate(names):
        if j % every:
            continue
        x = left + j * wide + wide / 2
        if turned:
            place = f' transform="rotate(-48 {x:.1f} {top - 6:.1f})"'
            body.append(
                text(x, top - 6, name, "ink small", place).replace("</text>", f"{hover(str(columns[j]))}</text>")
            )
        else:
            body.append(text(x, top - 6, name, "ink small mid"))
    return body


def _legend(x: float, y: float, end: float, unit: str, uncertain: bool, negative: bool) -> list[str]:
    first = -STEPS if negative else 0
    step = LEGEND / (STEPS - first + 1)
    body = [
        f'<rect x="{x + (i - first) * step:.2f}" y="{y:.1f}" width="{step + 0.3:.2f}" height="9"'
        f' class="{level(i / STEPS, 1.0)}"/>'
        for i in range(first, STEPS + 1)
    ]
    marks = ((-end, x, ""), (0.0, x + LEGEND / 2, " mid"), (end, x + LEGEND, " end"))
    for value, place, anchor in marks if negative else ((0.0, x, ""), (end, x + LEGEND, " end")):
        body.append(text(place, y + 22, number(value), f"dim small{anchor}"))
    if unit:
        body.append(text(x + LEGEND + 8, y + 9, short(unit, 24), "dim small"))
    if uncertain:
        body.append(f'<circle cx="{x + 3:.1f}" cy="{y + 36:.1f}" r="1.5" class="dim"/>')
        body.append(text(x + 10, y + 40, "95% interval includes 0", "dim small"))
    return body
