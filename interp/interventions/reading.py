"""Reading a metric off a replayed pass: only the logits it needs, only at its positions.

A metric that compares answer tokens needs a dot product with their unembedding columns; one that needs a
distribution gets the whole vocabulary at the answer positions; one that needs every position gets everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.values import Prompts
from interp.metric_values import LogitsView, Metric, Reads, view_columns
from interp.models.forward import cap_logits, unembed
from interp.models.net import Net
from interp.models.weights import unembedding
from interp.tasks.values import Answers, Side, Task


@dataclass(frozen=True, eq=False)
class Reader:
    """A metric on one side of a task, with the reference it may compare with."""

    net: Net
    task: Task
    metric: Metric
    side: Side
    reference: LogitsView | None = None

    @property
    def prompts(self) -> Prompts:
        return self.task.prompts(self.side)

    @property
    def reads(self) -> Reads:
        return self.metric.reads_for(self.task)

    @cached_property
    def columns(self) -> Int[Tensor, ...] | None:
        """Columns whose logits are read, `[kept]` where all rows agree, `[row, kept]`, or None for all."""
        if self.reads == "all":
            return None
        columns = view_columns(self.task, self.side).to(self.net.device)
        return columns[0] if bool((columns == columns[0]).all()) else columns

    def view(self, x: Float[Tensor, "row kept d_model"]) -> LogitsView:
        """The metric's view, from what the unembedding receives at the columns read."""
        if self.reads == "answers":
            return LogitsView(self._scores(x[:, 0], "right"), self._scores(x[:, 0], "wrong"), side=self.side)
        logits = unembed(self.net, x)
        if self.reads == "vocab":
            return LogitsView(vocab=logits, side=self.side)
        return LogitsView(full=logits, side=self.side)

    def values(self, x: Float[Tensor, "row kept d_model"]) -> Float[Tensor, " prompt"]:
        """The metric, one number per prompt."""
        return self.metric.from_view(self.view(x), self.task, self.reference)

    def of_logits(self, logits: Float[Tensor, "row pos d_vocab"]) -> Float[Tensor, " prompt"]:
        """The metric from a whole run's logits."""
        return self.metric(logits, self.task, self.side, self.reference)

    def _scores(self, x: Float[Tensor, "row d_model"], which: str) -> Float[Tensor, "row answer"]:
        weight, bias = self._directions[which]
        logits = torch.einsum("bd,bad->ba", x, weight)
        return cap_logits(self.net, logits if bias is None else logits + bias)

    @cached_property
    def _directions(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Unembedding columns of each prompt's answers, `[row, answer, d_model]`, and their biases."""
        w_u, b_u = unembedding(self.net)
        has_bias = getattr(self.net.unembed, "bias", None) is not None

        def of(answers: Answers) -> tuple[Tensor, Tensor | None]:
            ids = answers.first.to(w_u.device)
            return w_u.T[ids], b_u[ids] if has_bias else None

        return {"right": of(self.task.right), "wrong": of(self.task.wrong)}
