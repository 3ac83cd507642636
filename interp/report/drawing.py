"""A table to figures: the drawing functions that views name.

Each splits the table into panels so that a place in a figure is one row of the table: key columns that vary beside the
figure's own axes make the panels. What cannot be drawn (too many panels, curves or cells) is said, never left out
silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from interp import plots
from interp.plots.attention import widget
from interp.plots.circuit_graph import drawable, node_order
from interp.plots.heatmap import MOST_CELLS
from interp.plots.lines import MOST_SERIES
from interp.report.source import Source

MOST_PANELS = 24
LARGEST = 20
ON_TEXT = 3
PROMPTS_WITH_PATTERNS = 2
WIDGET_WEIGHTS = 200_000
"""Attention weights that a page carries for circuitsvis; beyond, heads with the strongest weights are kept."""


@dataclass(frozen=True)
class Drawn:
    """A figure of a view; `widget` names a circuitsvis component with its props, shown in the figure's place."""

    figure: plots.Figure
    widget: dict[str, Any] | None = field(default=None)


class NotDrawnError(Exception):
    """A view fits the table but cannot be drawn; its text says why."""


def limit_of(*sources: Source) -> float | None:
    """One end of the scale for all sources' main numbers."""
    sizes = [float(s.frame[s.main].abs().max()) for s in sources if s.main]
    return max(sizes, default=0.0) or None


