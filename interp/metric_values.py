"""What a metric is: `Metric`, its registry, the `LogitsView` it reads, and the scores of answers.

A metric declares what it `reads`, so that a planner need compute no more of the logits than that:

- `answers`: the logits of the right and wrong answer tokens at the answer position;
- `vocab`: all logits at the answer position (answers of several tokens: at the appended positions too);
- `all`: all logits at every position.

`metric(logits, task, side)` reads a whole run; `metric.from_view(view, task)` reads a `LogitsView` that holds
just what is needed. The first is the second after `metric.view(...)`, so they agree exactly. An answer of
several tokens scores its summed log-probability, which turns `answers` into `vocab` (`reads_for`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.registry import Registry, UserError
from interp.tasks.values import Answers, Side, Task

Reads = Literal["answers", "vocab", "all"]
Scores = tuple[Float[Tensor, "*run prompt right"], Float[Tensor, "*run prompt wrong"]]


@dataclass(frozen=True, eq=False)
class LogitsView:
    """The logits a metric reads. Fields that were not asked for are None; masks are the task's own."""

    right: Float[Tensor, "*run prompt right"] | None = None
    """`answers`: logits of the right answers (meaningless where `task.right.present` is False)."""
    wrong: Float[Tensor, "*run prompt wrong"] | None = None
    vocab: Float[Tensor, "row step d_vocab"] | None = None
    """`vocab`: step 0 is the answer position, step j the j-th appended token's."""
    full: Float[Tensor, "row pos d_vocab"] | None = None
    """`all`: every column of the padded run."""
    side: Side = "clean"
    """Which prompts were run."""


MetricFunction = Callable[[LogitsView, Task, LogitsView | None], Float[Tensor, "*run prompt"]]


@dataclass(frozen=True, eq=False)
class Metric:
    """A function of the logits with what must be known to read its numbers."""

    name: str
    fn: MetricFunction = field(repr=False)
    unit: str
    better: Literal["higher", "lower"]
    loss_like: bool
    """Grows as the behaviour is lost; attribution negates it first, ACDC requires it."""
    reads: Reads
    needs_reference: bool = False
    """Compares with an unedited run, whose logits are passed as `reference`."""
    differentiable: bool = True
    needs_wrong: bool = False
    unit_several: str | None = None
    """The unit where answers have several tokens, if another."""
    many: bool = False
    """Takes the answers' logits of several runs at once, `[run, prompt, answer]`, and gives `[run, prompt]`."""
    version: str = "1"
    summary: str = ""

    def reads_for(self, task: Task) -> Reads:
        """What must be computed for this task: answers of several tokens need the whole vocabulary."""
        return "vocab" if self.reads == "answers" and not task.single else self.reads

    def unit_for(self, task: Task) -> str:
        """The unit of the numbers for this task."""
        return self.unit if task.single or self.unit_several is None else self.unit_several

    def check(self, task: Task) -> None:
        """UserError where the metric has no value for this task; call it before anything runs."""
        if self.needs_wrong and not task.wrong.everywhere:
            none = int((~task.wrong.present.any(1)).int().argmax())
            raise UserError(
                f"metric {self.name!r} compares right with wrong answers, but prompt {none} of task "
                f"{task.name!r} has no wrong answer; accuracy, rank, logprob, kl and cross_entropy need none"
            )

    def view(self, logits: Float[Tensor, "row pos d_vocab"], task: Task, side: Side = "clean") -> LogitsView:
        """What this metric reads, cut out of the logits of a whole run of the task's `side`."""
        return cut(logits, task, side, self.reads_for(task))

    def from_view(
        self, view: LogitsView, task: Task, reference: LogitsView | None = None
    ) -> Float[Tensor, "*run prompt"]:
        """The metric from a view that holds what `reads_for(task)` names."""
        return next(self.from_views([view], task, reference))

    def from_views(
        self, views: Iterable[LogitsView], task: Task, reference: LogitsView | None = None
    ) -> Iterator[Float[Tensor, "*run prompt"]]:
        """The metric from the view of each of several runs."""
        self.check(task)
        if self.needs_reference and reference is None:
            raise UserError(f"metric {self.name!r} compares with an unedited run: pass its logits as reference=")
        for view in views:
            yield self.fn(view, task, reference)

    def __call__(
        self,
        logits: Float[Tensor, "row pos d_vocab"],
        task: Task,
        side: Side = "clean",
        reference: Float[Tensor, "row pos_ref d_vocab"] | LogitsView | None = None,
        reference_side: Side = "clean",
    ) -> Float[Tensor, " prompt"]:
        """The metric from a whole run's logits; `side` says which prompts were run.

        `reference` is the unedited run's logits (of `reference_side`), or a view of them.
        """
        if isinstance(reference, Tensor):
            reference = self.view(reference, task, reference_side)
        return self.from_view(self.view(logits, task, side), task, reference)


