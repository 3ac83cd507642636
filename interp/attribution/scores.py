"""Scores of an attribution: one row per edge or node, one number per prompt, with what they were computed under.

score = estimated metric of the base run − metric with the edge or node ablated: positive helps the metric
(a loss-like metric is negated first). Units are the metric's. `signed` is False where a method gives sizes
only (GradDrop); such scores never select by sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.graph import Edge, Graph
from interp.interventions.sweep import Sides
from interp.registry import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from interp.results.frames import Table

Key = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores `[row, prompt]`; NaN where a prompt has no such token."""

    keys: tuple[Key, ...]
    """What each row stands for: columns of the attribution schema."""
    values: Float[Tensor, "row prompt"]
    sides: Sides = field(repr=False)
    about: Mapping[str, Any]
    """Columns that are the same in every row: method, ablation, granularity, …"""
    graph: Graph | None = None
    """Whose edges the rows are, in its order; None for nodes."""
    signed: bool = True
    seed: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def mean(self) -> Float[Tensor, " row"]:
        """Mean score of each row over the prompts it has a value for."""
        return self.values.nanmean(1)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edge of each row; UserError for scores of nodes."""
        if self.graph is None:
            raise UserError("these are scores of nodes: they have no edges; attribute with granularity=edge")
        return self.graph.edges

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name_of(k): i for i, k in enumerate(self.keys)}

    def of(self, name: str) -> Float[Tensor, " prompt"]:
        """The scores of one edge (`a0.h1->a1.h0<q>`) or node (`L0.z head=1`) by prompt."""
        if name not in self._rows:
            raise unknown("edge" if self.graph is not None else "node", name, list(self._rows)[:40])
        return self.values[self._rows[name]]

    def resampling(self) -> Any:
        """The resamples that the intervals share: by template where the task names templates."""
        from interp import stats

        task = self.sides.task
        clusters = None if task.cluster is None else task.cluster.cpu().numpy()
        return stats.resampling(task.n, np.random.default_rng(self.seed), clusters)

    def columns(self) -> dict[str, Any]:
        """Columns that are the same in every row."""
        task, metric = self.sides.task, self.sides.metric
        stated = {
            "model": self.sides.model.name, "task": task.name, "metric": metric.name, "unit": metric.unit_for(task),
            "split": task.meta.get("split"), "corruption": task.meta.get("corruption"), "direction": "ablate",
            **self.about,
        }  # fmt: skip
        return {k: v if isinstance(v, str) else str(v) for k, v in stated.items() if v is not None}

    def table(self) -> pd.DataFrame:
        """Tidy frame in the attribution schema: score, interval, share of the clean-corrupt gap."""
        from interp.results.frames import score_rows

        sign = -1.0 if self.sides.metric.loss_like else 1.0
        sides: dict[str, Any] = {}
        if self.signed and sign > 0:
            sides = {side: array(self.sides.value(side)) for side in ("clean", "corrupt")}  # type: ignore[arg-type]
        keys = [dict(k) for k in self.keys]
        return score_rows(keys, array(self.values), self.resampling(), seed=self.seed, **sides, **self.columns())

    def examples(self) -> pd.DataFrame:
        """The score of every row and prompt."""
        from interp.results.frames import example_rows
        from interp.results.schemas import ATTRIBUTION

        return example_rows([dict(k) for k in self.keys], array(self.values), ATTRIBUTION, **self.columns())

    def result(self, examples: bool = True) -> Table:
        """What an experiment returns: the table, and the numbers per prompt."""
        from interp.results.frames import Table
        from interp.results.schemas import ATTRIBUTION

        return Table(self.table(), ATTRIBUTION, examples=self.examples() if examples else None)

    def __repr__(self) -> str:
        what = ", ".join(f"{k}={v}" for k, v in self.about.items() if v is not None)
        return f"Scores({len(self)} rows × {self.values.shape[1]} prompts; {what})"


def name_of(key: Key) -> str:
    """A row's name: the edge's, or the node's site with its parts."""
    if "dst" in key:
        return f"{key['src']}->{key['dst']}"
    where = key["site"] if key.get("layer") is None else f"L{key['layer']}.{key['site']}"
    return " ".join([where, *(f"{k}={v}" for k, v in key.items() if k not in ("site", "layer") and v is not None)])


def array(t: Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy()


def edge_rows(graph: Graph, table: Float[Tensor, "prompt source slot"]) -> Float[Tensor, "edge prompt"]:
    """The scores of the graph's edges, in its order, out of a table over all sources and slots."""
    parts = [table[:, : graph.upstream(slot), i].T for i, slot in enumerate(graph.slots)]
    import torch

    return torch.cat(parts)


def edge_keys(graph: Graph) -> tuple[Key, ...]:
    """The rows' keys of a graph's edges."""
    sources = [str(n) for n in graph.sources]
    return tuple(
        {"src": src, "dst": name}
        for name, n in ((str(s), graph.upstream(s)) for s in graph.slots) for src in sources[:n]
    )  # fmt: skip


def by_prompt(rows: Float[Tensor, "row ..."], prompt_of_row: Sequence[int] | Tensor, n: int) -> Tensor:
    """Rows summed over the prompt they belong to (answers of several tokens have several rows)."""
    import torch

    index = torch.as_tensor(prompt_of_row, device=rows.device)
    if len(index) == n:
        return rows
    return rows.new_zeros(n, *rows.shape[1:]).index_add_(0, index, rows)
