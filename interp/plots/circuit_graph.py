"""A circuit as a graph: layers as rows, the input below, the logits above; edges by score.

Heads of a layer stand side by side, the MLP at the right of its row and a little higher, because it reads what the
heads wrote. An edge's width and strength of colour are the size of its score, its colour the sign. The q, k and v of
a head are entered left, in the middle and right. Hovering shows an edge; in a page a click keeps it shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from interp.plots.arrays import numbers
from interp.plots.figure import Figure
from interp.plots.svg import drawing, escape, hover, line, text, tip
from interp.registry import UserError

MOST_EDGES = 150
ROW, NODE = 86.0, 48.0
ROOM = 560.0
"""Width that a small model's heads are spread over; more heads stand closer, then the drawing grows."""
_NODE = re.compile(r"(?P<end>input|logits)|m(?P<mlp>\d+)|a(?P<layer>\d+)\.h(?P<head>\d+)")
_SLOT = re.compile(r"(?P<node>[^<>]+?)(?:<(?P<part>[qkv])>)?")


def node_order(name: object) -> tuple[int, ...] | None:
    """Sorts nodes and slots as the forward pass comes to them; None for what is no node."""
    slot = _SLOT.fullmatch(str(name).strip())
    found = _NODE.fullmatch(slot["node"]) if slot else None
    if slot is None or found is None:
        return None
    if found["end"]:
        return (-1,) if found["end"] == "input" else (10**6,)
    if found["mlp"]:
        return int(found["mlp"]), 1
    return int(found["layer"]), 0, int(found["head"]), " qkv".index(slot["part"] or " ")


@dataclass(frozen=True)
class _Edge:
    src: str
    dst: str
    part: str
    score: float
    low: float
    high: float


def drawable(name: object) -> bool:
    """Whether a name is one node, or one slot of it: `a1.h0<k>`, `m2`, `logits`."""
    return node_order(name) is not None


def circuit_graph(
    edges: pd.DataFrame | Sequence[Mapping[str, Any]],
    *,
    nodes: Sequence[str] = (),
    title: str = "",
    unit: str = "",
    about: str = "",
    most: int = MOST_EDGES,
    limit: float | None = None,
) -> Figure:
    """Draw edges with `src`, `dst`, `score` and, where there are intervals, `low`, `high`.

    Names are those of circuit files: `input`, `a0.h1`, `m1`, `logits`; `dst` may say `<q>`, `<k>` or `<v>`. Of more
    than `most` edges the largest are drawn, and the figure says so. `nodes` are drawn even without an edge.
    UserError names what is no node.

    >>> edges = [{"src": "input", "dst": "a0.h1<v>", "score": 0.4}, {"src": "a0.h1", "dst": "logits", "score": 1.2}]
    >>> circuit_graph(edges).svg.startswith("<svg")
    True
    """
    table = edges if isinstance(edges, pd.DataFrame) else pd.DataFrame.from_records(list(edges))
    found = _edges(table)
    kept = found[:most]
    names = {*nodes, *(n for e in kept for n in (e.src, e.dst))}
    for name in names:
        if not _NODE.fullmatch(name):
            raise UserError(f"not a node: {name!r}; expected input, logits, m<layer> or a<layer>.h<head>")
    if not names:
        raise UserError("there is no edge to draw")
    cut = f"The {len(kept)} largest of {len(found)} edges. " if len(kept) < len(found) else ""
    note = f"{cut}Width and colour by score: blue above 0, orange below. {about}".strip()
    return Figure(_draw(kept, names, unit, title, limit), title, note)


def _edges(table: pd.DataFrame) -> list[_Edge]:
    for name in ("src", "dst", "score"):
        if name not in table:
            raise UserError(f"edges need src, dst and score; {name} is missing")
    size = (len(table),)
    score = numbers(table["score"], size, "score")
    low, high = (numbers(table[c], size, c) if c in table else np.full(size, np.nan) for c in ("low", "high"))
    edges = []
    for i, (src, dst) in enumerate(zip(table["src"], table["dst"], strict=True)):
        slot = _SLOT.fullmatch(str(dst).strip())
        if slot is None:
            raise UserError(f"not a place to read: {dst!r}; expected m<layer>, logits or a<layer>.h<head><q|k|v>")
        edges.append(_Edge(str(src), slot["node"], slot["part"] or "", float(score[i]), float(low[i]), float(high[i])))
    edges.sort(key=lambda e: -abs(e.score) if np.isfinite(e.score) else 0.0)
    return edges