METRICS: Registry[Metric] = Registry("metric", group="interp.metrics", of=Metric)


def register_metric(
    *,
    unit: str,
    better: Literal["higher", "lower"],
    reads: Reads,
    name: str | None = None,
    loss_like: bool | None = None,
    needs_reference: bool = False,
    differentiable: bool = True,
    needs_wrong: bool = False,
    unit_several: str | None = None,
    many: bool = False,
    version: str = "1",
) -> Callable[[MetricFunction], Metric]:
    """Decorator: make a metric of `fn(view, task, reference)` and register it under the function's name.

    `loss_like` defaults to "lower is better"; `many` says that `fn` also takes an axis of runs before that of prompts.
    A name that is taken raises UserError.

    >>> @register_metric(unit="logits", better="higher", reads="answers", needs_wrong=True)
    ... def margin(view, task, reference=None):
    ...     '''Smallest lead of a right answer over a wrong one.'''
    ...     right, wrong = answer_scores(view, task)
    ...     return right.amin(1) - wrong.amax(1)
    >>> get_metric("margin").summary
    'Smallest lead of a right answer over a wrong one.'
    >>> _ = METRICS._rows.pop("margin")  # this example's own
    """

    def build(fn: MetricFunction) -> Metric:
        label = str(name or getattr(fn, "__name__", "metric"))
        lossy = better == "lower" if loss_like is None else loss_like
        summary = (fn.__doc__ or "").strip().split("\n")[0]
        metric = Metric(
            label, fn, unit, better, lossy, reads, needs_reference, differentiable, needs_wrong,
            unit_several, many, version, summary,
        )  # fmt: skip
        metric_doc(metric, fn)
        return METRICS.add(label, metric)

    return build


def metric_doc(metric: Metric, fn: MetricFunction) -> None:
    """Give the metric its function's docstring, so that help() shows what it computes."""
    object.__setattr__(metric, "__doc__", fn.__doc__)


def get_metric(metric: str | Metric) -> Metric:
    """A metric by name; an unknown name raises with the nearest ones."""
    return metric if isinstance(metric, Metric) else METRICS[metric]


def cut(logits: Float[Tensor, "row pos d_vocab"], task: Task, side: Side, reads: Reads) -> LogitsView:
    """The part of a whole run's logits that `reads` names."""
    prompts = task.prompts(side)
    if logits.shape[:2] != prompts.tokens.shape:
        raise UserError(
            f"logits {tuple(logits.shape)} are not of the {side} prompts of task {task.name!r}, which are "
            f"{tuple(prompts.tokens.shape)}"
        )
    if reads == "all":
        return LogitsView(full=logits, side=side)
    columns = view_columns(task, side).to(logits.device)
    rows = torch.arange(len(columns), device=logits.device)[:, None]
    if reads == "vocab":
        return LogitsView(vocab=logits[rows, columns], side=side)
    right, wrong = (a.first.to(logits.device) for a in (task.right, task.wrong))
    return LogitsView(right=logits[rows, columns, right], wrong=logits[rows, columns, wrong], side=side)


