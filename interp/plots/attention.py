"""Attention patterns of several heads: small pictures of [query, key], one pixel a weight.

`widget` gives what circuitsvis' `AttentionHeads` takes, for pages that carry its script (`bundle.py`).
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import UInt8

from interp.plots.arrays import numbers
from interp.plots.colours import rgb
from interp.plots.figure import Figure
from interp.plots.svg import drawing, hover, short, text, visible, width_of
from interp.registry import UserError

DIGITS = 3
SHADES = 128
TOKEN = 14
"""Characters of a token beside a large pattern."""


def attention(
    patterns: Any,
    tokens: Sequence[object],
    names: Sequence[object] | None = None,
    *,
    title: str = "",
    about: str = "",
    limit: float = 1.0,
) -> Figure:
    """Draw `patterns[head, query, key]` on these tokens; `names` are the heads' (their number by default).

    >>> attention([[[1.0, 0.0], [0.3, 0.7]]], ["the", "king"], names=["a0.h1"]).svg.startswith("<svg")
    True
    """
    array, said = _checked(patterns, tokens, names)
    count, length = array.shape[:2]
    side = float(min(240, max(90, length * 9)))
    label = min(90.0, max(width_of(short(t, 10), 9.0) for t in tokens)) if length <= 20 else 0.0
    across = max(1, min(count, int(700 // (side + label + 16))))
    body = []
    for i in range(count):
        x = (i % across) * (side + label + 16) + label + 4
        y = (i // across) * (side + 34) + 22
        body.append(text(x, y - 7, said[i], "ink head"))
        body.append(f'<rect x="{x - 0.5}" y="{y - 0.5}" width="{side + 1}" height="{side + 1}" class="rule"/>')
        body.append(
            f'<image x="{x}" y="{y}" width="{side}" height="{side}" preserveAspectRatio="none"'
            f' style="image-rendering:pixelated" image-rendering="optimizeSpeed" href="{pixels(array[i], limit)}">'
            f"{hover(f'head {said[i]}: rows are queries, columns are keys')}</image>"
        )
        if label:
            step = side / length
            body += [text(x - 4, y + step * (k + 0.5) + 3, short(t, 10), "dim tiny end", ' style="font-size:9px"')
                     for k, t in enumerate(tokens)]  # fmt: skip
    width = min(count, across) * (side + label + 16)
    height = -(-count // across) * (side + 34) + 8
    note = about or "Rows are queries, columns are keys; darker is more weight."
    return Figure(drawing(width, height, body, title or "attention patterns"), title, note)


def widget(patterns: Any, tokens: Sequence[object], names: Sequence[object] | None = None) -> dict[str, Any]:
    """Props of circuitsvis' `AttentionHeads`: plain values, weights to three digits, tokens made visible."""
    array, said = _checked(patterns, tokens, names)
    rounded = np.round(np.nan_to_num(array), DIGITS)
    causal = bool((np.triu(rounded, 1) == 0).all())
    return {
        "attention": rounded.tolist(), "tokens": [short(t, TOKEN) for t in tokens],
        "attentionHeadNames": said, "maskUpperTri": causal, "minValue": min(0.0, float(rounded.min())), "maxValue": 1.0,
    }  # fmt: skip


def _checked(patterns: Any, tokens: Sequence[object], names: Sequence[object] | None) -> tuple[np.ndarray, list[str]]:
    array = numbers(patterns, None, "patterns")
    length = len(tokens)
    if array.ndim != 3 or array.shape[1:] != (length, length) or not array.size:
        raise UserError(f"patterns must be [head, {length}, {length}] for {length} tokens, got {list(array.shape)}")
    said = [visible(n) for n in (range(len(array)) if names is None else names)]
    if len(said) != len(array):
        raise UserError(f"{len(said)} names for {len(array)} heads")
    return array, said


@cache
def _shades() -> UInt8[np.ndarray, "shade 3"]:
    return np.array([rgb(i / SHADES, 1.0) for i in range(-SHADES, SHADES + 1)], dtype=np.uint8)


def pixels(values: np.ndarray, limit: float) -> str:
    """A `data:` address of a PNG with one pixel per value."""
    place = np.rint(np.clip(np.nan_to_num(values) / (limit or 1.0), -1, 1) * SHADES).astype(int) + SHADES
    rows = [b"\x00" + row.tobytes() for row in _shades()[place]]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(rows), 9)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()
