"""`report`: a page in Markdown on a whole sweep: what was run, what failed, what stands out, how much seeds differ.

Per experiment, model and task: the rows that are largest in the schema's main column, averaged over the cells
that differ in nothing but the seed, with the spread between seeds beside the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.sweep.state import State, read_json, records
from interp.sweep.status import kept_or_error, sweep_status

if TYPE_CHECKING:
    import pandas as pd

TOP = 5
_MAIN = ("effect", "score", "value")
_PLACES = ("site", "layer", "head", "kv_head", "expert", "neuron", "pos", "pos_label", "src", "dst", "series", "x")


def report_text(state: State, file: Path, table: pd.DataFrame) -> str:
    """The page, from the collected table."""
    status = sweep_status(state, file)
    kept = kept_or_error(state)
    parts = [f"# Sweep {state.name}\n", _overview(state, status, kept.cells)]
    if status.failed:
        parts.append("## Failed\n\n" + _grid(["cell", "error"], [[f.place, f.about] for f in status.failed]))
    by = [c for c in ("experiment", "model", "task") if c in table]
    parts.append("## Largest rows\n\nMean over the cells that differ only in their seed; ± is the standard deviation")
    parts[-1] += " between those cells.\n"
    for names, part in table.groupby(by, dropna=False, sort=True):
        title = ", ".join(str(n) for n in names if n == n and n is not None)
        parts.append(f"### {title}\n\n{_largest(part)}")
    return "\n".join(parts)


def _overview(state: State, status: Any, cells: Sequence[Mapping[str, Any]]) -> str:
    runs = [r for _, r in records(state.at("runs")) if r.get("state") == "ended" and r.get("cell_seconds")]
    seconds = sum(_wall(state.out / c["place"]) for c in cells)
    lines = [
        f"{status.done} of {status.total} cells are done, {len(status.failed)} failed, "
        f"{status.waiting + status.queued + len(status.running)} are not. "
        f"They took {seconds:.0f} s of computing."
    ]
    for run in runs:
        by = f" with {run['workers']} workers" if run.get("workers") else ""
        over = f", overhead {run['overhead']:.1%}" if isinstance(run.get("overhead"), float) else ""
        lines.append(
            f"A run by backend {run['backend']}{by}: {run['done']} cells in {run['wall_seconds']:.0f} s{over}."
        )
    return "\n".join(lines) + "\n"


def _wall(cell: Path) -> float:
    return float((read_json(cell / "run.json") or {}).get("wall_seconds") or 0)


def _largest(part: pd.DataFrame) -> str:
    main = next((c for c in _MAIN if c in part and part[c].notna().any()), None)
    if main is None:
        return f"{len(part)} rows, none with a number to rank.\n"
    part = part.dropna(axis=1, how="all")
    places = [c for c in _PLACES if c in part]
    settings = [
        c for c in map(str, part.columns) if c.startswith("set.") and c not in ("set.seed", "set.task", "set.model")
    ]
    also = [c for c in ("metric", "direction", "ablation") if c in part and part[c].nunique() > 1]
    keys = [k for k in (*settings, *also, *places) if part[k].nunique(dropna=False) > 1 or k in ("site",)]
    if not keys:
        return f"{len(part)} rows.\n"
    found = part.groupby(keys, dropna=False)[main].agg(["mean", "std", "count"]).reset_index()
    order = found["mean"].abs().sort_values(ascending=False, kind="stable").index[:TOP]
    rows = []
    for row in found.loc[order].to_dict("records"):
        spread = "" if row["std"] != row["std"] else f" ± {row['std']:.2g}"
        rows.append([*(_text(row[k]) for k in keys), f"{row['mean']:.4g}{spread}", str(int(row["count"]))])
    return _grid([*(str(k) for k in keys), main, "cells"], rows)


def _text(value: Any) -> str:
    import pandas as pd

    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    safe = [[" ".join(str(c).split()).replace("|", "\\|").replace("<", "&lt;") for c in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in safe)