def view_columns(task: Task, side: Side) -> Tensor:
    """Columns whose logits are read, `[row, step]`: the answer position, then the appended tokens'.

    Rows with fewer appended tokens repeat their last one; those steps are never scored.
    """
    prompts = task.prompts(side)
    first = prompts.answer_columns
    if prompts.suffix is None:
        return first[:, None]
    steps = torch.arange(int(prompts.suffix.max()) + 1, device=first.device)
    return first[:, None] + torch.minimum(steps[None], prompts.suffix[:, None])


def answer_scores(view: LogitsView, task: Task) -> Scores:
    """Score of each answer: its logit, or the summed log-probability where answers have several tokens."""
    if task.single:
        return precise(need(view.right, "answers")), precise(need(view.wrong, "answers"))
    return answer_logprobs(view, task)


def answer_logprobs(view: LogitsView, task: Task) -> Scores:
    """Log-probability of each answer, in nats, summed over its tokens; −inf where there is no answer.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> view = get_metric("prob_diff").view(model.run(task.clean).logits, task, "clean")
    >>> right, wrong = answer_logprobs(view, task)
    >>> right.shape, bool((right > wrong).all())
    (torch.Size([8, 1]), True)
    """
    logp = precise(need(view.vocab, "vocab")).log_softmax(-1)
    if task.single:
        right, wrong = (logp[:, 0].gather(1, a.first.to(logp.device)) for a in (task.right, task.wrong))
        return only(right, task.right), only(wrong, task.wrong)
    assert task.right_of_row is not None
    assert task.answer_of_row is not None
    tokens, real = row_answers(task)
    steps = min(tokens.shape[1], logp.shape[1])
    picked = logp[:, :steps].gather(2, tokens[:, :steps, None].to(logp.device))[..., 0]
    score = torch.where(real[:, :steps].to(logp.device), picked, 0.0).sum(1)
    out = []
    for answers, rows in ((task.right, task.right_of_row), (task.wrong, ~task.right_of_row)):
        at = rows.nonzero().flatten()
        where = (task.prompt_of_row[at].to(logp.device), task.answer_of_row[at].to(logp.device))
        empty = score.new_full(answers.present.shape, -torch.inf)
        out.append(empty.index_put(where, score[at.to(logp.device)]))
    return out[0], out[1]


def need(part: Tensor | None, reads: str) -> Tensor:
    if part is None:
        raise UserError(f"this view does not hold what the metric reads ({reads!r}); build it with metric.view")
    return part


def precise(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def only(scores: Tensor, answers: Answers) -> Tensor:
    """−inf where there is no answer."""
    return torch.where(answers.present.to(scores.device), scores, -torch.inf)


def mean_over(scores: Tensor, answers: Answers) -> Tensor:
    if answers.complete:
        return scores[..., 0] if scores.shape[-1] == 1 else scores.mean(-1)
    present = answers.present.to(scores.device)
    return torch.where(present, scores, 0.0).sum(-1) / present.sum(-1)


def without(vocab: Tensor, answers: Answers) -> Tensor:
    """The logits with the answers' (first) tokens at −inf."""
    tokens, present = answers.first.to(vocab.device), answers.present.to(vocab.device)
    # padding repeats the first answer, so that token 0 is not struck out by accident
    tokens = torch.where(present, tokens, tokens[:, :1])
    return vocab.scatter(1, tokens, -torch.inf)


def row_answers(task: Task) -> tuple[Tensor, Tensor]:
    """Token ids and mask `[row, step]` of the answer each row is for."""
    assert task.right_of_row is not None
    assert task.answer_of_row is not None
    width = max(task.right.tokens.shape[2], task.wrong.tokens.shape[2])
    rows = len(task.prompt_of_row)
    tokens = task.prompt_of_row.new_zeros(rows, width)
    mask = torch.zeros(rows, width, dtype=torch.bool, device=tokens.device)
    for answers, at in ((task.right, task.right_of_row), (task.wrong, ~task.right_of_row)):
        here = at.nonzero().flatten()
        which = (task.prompt_of_row[here], task.answer_of_row[here])
        w = answers.tokens.shape[2]
        tokens[here, :w], mask[here, :w] = answers.tokens[which], answers.mask[which]
    return tokens, mask
