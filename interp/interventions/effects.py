"""Effects: what a sweep of interventions did to a metric, row by row, prompt by prompt.

effect = metric with the edit − metric of the unedited base run, per prompt; then mean, standard error, 95%
interval and n. `normalized` places the edited value between the corrupt run (0) and the clean run (1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.interventions.plan import Plan
from interp.tasks.values import Task

if TYPE_CHECKING:
    import pandas as pd

    from interp.plots import Figure
    from interp.results.frames import Table

Key = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Effects:
    """The metric under each intervention, `[row, prompt]`, with what it is compared to."""

    keys: tuple[Key, ...]
    """What each row edited: columns of the effect schema."""
    values: Float[Tensor, "row prompt"]
    baseline: Float[Tensor, "*row prompt"]
    """The unedited base run's: one number a prompt, or one for each row and prompt."""
    clean: Float[Tensor, " prompt"]
    corrupt: Float[Tensor, " prompt"]
    task: Task
    about: Mapping[str, Any]
    """Columns that are the same in every row: metric, unit, method, direction, ablation, …"""
    seed: int = 0
    plan: Plan | None = field(default=None, repr=False)
    """How the rows were run, where they all came from one plan."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def mean(self) -> Float[Tensor, " row"]:
        """Mean effect of each row over the prompts it has a value for."""
        return (self.values - self.baseline).nanmean(1)

    def resampling(self) -> Any:
        """The resamples that the intervals share: by template where the task names templates."""
        from interp import stats

        clusters = None if self.task.cluster is None else self.task.cluster.cpu().numpy()
        return stats.resampling(self.task.n, np.random.default_rng(self.seed), clusters)

    def table(self) -> pd.DataFrame:
        """Tidy frame in the effect schema: one row per selection, with interval."""
        from interp.results.frames import effect_rows

        clean, corrupt = _array(self.clean), _array(self.corrupt)
        return effect_rows(
            [dict(k) for k in self.keys], _array(self.values), _array(self.baseline), self.resampling(),
            clean=None if np.isnan(clean).all() else clean, corrupt=None if np.isnan(corrupt).all() else corrupt,
            seed=self.seed, **self.about,
        )  # fmt: skip

    def examples(self) -> pd.DataFrame:
        """The metric of every row and prompt."""
        from interp.results.frames import example_rows

        return example_rows([dict(k) for k in self.keys], _array(self.values), **self.about)

    def result(self) -> Table:
        """What an experiment returns: the table, with the numbers per prompt."""
        from interp.results.frames import Table

        return Table(self.table(), examples=self.examples())

    def grid(self, rows: str = "layer", columns: str = "head") -> tuple[np.ndarray, list[Any], list[Any]]:
        """Mean effects as a matrix over two key columns; NaN where there is no row."""
        keep = [(k.get(rows), k.get(columns), m) for k, m in zip(self.keys, self.mean.tolist(), strict=True)]
        ys, xs = (sorted({k[i] for k in keep if k[i] is not None}, key=by_order) for i in (0, 1))
        out = np.full((len(ys), len(xs)), np.nan)
        for y, x, m in keep:
            if y is not None and x is not None:
                out[ys.index(y), xs.index(x)] = m
        return out, ys, xs

    def heatmap(self, rows: str = "layer", columns: str | None = None, **where: Any) -> Figure:
        """A picture of the mean effects over two key columns, with intervals on hover.

        `columns` is by default what the sweep went over: head, label, position or neuron; with several sites each
        has its own rows. `where` keeps the rows with these key values: `heatmap(site="z")`, `heatmap(head=3)`.
        UserError where two rows would share a cell.
        """
        from interp.interventions.pictures import heatmap_of

        return heatmap_of(self, rows, columns, where)

    def _repr_html_(self) -> str:
        from interp.interventions.pictures import effects_card

        return effects_card(self)

    def save(self, out: str | Path = "results", name: str | None = None) -> Path:
        """Write the files of a cell. Objects that have no name make it `reproducible: false`."""
        from interp.results.origin import Origin
        from interp.results.store import cell_path, publish

        model = self.plan.model if self.plan is not None else None
        label = name or str(self.about.get("method", "effects"))
        digest = _digest(self)
        place = cell_path(Path(out), label, getattr(model, "name", None), self.task.name, digest)
        origin = Origin(str(self.values.device), str(self.values.dtype).removeprefix("torch."), None, None, False, None)
        run = origin.record(
            experiment=label, version=None, config={}, hash=digest, files={}, seed=self.seed,
            model=getattr(model, "name", None), task=self.task.name,
            weights={} if model is None else {model.name: model.weights_hash()},
            tasks={self.task.name: self.task.hash()}, parts=[], reproducible=False,
            unregistered=["made from objects in a notebook"],
        )  # fmt: skip
        return publish(place, self.result(), run).path

    def __repr__(self) -> str:
        what = ", ".join(f"{k}={v}" for k, v in self.about.items() if v is not None)
        return f"Effects({len(self)} rows × {self.task.n} prompts; {what})"


def _array(t: Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy()


def by_order(value: Any) -> tuple[bool, Any]:
    """Sorts numbers before texts."""
    return isinstance(value, str), value


def _digest(effects: Effects) -> str:
    import hashlib

    h = hashlib.sha256(effects.values.detach().double().cpu().numpy().tobytes())
    h.update(repr([sorted(k.items()) for k in effects.keys]).encode())
    return h.hexdigest()


def stacked(parts: Sequence[Effects]) -> Effects:
    """Rows of several sweeps of one task, one after the other."""
    import torch

    first = parts[0]
    return Effects(
        tuple(k for p in parts for k in p.keys), torch.cat([p.values for p in parts]), first.baseline, first.clean,
        first.corrupt, first.task, first.about, first.seed, first.plan if len(parts) == 1 else None,
    )  # fmt: skip


Progress = Callable[[int, int], None]
