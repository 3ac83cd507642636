"""Metrics: logits and a task in, one number per prompt out.

Every metric is one function of a `LogitsView` (see `metric_values.py`), a task, and where it asks for one the
view of an unedited run. Each declares its unit, which way is better, whether it grows as the behaviour is
lost, and what it reads. Means, errors and intervals are `interp.stats`'. Half precision is read as float32.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.metric_values import (
    METRICS,
    LogitsView,
    Metric,
    Reads,
    answer_logprobs,
    answer_scores,
    cut,
    get_metric,
    mean_over,
    need,
    only,
    precise,
    register_metric,
    row_answers,
    view_columns,
    without,
)  # fmt: skip
from interp.registry import UserError
from interp.tasks.values import Task

__all__ = [
    "METRICS", "LogitsView", "Metric", "Reads", "accuracy", "answer_logprobs", "answer_scores",
    "choice_accuracy", "cross_entropy", "cut", "get_metric", "interchange_accuracy", "kl", "logit", "logit_diff",
    "logprob", "prob_diff", "rank", "register_metric", "view_columns",
]  # fmt: skip


@register_metric(unit="logits", better="higher", reads="answers", needs_wrong=True, unit_several="nats", many=True)
def logit_diff(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, "*run prompt"]:
    """Mean logit over the right answers − mean over the wrong ones.

    Answers of several tokens: their summed log-probabilities in the place of logits, in nats.
    """
    right, wrong = answer_scores(view, task)
    return mean_over(right, task.right) - mean_over(wrong, task.wrong)


@register_metric(unit="probability", better="higher", reads="vocab", needs_wrong=True)
def prob_diff(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """Summed probability of the right answers − of the wrong ones, between −1 and 1."""
    right, wrong = answer_logprobs(view, task)
    return right.exp().sum(1) - wrong.exp().sum(1)


@register_metric(unit="logits", better="higher", reads="answers", unit_several="nats", many=True)
def logit(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, "*run prompt"]:
    """Mean logit of the right answers (several tokens: mean summed log-probability, in nats)."""
    return mean_over(answer_scores(view, task)[0], task.right)


@register_metric(unit="nats", better="higher", reads="vocab")
def logprob(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """Log of the summed probability of the right answers, in nats, at most 0."""
    return answer_logprobs(view, task)[0].logsumexp(1)


@register_metric(unit="nats", better="lower", reads="vocab", needs_reference=True)
def kl(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """KL(reference ‖ run) at the answer position, summed over the vocabulary, in nats.

    No gradient flows into the reference.
    """
    assert reference is not None
    first = task.first_rows.to(need(view.vocab, "vocab").device)
    log_q = precise(need(view.vocab, "vocab"))[first, 0].log_softmax(-1)
    log_p = precise(need(reference.vocab, "vocab")).detach().to(log_q.device)[first, 0].log_softmax(-1)
    # a token the reference gives no probability adds nothing (its logit may be −inf)
    return torch.where(log_p.isneginf(), 0.0, log_p.exp() * (log_p - log_q)).sum(-1)


@register_metric(unit="fraction", better="higher", reads="vocab", differentiable=False)
def accuracy(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """1 where greedy decoding gives a right answer in full, else 0; a tie with another token counts 0."""
    vocab = precise(need(view.vocab, "vocab")).detach()
    if task.single:
        right = task.right.first.to(vocab.device)
        mine = torch.where(task.right.present.to(vocab.device), vocab[:, 0].gather(1, right), -torch.inf)
        rest = without(vocab[:, 0], task.right)
        return (mine.amax(1) > rest.amax(1)).to(vocab.dtype)
    assert task.right_of_row is not None
    tokens, real = (t.to(vocab.device) for t in row_answers(task))
    top = vocab[:, : tokens.shape[1]].topk(2, dim=-1)
    won = (top.indices[..., 0] == tokens) & (top.values[..., 0] > top.values[..., 1])
    whole = (won | ~real).all(1) & task.right_of_row.to(vocab.device)
    hits = vocab.new_zeros(task.n).index_add(0, task.prompt_of_row.to(vocab.device), whole.to(vocab.dtype))
    return (hits > 0).to(vocab.dtype)


@register_metric(unit="rank", better="lower", reads="vocab", differentiable=False)
def rank(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """How many tokens of the vocabulary have a higher logit than the best right answer; 0 is the top.

    Answers of several tokens: the rank of their first token. Other right answers never count against one
    another; a tie does.
    """
    vocab = precise(need(view.vocab, "vocab")).detach()[task.first_rows.to(need(view.vocab, "vocab").device), 0]
    right = vocab.gather(1, task.right.first.to(vocab.device))
    best = torch.where(task.right.present.to(vocab.device), right, -torch.inf).amax(1)
    return (without(vocab, task.right) >= best[:, None]).sum(1).to(vocab.dtype)


@register_metric(unit="fraction", better="higher", reads="answers", differentiable=False, needs_wrong=True, many=True)
def choice_accuracy(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, "*run prompt"]:
    """1 where the best right answer scores above every wrong one, else 0; a tie counts 0."""
    right, wrong = (
        only(s, a).detach().amax(-1) for s, a in zip(answer_scores(view, task), (task.right, task.wrong), strict=True)
    )
    return (right > wrong).to(right.dtype)


@register_metric(unit="fraction", better="higher", reads="answers", differentiable=False, needs_wrong=True, many=True)
def interchange_accuracy(
    view: LogitsView, task: Task, reference: LogitsView | None = None
) -> Float[Tensor, "*run prompt"]:
    """1 where the run's choice among the answers is what is right after the donor's prompt, else 0.

    The donor is the pair's other prompt, whose activations an interchange puts into this run: side
    `corrupt` counts the choice of a right answer, side `clean` the choice of a wrong one, which is defined
    where the wrong answers are right after the corrupt prompt (`task.counterfactual`). Without any edit a
    perfect model scores 0; swapping everything scores 1. A tie counts 0. Source: 2106.02997.
    """
    right, wrong = (
        only(s, a).detach().amax(-1) for s, a in zip(answer_scores(view, task), (task.right, task.wrong), strict=True)
    )
    if view.side == "corrupt":
        return (right > wrong).to(right.dtype)
    if not task.counterfactual:
        raise UserError(
            f"interchange_accuracy from corrupt into clean runs needs a corruption with a right answer of its own; "
            f"that of task {task.name!r} has none (for ioi: s2_to_io or swap_all; for a table: counterfactual=True)"
        )
    return (wrong > right).to(right.dtype)


@register_metric(unit="nats/token", better="lower", reads="all")
def cross_entropy(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """Mean negative log-likelihood of the prompt's own tokens, over its real transitions; padding is ignored."""
    prompts, first = task.prompts(view.side), task.first_rows
    logits = need(view.full, "all")
    tokens, length, start = (t[first].to(logits.device) for t in (prompts.tokens, prompts.lengths, prompts.starts))
    if bool((length < 2).any()):
        short = int((length < 2).int().argmax())
        raise UserError(f"cross_entropy needs prompts of at least 2 tokens; prompt {short} has 1")
    column = torch.arange(tokens.shape[1] - 1, device=logits.device)[None]
    real = (column >= start[:, None]) & (column + 1 < (start + length)[:, None])
    # padding columns may hold anything, NaN included: replaced before the softmax, so no gradient sees them
    read = precise(logits[first.to(logits.device), :-1]).masked_fill(~real[..., None], 0.0)
    loss = -read.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    return torch.where(real, loss, 0.0).sum(1) / real.sum(1)