def _places(names: set[str]) -> tuple[dict[str, tuple[float, float]], float, float, list[tuple[int, float]]]:
    """Middle of every node, the drawing's size, and the y of each layer's row."""
    heads: dict[int, list[tuple[int, str]]] = {}
    mlps: dict[int, str] = {}
    for name in names:
        found = _NODE.fullmatch(name)
        assert found is not None  # checked by the caller
        if found["layer"]:
            heads.setdefault(int(found["layer"]), []).append((int(found["head"]), name))
        elif found["mlp"]:
            mlps[int(found["mlp"])] = name
    layers = sorted({*heads, *mlps})
    widest = max([len(h) for h in heads.values()], default=0)
    step = NODE + max(12.0, min(56.0, (ROOM - 70) / (widest + 1) - NODE))
    width = max(360.0, (widest + 1) * step + 70)
    height = (len(layers) + 1) * ROW + 70
    places: dict[str, tuple[float, float]] = {}
    rows = []
    if "input" in names:
        places["input"] = (width / 2, height - 28)
    for i, layer in enumerate(layers):
        y = height - 28 - (i + 1) * ROW
        rows.append((layer, y))
        mine = sorted(heads.get(layer, []))
        start = (width + 36 - (len(mine) + 1) * step) / 2
        for k, (_, name) in enumerate(mine):
            places[name] = (start + k * step + NODE / 2, y)
        if layer in mlps:
            places[mlps[layer]] = (start + len(mine) * step + NODE / 2, y - ROW * 0.3)
    if "logits" in names:
        places["logits"] = (width / 2, 24.0)
    return places, width, height, rows


def _draw(edges: list[_Edge], names: set[str], unit: str, title: str, limit: float | None) -> str:
    places, width, height, rows = _places(names)
    end = limit or max([abs(e.score) for e in edges if np.isfinite(e.score)], default=0.0) or 1.0
    body = []
    for layer, y in rows:
        body += [line(44, y, width - 6, y, "rule"), text(6, y + 4, f"layer {layer}", "dim small")]
    for rank, edge in reversed(list(enumerate(edges))):  # the strongest are drawn last, on top
        body.append(_edge(edge, rank, places, end, unit))
    for name, (x, y) in places.items():
        wide = NODE + 8 if name in ("input", "logits") else NODE
        body.append(
            f'<rect x="{x - wide / 2:.1f}" y="{y - 11:.1f}" width="{wide}" height="22" rx="5" class="node box"'
            f' data-node="{escape(name)}">{hover(name)}</rect>'
        )
        body.append(text(x, y + 4, name, "ink small mid", ' pointer-events="none"'))
    return drawing(width, height, body, title or "circuit", "plot circuit")


def _edge(edge: _Edge, rank: int, places: Mapping[str, tuple[float, float]], end: float, unit: str) -> str:
    (x1, y1), (x2, y2) = places[edge.src], places[edge.dst]
    x2 += {"q": -13.0, "k": 0.0, "v": 13.0}.get(edge.part, 0.0)
    y1, y2 = y1 - 11, y2 + 11
    bend = max(24.0, abs(y1 - y2) * 0.45)
    share = min(1.0, abs(edge.score) / end) if np.isfinite(edge.score) else 0.0
    said = tip(f"{edge.src} → {edge.dst}{f'<{edge.part}>' if edge.part else ''}", edge.score, edge.low, edge.high, unit)
    return (
        f'<path d="M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 - bend:.1f} {x2:.1f} {y2 + bend:.1f} {x2:.1f} {y2:.1f}"'
        f' class="edge {"down" if edge.score < 0 else "up"}" stroke-width="{0.8 + 5.2 * share:.2f}"'
        f' opacity="{0.18 + 0.82 * share**0.7:.2f}" data-rank="{rank}" data-src="{escape(edge.src)}"'
        f' data-dst="{escape(edge.dst)}">{hover(said)}</path>'
    )
