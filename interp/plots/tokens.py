"""Values on text: each token on the colour of its value, one line of text per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.plots.arrays import ends, numbers, scale_limit
from interp.plots.colours import level, strong
from interp.plots.figure import Figure
from interp.plots.svg import drawing, escape, hover, lines_of, number, short, text, tip, visible, width_of
from interp.registry import UserError

WIDTH = 680.0
LINE = 26.0


def tokens(
    values: Any,
    tokens: Sequence[object],
    names: Sequence[object] | None = None,
    *,
    low: Any = None,
    high: Any = None,
    title: str = "",
    unit: str = "",
    about: str = "",
    limit: float | None = None,
) -> Figure:
    """Draw `values[token]`, or `values[row, token]` with a name per row, on the tokens; NaN has no colour.

    >>> tokens([0.2, -0.9], ["the", "king"], unit="logits").text is not None
    True
    """
    array = numbers(values, None, "values")
    one = array.ndim == 1
    array = array[None] if one else array
    shape = (len(array), len(tokens))
    if array.ndim != 2 or array.shape != shape or not tokens:
        raise UserError(
            f"values must be [{len(tokens)}] or [row, {len(tokens)}] for {len(tokens)} tokens, got {list(array.shape)}"
        )
    lows, highs = (e.reshape(shape) for e in ends(low, high, shape[1:] if one else shape))
    rows = ["" if one else str(i) for i in range(len(array))] if names is None else [str(n) for n in names]
    if len(rows) != len(array):
        raise UserError(f"{len(rows)} names for {len(array)} rows")
    end = limit or scale_limit(array)
    said = [_shown(t) for t in tokens]
    tips = [[tip(f"{name} token {j} {visible(t)}".strip(), v, lo, hi, unit)
             for j, (t, v, lo, hi) in enumerate(zip(tokens, *cells, strict=True))]
            for name, *cells in zip(rows, array, lows, highs, strict=True)]  # fmt: skip
    note = about or f"Blue is above 0, orange below; full colour at ±{number(end)} {unit}".rstrip() + "."
    return Figure(_drawing(array, said, rows, tips, end, title), title, note, text=_html(array, said, rows, tips, end))


def _shown(token: object) -> str:
    """A token with its spaces to see; an empty one as a sign."""
    return visible(token).replace(" ", "·") or "∅"


def _html(array: np.ndarray, said: list[str], rows: list[str], tips: list[list[str]], end: float) -> str:
    lines = []
    for i, name in enumerate(rows):
        spans = "".join(
            f'<span class="token {level(v, end)} {"on" if strong(v, end) else "ink"}" data-at="{i},{j}"'
            f' title="{lines_of(tips[i][j])}">{escape(said[j])}</span>'
            for j, v in enumerate(array[i])
        )
        head = f'<span class="name">{escape(name)}</span>' if name else ""
        lines.append(f'<div class="row">{head}<span class="line-of-text">{spans}</span></div>')
    return f'<div class="ip-tokens grid">{"".join(lines)}</div>'


def _drawing(array: np.ndarray, said: list[str], rows: list[str], tips: list[list[str]], end: float, title: str) -> str:
    left = max([width_of(short(n, 24)) for n in rows]) + 10
    body: list[str] = []
    x, y = left, 6.0
    for i, name in enumerate(rows):
        body.append(text(4, y + 15, short(name, 24), "dim small"))
        for j, v in enumerate(array[i]):
            wide = width_of(said[j]) + 8
            if x + wide > WIDTH and x > left:
                x, y = left, y + LINE
            body.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{LINE - 5}" rx="3" class="{level(v, end)}">'
                f"{hover(tips[i][j])}</rect>"
            )
            body.append(text(x + 4, y + 15, said[j], "on" if strong(v, end) else "ink"))
            x += wide + 1
        x, y = left, y + LINE + 6
    return drawing(WIDTH, y + 4, body, title or "values on text")
