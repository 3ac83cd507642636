"""Running circuits for evaluation: one model, one task, one recipe, any circuits of the graph.

`m(C)` is the metric with everything outside C ablated, per prompt; `m(N)` the whole model's, `m(∅)` that of the
empty circuit. The base run and the ablation are computed once; circuits are rows of packed passes.

    f(C) = (m(C) − m(∅)) / (m(N) − m(∅)) of the means over prompts

Source: 2504.13151, 2407.08734.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp import stats
from interp.circuits.values import Circuit
from interp.graph import Graph
from interp.interventions.circuit import CircuitRunner, require_graph
from interp.interventions.effects import Progress
from interp.interventions.plan import DEFAULT, Options
from interp.interventions.sources import Recipe
from interp.interventions.sweep import Sides
from interp.metric_values import Metric
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Task

CORRUPT = Recipe()


@dataclass(frozen=True, eq=False)
class Evaluator:
    """A base run with its ablated sources, that runs circuits of one graph. Make one with `Evaluator.of`."""

    runner: CircuitRunner
    recipe: Recipe

    @staticmethod
    def of(
        model: Model,
        task: Task,
        metric: str | Metric = "logit_diff",
        *,
        recipe: Recipe = CORRUPT,
        ungrouped: bool = False,
        options: Options = DEFAULT,
    ) -> Evaluator:
        """Run the clean prompts and the ablation once. UserError where edges are not defined on the model.

        >>> import interp
        >>> model = interp.load_model("toy-ioi")
        >>> task = interp.load_task("ioi", model, n=8)
        >>> from interp.circuits.values import Circuit
        >>> evaluator = Evaluator.of(model, task, "logit_diff")
        >>> evaluator.values([Circuit.empty(evaluator.graph)]).shape  # circuits, prompts
        torch.Size([1, 8])
        """
        graph = Graph(model.geometry, ungrouped)
        return Evaluator(CircuitRunner.prepare(Sides(model, task, metric), graph, recipe, "clean", options), recipe)

    @property
    def graph(self) -> Graph:
        return self.runner.graph

    @property
    def task(self) -> Task:
        return self.runner.sides.task

    @property
    def metric(self) -> Metric:
        return self.runner.sides.metric

    def values(self, circuits: Sequence[Circuit], progress: Progress | None = None) -> Float[Tensor, "circuit prompt"]:
        """m(C) of each circuit and prompt, in the metric's unit. UserError for a circuit of another graph."""
        if not circuits:
            return torch.zeros(0, self.task.n)
        for c in circuits:
            require_graph(c.graph, self.runner.sides.model)
            if c.graph != self.graph:
                raise UserError(f"this circuit is of another {c.graph}; here it is a {self.graph}")
        return self.runner.values(torch.stack([c.mask for c in circuits]), progress)

    @cached_property
    def _ends(self) -> Float[Tensor, "two prompt"]:
        return self.values([Circuit.full(self.graph), Circuit.empty(self.graph)])

    @property
    def whole(self) -> Float[Tensor, " prompt"]:
        """m(N): the whole model."""
        return self._ends[0]

    @property
    def nothing(self) -> Float[Tensor, " prompt"]:
        """m(∅): everything ablated."""
        return self._ends[1]

    def faithfulness(self, values: Float[Tensor, "circuit prompt"]) -> stats.Ratio:
        """f of each circuit with its 95% interval over prompts; null with the reason where m(N) = m(∅)."""
        x, whole, nothing = (t.detach().double().cpu().numpy() for t in (values, self.whole, self.nothing))
        return stats.ratio(x, whole, nothing, self.resampling)

    @cached_property
    def resampling(self) -> stats.Resampling:
        """Resamples of the prompts that all intervals share; by template where the task names templates."""
        clusters = None if self.task.cluster is None else self.task.cluster.cpu().numpy()
        return stats.resampling(self.task.n, np.random.default_rng(self.recipe.seed), clusters)

    def about(self) -> dict[str, Any]:
        """The recipe, as columns of a table."""
        sides, meta = self.runner.sides, self.task.meta
        stated = {
            "model": sides.model.name, "task": self.task.name, "metric": self.metric.name,
            "unit": self.metric.unit_for(self.task), "split": meta.get("split"), "corruption": meta.get("corruption"),
            "direction": "ablate", "ablation": self.runner.name, "granularity": "edge", "positions": "all",
            "components": "ungrouped" if self.graph.ungrouped else "grouped", "seed": self.recipe.seed,
        }  # fmt: skip
        return {k: v if isinstance(v, int) else str(v) for k, v in stated.items() if v is not None}
