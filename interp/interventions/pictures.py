"""Effects as a heat map: one cell per row, with its 95% interval; what a notebook shows of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from interp import stats
from interp.interventions.effects import Effects, Key, by_order
from interp.registry import UserError, unknown

if TYPE_CHECKING:
    from interp.plots import Figure

COLUMNS = ("head", "kv_head", "pos_label", "pos", "neuron", "expert")
"""What columns are taken from, the first that varies."""
SHORT = {"layer": "L", "head": "H"}


def heatmap_of(effects: Effects, rows: str, columns: str | None, where: Mapping[str, Any]) -> Figure:
    """See `Effects.heatmap`."""
    from interp.plots import heatmap

    index = chosen(effects.keys, where)
    keys = [effects.keys[i] for i in index]
    across = columns or next((c for c in COLUMNS if len(values_of(keys, c)) > 1), "site")
    for axis in (rows, across):
        if not values_of(keys, axis):
            raise unknown("axis of these effects:", axis, sorted({c for k in keys for c in k}))
    down = [rows, *(["site"] if "site" not in (rows, across) and len(values_of(keys, "site")) > 1 else [])]
    _one_each(keys, [*down, across], where)
    lines = sorted({tuple(k.get(c) for c in down) for k in keys}, key=lambda t: [by_order(v) for v in t[::-1]])
    cells = _along(effects, values_of(keys, across), across)
    grids = [np.full((len(lines), len(cells)), np.nan) for _ in range(3)]
    got = stats.summarize(_moved(effects)[index], effects.resampling())
    for i, key in enumerate(keys):
        at = lines.index(tuple(key.get(c) for c in down)), cells.index(key[across])
        for grid, numbers in zip(grids, (got.mean, got.low, got.high), strict=True):
            grid[at] = numbers[i]
    about = effects.about
    said = list(dict.fromkeys(str(about[k]) for k in ("method", "direction") if about.get(k)))
    site = values_of(keys, "site")
    said += [site[0]] if len(site) == 1 and across != "site" else []
    said += [f"{k} {v}" for k, v in where.items()]
    return heatmap(
        grids[0], [_name(t, down) for t in lines], [f"{SHORT.get(across, '')}{c}" for c in cells],
        low=grids[1], high=grids[2], title=f"Effect on {about.get('metric', 'the metric')}: {', '.join(said)}",
        unit=str(about.get("unit", "")), row_title=_title(down), column_title=_title([across]),
        about=f"Mean of {effects.task.n} prompts.",
    )  # fmt: skip


def effects_card(effects: Effects) -> str:
    """The largest effects, with a heat map where they lie on a grid."""
    from interp.plots.show import card, largest

    frame = largest(effects.table(), "effect")
    kept = ["site", "layer", "head", "kv_head", "pos", "pos_label", "neuron", "src", "dst", "effect", "ci_low",
            "ci_high", "normalized", "p_adjusted", "n", "reason"]  # fmt: skip
    facts = {k: effects.about.get(k) for k in ("method", "direction", "ablation", "metric", "unit")}
    try:
        figures = [effects.heatmap()]
    except UserError:  # more than a grid, or none
        figures = []
    plan = "" if effects.plan is None else " .plan.explain() says how they were run."
    return card(
        "Effects", {"rows": len(effects), "prompts": effects.task.n, **facts}, frame[kept], figures,
        about=f"Largest first; .table() has all, with intervals.{plan}",
    )  # fmt: skip


def chosen(keys: Sequence[Key], where: Mapping[str, Any]) -> list[int]:
    """Rows whose key has these values. UserError for a column that no key has, and where no row is left."""
    columns = sorted({c for k in keys for c in k})
    for name in where:
        if name not in columns:
            raise unknown("column of these effects:", name, columns)
    found = [i for i, k in enumerate(keys) if all(k.get(c) == v for c, v in where.items())]
    if not found:
        have = {c: values_of(keys, c) for c in where}
        raise UserError(f"no effect has {dict(where)}; there are: {have}")
    return found


def values_of(keys: Sequence[Key], column: str) -> list[Any]:
    """The different values of one key column, sorted; numbers before texts."""
    return sorted({k[column] for k in keys if k.get(column) is not None}, key=by_order)


def _along(effects: Effects, values: list[Any], column: str) -> list[Any]:
    """Labels in the order in which they stand in the prompts; anything else as it is sorted."""
    places = effects.task.clean.labels
    if column != "pos_label" or any(v not in places for v in values):
        return values
    return sorted(values, key=lambda v: float(places[v].double().mean()))


def _one_each(keys: Sequence[Key], used: Sequence[str], where: Mapping[str, Any]) -> None:
    seen = {tuple(k.get(c) for c in used) for k in keys}
    if len(seen) == len(keys):
        return
    more = [c for c in sorted({c for k in keys for c in k}) if c not in used and len(values_of(keys, c)) > 1]
    example = f"heatmap({more[0]}={values_of(keys, more[0])[0]!r})" if more else "heatmap(rows=…, columns=…)"
    raise UserError(f"these effects vary by {', '.join(more) or 'more than two columns'} too; choose: {example}")


def _name(values: tuple[Any, ...], columns: Sequence[str]) -> str:
    return ".".join(f"{SHORT.get(c, '')}{v}" for v, c in zip(values, columns, strict=True))


def _title(columns: Sequence[str]) -> str:
    """What an axis is called, where its values do not say so themselves (L0, H1)."""
    return " and ".join(c for c in columns if c not in (*SHORT, "site"))


def _moved(effects: Effects) -> np.ndarray:
    return np.asarray((effects.values - effects.baseline).detach().double().cpu().numpy())
