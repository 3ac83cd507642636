"""Optional trackers: finished cells as runs of Weights & Biases or MLflow. Off unless the sweep file says `track`.

A run has the cell's settings, its wall time, and the ten largest rows of its main column. A tracker that
fails costs nothing but its record: the cell is published before it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interp.registry import UserError
from interp.sweep.cellfile import CellLine

log = logging.getLogger(__name__)
Track = Callable[[CellLine, Path], None]
ROWS = 10


def tracker(name: str | None, sweep: str) -> Track | None:
    """A function that reports one finished cell, or None; a tracker that is not installed raises UserError."""
    if name is None:
        return None
    try:
        send = {"wandb": _wandb, "mlflow": _mlflow}[name](sweep)
    except ImportError:
        raise UserError(f"track: {name} is not installed; pip install 'interp[track]' brings it") from None

    def report(cell: CellLine, path: Path) -> None:
        try:
            send(path.name, {"experiment": cell.experiment, **cell.config}, numbers(path))
        except Exception:
            log.exception("the tracker did not take cell %s", path.name)

    return report


def numbers(path: Path) -> dict[str, float]:
    """Wall time, rows, and the largest rows of the main column, of a finished cell."""
    from interp.results.export import ranked
    from interp.results.store import read_cell

    cell = read_cell(path)
    run, schema, frame = cell.run(), cell.schema(), cell.table()
    found = {"wall_seconds": float(run.get("wall_seconds") or 0), "rows": float(len(frame))}
    places = [c for c in ("site", "layer", "head", "neuron", "pos", "pos_label", "src", "dst") if c in frame]
    for row in ranked(frame, schema).head(ROWS).to_dict("records"):
        where = ".".join(str(row[c]) for c in places if row[c] is not None and row[c] == row[c])
        found[f"{schema.main}/{where or 'all'}"] = float(row[schema.main])
    return found


def _wandb(sweep: str) -> Callable[[str, dict[str, Any], dict[str, float]], None]:
    import wandb  # type: ignore[import-not-found]

    def send(name: str, config: dict[str, Any], values: dict[str, float]) -> None:
        run = wandb.init(project=sweep, name=name, config=config, reinit="finish_previous")
        run.log(values)
        run.finish()

    return send


def _mlflow(sweep: str) -> Callable[[str, dict[str, Any], dict[str, float]], None]:
    import mlflow  # type: ignore[import-not-found]

    def send(name: str, config: dict[str, Any], values: dict[str, float]) -> None:
        mlflow.set_experiment(sweep)
        with mlflow.start_run(run_name=name):
            mlflow.log_params(config)
            mlflow.log_metrics({k.replace(" ", "_"): v for k, v in values.items()})

    return send