def _panels(source: Source, axes: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Parts of the rows that have all axes, in each of which no two rows share a place; with their names."""
    frame = source.frame.dropna(subset=[*axes, source.main or axes[0]])
    split: list[str] = []
    for column in source.varying():
        if column in axes or frame[column].nunique(dropna=False) < 2:
            continue
        # words that say what the number is always split; others only where places would coincide
        if column in ("metric", "unit", "task", "x_name") or frame.duplicated([*axes, *split]).any():
            split.append(column)
    split = [c for c in split if frame.drop(columns=c).duplicated([*axes, *(s for s in split if s != c)]).any()
             or c in ("metric", "unit", "task", "x_name")]  # fmt: skip
    if not split:
        yield "", frame
        return
    for key, part in frame.groupby(split, dropna=False, sort=False, observed=True):
        yield named(dict(zip(split, key if isinstance(key, tuple) else (key,), strict=True))), part


WORDS = {"pos": "position", "pos_label": "label", "src": "sender", "dst": "receiver", "kv_head": "key/value head"}
PLAIN = {"metric", "method", "algorithm", "series", "site", "setting", "components", "granularity", "side"}
"""Columns whose values speak for themselves in a name."""


def named(place: dict[str, Any]) -> str:
    """`direct_effect · ablation zero · S1 → END`."""
    held = {k: v for k, v in place.items() if not pd.isna(v)}
    words = []
    if "src_label" in held and "dst_label" in held:
        words.append(f"{held.pop('dst_label')} ← {held.pop('src_label')}")
    words += [str(v) if k in PLAIN else f"{spoken(k)} {v}" for k, v in held.items()]
    return " · ".join(words)


def spoken(column: str) -> str:
    """A column's name in words."""
    return WORDS.get(column, column.replace("_", " "))


def _unit(part: pd.DataFrame) -> str:
    units: list[Any] = list(part["unit"].dropna().unique()) if "unit" in part else []
    return str(units[0]) if len(units) == 1 else ""


def _few(panels: list[tuple[str, pd.DataFrame]]) -> tuple[list[tuple[str, pd.DataFrame]], str]:
    if len(panels) <= MOST_PANELS:
        return panels, ""
    return panels[:MOST_PANELS], f"{MOST_PANELS} of {len(panels)} panels are drawn; the table has all rows."


def _grid(part: pd.DataFrame, column: str, rows: pd.Index[Any], columns: pd.Index[Any], axes: list[str]) -> np.ndarray:
    wide = part.set_index(axes)[column].unstack()
    return wide.reindex(index=rows, columns=columns).to_numpy(dtype="float64", na_value=np.nan)


def maps(source: Source, limit: float | None, rows: str, columns: str, tokens: bool = False) -> list[Drawn]:
    """A heat map per panel. Panels of one unit share a scale."""
    if source.main is None:
        raise NotDrawnError("the table has no number to draw")
    axes = [rows, columns]
    panels, cut = _few(list(_panels(source, axes)))
    if any(c not in source.varying() for c in axes) and len(source.frame) > 1:
        return []
    found = []
    for name, part in panels:
        if part.duplicated(axes).any():
            raise NotDrawnError(f"several rows share a {rows} and {columns}")
        down, across = (pd.Index(_sorted(part[c].unique())) for c in axes)
        if len(down) * len(across) > MOST_CELLS or len(part) < 2:
            continue
        if rows == "src" and len(part) < 0.3 * len(down) * len(across):
            continue
        low, high = [_grid(part, c, down, across, axes) for c in source.confident] if source.confident else (None, None)
        alike = [p for _, p in panels if _unit(p) == _unit(part)]
        shared = limit or max(float(p[source.main].abs().max()) for p in alike)
        labels, note = _position_labels(source, across) if tokens else ([str(c) for c in across], "")
        figure = plots.heatmap(
            _grid(part, source.main, down, across, axes), [str(r) for r in down], labels, low=low, high=high,
            title=name or f"{spoken(source.main)} by {spoken(rows)} and {spoken(columns)}", unit=_unit(part),
            row_title=spoken(rows), column_title=spoken(columns), limit=shared or None,
            about=" ".join(s for s in (note, cut) if s),
        )  # fmt: skip
        found.append(Drawn(figure))
    return found


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Numbers by size, nodes in the order of the forward pass, other names by name."""
    found = list(values)
    ranks = [node_order(v) for v in found]
    return sorted(found) if None in ranks else sorted(found, key=lambda v: node_order(v) or ())


def _position_labels(source: Source, positions: pd.Index[Any]) -> tuple[list[str], str]:
    prompts = source.prompts()
    if not prompts:
        return [str(p) for p in positions], ""
    shown = max(prompts, key=lambda p: len(p["tokens"]))
    said = [f"{p} {shown['tokens'][p].strip()}" if p < len(shown["tokens"]) else str(p) for p in positions]
    return said, "Tokens are those of one of the prompts, as an example."


def largest(source: Source, limit: float | None) -> list[Drawn]:
    """The rows that are largest in size, with their intervals, in falling order; one figure per unit."""
    if source.main is None:
        return []
    frame = source.frame.dropna(subset=[source.main])
    units = frame["unit"].astype("string").fillna("") if "unit" in frame else pd.Series("", index=frame.index)
    found = []
    for unit, part in frame.groupby(units, sort=False):
        order = part[source.main].abs().sort_values(ascending=False, kind="stable").index[:LARGEST]
        rows = part.loc[order]
        low, high = (rows[source.ends[0]], rows[source.ends[1]]) if source.ends else (None, None)
        cut = f"The {len(rows)} largest of {len(part)} rows." if len(rows) < len(part) else ""
        figure = plots.bars(
            rows[source.main], [place(r, source) for r in rows.to_dict("records")], low=low, high=high,
            title=f"{source.main.replace('_', ' ')}{f', {unit}' if unit and units.nunique() > 1 else ''}",
            unit=str(unit), about=cut,
            between=source.between(*source.ends).removesuffix(" interval") if source.ends else "95%",
        )  # fmt: skip
        found.append(Drawn(figure))
    return found[:6]


def place(row: dict[Any, Any], source: Source) -> str:
    """A row's place in words: what varies in its key."""
    held = {c: row[c] for c in source.varying() if not pd.isna(row[c])}
    words = []
    if "src" in held or "dst" in held:
        words.append(f"{held.pop('src', '')} → {held.pop('dst', '')}".strip(" →"))
    if "layer" in held and "head" in held:
        words.append(f"L{held.pop('layer')}.h{held.pop('head')}")
    if "layer" in held:
        words.append(f"L{held.pop('layer')}")
    return " ".join([*words, named(held)]).strip() or "all"


def curves(
    source: Source, limit: float | None, x: str, series: str, x_name: str = "", unordered: tuple[str, ...] = ()
) -> list[Drawn]:
    """Curves over x; key columns that vary make lines where they fit in one figure, panels where they do not.

    Rows whose `x_name` is `unordered` (numbered draws) are no curve.
    """
    main = source.main
    if main is None:
        raise NotDrawnError("the table has no number to draw")
    frame = source.frame.dropna(subset=[x, main])
    if x_name in frame and unordered:
        frame = frame[~frame[x_name].isin(unordered).fillna(False).astype(bool)]
    if frame.empty:
        return []
    always = [c for c in ("metric", "unit", "task", x_name) if c in frame and frame[c].nunique(dropna=False) > 1]
    rest = [c for c in source.varying() if c not in (x, *always)]
    # a column that x itself decides tells no lines apart; the series always does
    told = frame.groupby([*always, x], dropna=False)
    rest = [c for c in rest if c == series or (told[c].nunique(dropna=False) > 1).any()]
    by_line = [c for c in dict.fromkeys([series, *rest]) if c in rest]
    split = list(always)
    while by_line and _most_lines(frame, split, by_line) > MOST_SERIES:
        split.append(max(by_line[1:] or by_line, key=lambda c: -frame[c].nunique(dropna=False)))
        by_line.remove(split[-1])
    found = []
    groups = frame.groupby(split, dropna=False, sort=False) if split else [((), frame)]
    parts = [(dict(zip(split, k if isinstance(k, tuple) else (k,), strict=True)), p) for k, p in groups]
    drawn = [(k, p) for k, p in parts if p[x].nunique() > 1]
    for key, part in drawn[:MOST_PANELS]:
        key.pop(x_name, None)
        # what is one and the same in this panel but not in the table says which panel it is
        key |= {c: part[c].iloc[0] for c in source.varying()
                if c not in (x, x_name, *split, *by_line) and part[c].nunique(dropna=False) == 1}  # fmt: skip
        lines = [named({c: row[c] for c in by_line}) for row in part[by_line].to_dict("records")]
        ends = dict(zip(("ci_low", "ci_high"), source.confident or (), strict=False))
        numbers = {"x": x, "value": main, **ends}
        table = pd.DataFrame({k: part[c].to_numpy(dtype="float64") for k, c in numbers.items()} | {"series": lines})
        said: list[Any] = list(part[x_name].dropna().unique()) if x_name in part else []
        figure = plots.lines(
            table, title=named({k: v for k, v in key.items() if k != "unit"}) or main.replace("_", " "),
            unit=_unit(part), x_title=str(said[0]) if len(said) == 1 else x,
            about=f"{MOST_PANELS} of {len(drawn)} panels are drawn." if len(drawn) > MOST_PANELS else "",
        )  # fmt: skip
        found.append(Drawn(figure))
    return found


def _most_lines(frame: pd.DataFrame, split: list[str], by_line: list[str]) -> int:
    told = frame[[*split, *by_line]].drop_duplicates()
    return int(told.groupby(split, dropna=False).size().max()) if split else len(told)


def circuit(source: Source, limit: float | None) -> list[Drawn]:
    """The circuit in the cell's artifact."""
    edges = source.circuit()
    if edges is None:
        return []
    kept = edges[edges["in_graph"]]
    if kept.empty:
        raise NotDrawnError("the circuit has no edge")
    scored = kept["score"].notna().any()
    figure = plots.circuit_graph(
        kept if scored else kept.assign(score=1.0), title=f"{len(kept)} of {len(edges)} edges are in the circuit",
        about="" if scored else "The circuit has no scores: all edges are drawn alike.",
    )  # fmt: skip
    return [Drawn(figure)]


def edges(source: Source, limit: float | None) -> list[Drawn]:
    """Rows that are single edges, as a graph; one figure per panel."""
    if source.main is None:
        raise NotDrawnError("the table has no number to draw")
    frame = source.frame.dropna(subset=["src", "dst"])
    single = frame["src"].map(drawable) & frame["dst"].map(drawable)
    if not single.any():
        return []
    found = []
    own = Source(source.name, frame[single], source.schema, source.run)
    for name, part in _few(list(_panels(own, ["src", "dst"])))[0][:6]:
        table = part[["src", "dst"]].assign(score=part[source.main])
        if source.confident:
            table = table.assign(low=part[source.confident[0]], high=part[source.confident[1]])
        title = name or f"{source.main.replace('_', ' ')} of each edge"
        found.append(Drawn(plots.circuit_graph(table, title=title, unit=_unit(part), limit=limit)))
    return found


def on_text(source: Source, limit: float | None) -> list[Drawn]:
    """Numbers of single prompts by position, on the tokens of that prompt: summed over heads and parts of a layer."""
    prompts, examples = source.prompts(), source.examples
    if not prompts or examples is None or "pos" not in examples or "example_value" not in examples:
        return []
    held = examples.dropna(subset=["pos"])
    by = [c for c in ("metric", "site", "layer") if c in held and held[c].nunique(dropna=False) > 1] or ["prompt"]
    found = []
    shown = held[held["prompt"] < ON_TEXT].groupby([*by, "prompt", "pos"], dropna=False)["example_value"].sum()
    end = float(shown.abs().max()) if len(shown) else 0.0
    for i, prompt in enumerate(prompts[:ON_TEXT]):
        mine = held[held["prompt"] == i]
        if mine.empty:
            continue
        words = [str(t) for t in prompt["tokens"]]
        wide = mine.groupby([*by, "pos"], dropna=False)["example_value"].sum(min_count=1).unstack()
        wide = wide.reindex(columns=range(len(words)))
        names = [named(dict(zip(by, k if isinstance(k, tuple) else (k,), strict=True))) for k in wide.index]
        values = wide.to_numpy(dtype="float64")[:MOST_PANELS]
        what = "metric with the edit" if source.schema.name == "effect" else str(source.main).replace("_", " ")
        title = f"Prompt {i}: {what}"
        figure = plots.tokens(
            values, words, names[:MOST_PANELS], title=title, unit=_unit(source.frame), limit=end or None
        )
        found.append(Drawn(figure))
    return found


def patterns(source: Source, limit: float | None) -> list[Drawn]:
    """Attention of the first prompts: circuitsvis in a page, small pictures in files."""
    found = []
    for i, (tokens, names, weights) in enumerate(source.patterns()[:PROMPTS_WITH_PATTERNS]):
        most = max(1, WIDGET_WEIGHTS // max(1, len(tokens) ** 2))
        cut = ""
        if len(names) > most:
            strongest = np.sort(np.argsort(-_beyond_first(weights), kind="stable")[:most])
            weights, cut = weights[strongest], f"{most} of {len(names)} heads: those that attend most beyond token 0. "
            names = [names[k] for k in strongest]
        figure = plots.attention(
            weights, tokens, names, title=f"Prompt {i}",
            about=f"{cut}Rows are queries, columns are keys; darker is more weight.",
        )  # fmt: skip
        found.append(Drawn(figure, {"component": "AttentionHeads", "props": widget(weights, tokens, names)}))
    return found


def _beyond_first(weights: np.ndarray) -> np.ndarray:
    """Largest weight of each head on a key that is neither token 0 nor the query itself."""
    apart = weights.copy()
    apart[:, :, 0] = 0
    diagonal = np.arange(weights.shape[1])
    apart[:, diagonal, diagonal] = 0
    return np.asarray(apart.max((1, 2)))


def checks(source: Source, limit: float | None) -> list[Drawn]:
    """Share of the checks that held, by the first key column that varies."""
    frame = source.frame.dropna(subset=["passed"])
    by = next((c for c in ("rule", "fault", *source.varying()) if c in frame and frame[c].notna().any()), None)
    if by is None:
        return []
    held = frame.assign(passed=frame["passed"].astype(bool)).groupby(by, sort=True)["passed"].agg(["sum", "size"])
    held = held.iloc[:200]
    labels = [f"{name}: {row['sum']} of {row['size']}" for name, row in held.to_dict("index").items()]
    figure = plots.bars(
        held["sum"] / held["size"], labels, title=f"Share of checks that held, by {by}", unit="share", limits=(0, 1)
    )
    return [Drawn(figure)]
