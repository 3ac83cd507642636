"""Reading a metric off a replayed pass: only the logits it needs, only at its positions.

A metric that compares answer tokens needs a dot product with their unembedding columns; one that needs a
distribution gets the whole vocabulary at the answer positions; one that needs every position gets everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.context import Held
from interp.hooks.prompts import Prompts
from interp.metric_values import LogitsView, Metric, Reads, view_columns
from interp.models.forward import cap_logits, final_norm, unembed
from interp.models.linear import reads_as_linear
from interp.models.net import Net
from interp.models.weights import unembedding
from interp.tasks.values import Side, Task, other_side

LOGITS = 1 << 26
"""Logits held at a time where a metric reads the vocabulary."""
ANSWERS = 4
"""Answers whose logits are summed at a time."""


@dataclass(frozen=True, eq=False)
class Reader:
    """A metric on one side of a task, with the reference it may compare with."""

    net: Net
    task: Task
    metric: Metric
    side: Side
    reference: LogitsView | Callable[[], LogitsView | None] | None = None
    """What the metric compares with, or what gives it once it is wanted."""

    @property
    def prompts(self) -> Prompts:
        return self.task.prompts(self.side)

    @property
    def compared(self) -> LogitsView | None:
        """The unedited run's view that the metric compares with, where it does."""
        return self.reference() if callable(self.reference) else self.reference

    @property
    def reads(self) -> Reads:
        return self.metric.reads_for(self.task)

    @cached_property
    def other(self) -> Reader:
        """What reads the same metric on the task's other side."""
        return replace(self, side=other_side(self.side))

    def reads_alike(self, other: Reader) -> bool:
        """Whether another reader, of the same prompts, has the same metric and answers."""
        mine, theirs = self.task, other.task
        return self.metric == other.metric and mine.right is theirs.right and mine.wrong is theirs.wrong

    @cached_property
    def columns(self) -> Int[Tensor, ...] | None:
        """Columns whose logits are read, `[kept]` where all rows agree, `[row, kept]`, or None for all."""
        if self.reads == "all":
            return None
        columns = view_columns(self.task, self.side).to(self.net.device)
        return columns[0] if bool((columns == columns[0]).all()) else columns

    @cached_property
    def first_column(self) -> int:
        """The first column whose logits are read."""
        return 0 if self.columns is None else int(self.columns.min())

    def view(self, x: Float[Tensor, "row kept d_model"]) -> LogitsView:
        """The metric's view, from what the unembedding receives at the columns read."""
        return next(self.views(x[None]))

    def views(self, x: Float[Tensor, "item row kept d_model"], loose: bool = False) -> Iterator[LogitsView]:
        """The view of each of several runs, their logits computed together; `loose` as `Net` has it."""
        if self.reads == "answers":
            view = self._of_answers(x)
            for right, wrong in zip(view.right, view.wrong, strict=True):  # type: ignore[arg-type]
                yield LogitsView(right, wrong, side=self.side)
            return
        net, numbers = replace(self.net, loose=loose), x.shape[1] * x.shape[2] * self.net.geometry.d_vocab
        for part in x.split(max(1, LOGITS // numbers)):
            for logits in unembed(net, part.flatten(0, 1)).view(*part.shape[:3], -1):
                whole = self.reads == "all"
                yield LogitsView(full=logits, side=self.side) if whole else LogitsView(vocab=logits, side=self.side)

    def view_of_final(self, resid: Float[Tensor, "row pos d_model"]) -> LogitsView:
        """The metric's view, from the residual after the last block at all columns."""
        columns = self.columns
        if columns is not None:
            resid = Held(self.prompts, columns, False).take(resid)
        return self.view(final_norm(self.net, resid))

    def values(self, x: Float[Tensor, "row kept d_model"]) -> Float[Tensor, " prompt"]:
        """The metric, one number per prompt."""
        return self.metric.from_view(self.view(x), self.task, self.compared)

    def values_of(self, x: Float[Tensor, "item row kept d_model"]) -> Float[Tensor, "item prompt"]:
        """The metric of each of several replayed runs."""
        if self.metric.many and self.reads == "answers":
            return self.metric.from_view(self._of_answers(x), self.task, self.compared)
        return torch.stack(list(self.metric.from_views(self.views(x, loose=True), self.task, self.compared)))

    def of_logits(self, logits: Float[Tensor, "row pos d_vocab"]) -> Float[Tensor, " prompt"]:
        """The metric from a whole run's logits."""
        return self.metric(logits, self.task, self.side, self.compared)

    def _of_answers(self, x: Float[Tensor, "item row kept d_model"]) -> LogitsView:
        """The answers' logits of several runs, `[item, row, answer]`."""
        right = self.task.right.tokens.shape[1]
        scores = self._scores(x[:, :, 0])
        return LogitsView(scores[..., :right], scores[..., right:], side=self.side)

    def _scores(self, x: Float[Tensor, "item row d_model"]) -> Float[Tensor, "item row answer"]:
        """Logits of the right answers, then of the wrong ones.

        Summed number by number, a few answers at a time: a matrix product's rounding would depend on how many
        interventions are read together, and a sweep that was cut short and went on would not give the same bits.
        """
        if self._directions is None:
            every = (unembed(self.net, one) for one in x)  # one at a time: the whole vocabulary
            return torch.stack([logits.gather(1, self._answers.to(logits.device)) for logits in every])
        weight, bias = self._directions
        logits = torch.cat([(x[:, :, None] * some).sum(-1) for some in weight.split(ANSWERS, 1)], -1)
        return cap_logits(self.net, logits if bias is None else logits + bias)

    @cached_property
    def _answers(self) -> Int[Tensor, "row answer"]:
        return torch.cat([self.task.right.first, self.task.wrong.first], 1)

    @cached_property
    def _directions(self) -> tuple[Float[Tensor, "row answer d_model"], Float[Tensor, "row answer"] | None] | None:
        """Unembedding columns of each prompt's answers, and their biases; None where it is no linear map to read."""
        if self.net.unembed is not None and not reads_as_linear(self.net.unembed):
            return None
        w_u, b_u = unembedding(self.net)
        ids = self._answers.to(w_u.device)
        has_bias = getattr(self.net.unembed, "bias", None) is not None
        return w_u.T[ids], b_u[ids] if has_bias else None
