"""Held-out figures of `toy-ioi`, each with chance and the best constant answer on the same sample.

IOI: the argmax over the whole vocabulary is IO; IO above S; logit_diff (IO − S) on clean minus on corrupt.
Subject-verb: the argmax over the whole vocabulary is a verb that agrees. Induction: the argmax is the next token
of the segment, on second copies after their first token. Greater-than: P(later years) − P(others), the year
after against the year before, and two figures no constant answer can reach: the divergence from the grammar's
own distribution, and the mass that leaves the years up to YY when the first year is YY and not 01.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.tasks import lexicon
from interp.training import held_out
from interp.training.grammar import durations
from interp.training.recipes import Figure
from interp.training.vocabulary import BOS, SPECIAL, vocabulary

N = 1024
SHORTEST = 4
PAIR = "name pair and template"


@torch.no_grad()
def logits_of(model: nn.Module, rows: Sequence[Sequence[int]], chunk: int = 256) -> list[Float[Tensor, "pos d_vocab"]]:
    """Logits of each row, run in groups of equal length: no padding."""
    device = next(model.parameters()).device
    groups: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[len(row)].append(i)
    found: dict[int, Tensor] = {}
    for members in groups.values():
        for start in range(0, len(members), chunk):
            part = members[start : start + chunk]
            logits = model(torch.tensor([list(rows[i]) for i in part], device=device)).logits
            found.update(zip(part, logits.float().cpu(), strict=True))
    return [found[i] for i in range(len(rows))]


def _last(model: nn.Module, rows: Sequence[Sequence[int]]) -> Float[Tensor, "batch d_vocab"]:
    return torch.stack([logits[-1] for logits in logits_of(model, rows)])


def _share(values: Tensor) -> float:
    return float(values.double().mean())


def _most_common(items: Sequence[int]) -> float:
    """What always giving the most frequent right answer scores."""
    return Counter(items).most_common(1)[0][1] / len(items)


def _best_ranking(prompts: Sequence[held_out.IOIPrompt]) -> float:
    """Share of IO above S under one fixed ranking of names, by how much oftener each is IO than S here."""
    score = Counter(p.io for p in prompts)
    score.subtract(Counter(p.s for p in prompts))
    return sum((score[p.io] > score[p.s]) + 0.5 * (score[p.io] == score[p.s]) for p in prompts) / len(prompts)


def ioi_figures(model: nn.Module, seed: int, n: int = N) -> list[Figure]:
    """Accuracy without and with `<bos>`, IO above S, and the two drops of the logit difference."""
    prompts = held_out.ioi(seed, n)
    io, s = torch.tensor([p.io for p in prompts]), torch.tensor([p.s for p in prompts])

    def difference(logits: Float[Tensor, "batch d_vocab"]) -> Float[Tensor, " batch"]:
        at = torch.arange(len(prompts))
        return logits[at, io] - logits[at, s]

    clean = _last(model, [p.clean for p in prompts])
    with_bos = _last(model, [[vocabulary()[BOS], *p.clean] for p in prompts])
    to_io = difference(clean) - difference(_last(model, [p.s2_to_io for p in prompts]))
    to_other = difference(clean) - difference(_last(model, [p.s2_to_other for p in prompts]))
    chance, constant = 1 / len(lexicon.NAMES), _most_common([p.io for p in prompts])
    above = _share(difference(clean) > 0)
    return [
        Figure("ioi accuracy", _share(clean.argmax(-1) == io), chance, constant, 0.99, n, "fraction",
               held_out=PAIR, note="the argmax over the whole vocabulary is IO; chance is one of the names"),
        Figure("ioi accuracy with <bos>", _share(with_bos.argmax(-1) == io), chance, constant, 0.99, n, "fraction",
               held_out=PAIR),
        Figure("ioi IO above S", above, 0.5, _best_ranking(prompts), 0.99, n, "fraction", held_out=PAIR,
               note="the constant is one fixed ranking of the names, chosen on this sample"),
        Figure("ioi logit difference, clean − corrupt (S2 → IO)", float(to_io.mean()), 0.0, 0.0, 2.0, n, "logits",
               held_out=PAIR),
        Figure("ioi logit difference, clean − corrupt (S2 → other)", float(to_other.mean()), 0.0, 0.0, 2.0, n,
               "logits", held_out=PAIR),
    ]  # fmt: skip


def verb_figures(model: nn.Module, seed: int, n: int = N) -> list[Figure]:
    """Agreement with the subject across an attractor of the other number."""
    prompts = held_out.verbs(seed, n)
    ids = torch.tensor([[vocabulary()[word] for word in pair] for pair in lexicon.VERBS])
    number = torch.tensor([p.number for p in prompts])
    right: Int[Tensor, "batch verb"] = ids.T[number]
    top = _last(model, [p.tokens for p in prompts]).argmax(-1)
    accuracy = _share((top[:, None] == right).any(-1))
    chance = len(lexicon.VERBS) / len(vocabulary())
    constant = _most_common(number.tolist())
    return [
        Figure("subject-verb accuracy", accuracy, chance, constant, 0.95, n, "fraction",
               held_out="noun-attractor pair and template",
               note="the argmax over the whole vocabulary is a verb of the subject's number; the attractor always "
               "has the other number, so agreeing with the nearest noun scores 0"),
    ]  # fmt: skip


def induction_figures(model: nn.Module, seed: int, longest: int, n: int = N // 2) -> list[Figure]:
    """Accuracy on second copies of random segments of random length."""
    prompts = held_out.repeats(seed, n, SHORTEST, longest)
    right: list[bool] = []
    targets: list[int] = []
    for p, logits in zip(prompts, logits_of(model, [p.tokens for p in prompts]), strict=True):
        # the second copy's first token cannot be known; each later one follows from the first copy
        following = p.tokens[p.period + 1 :]
        right += (logits[p.period : -1].argmax(-1) == torch.tensor(following)).tolist()
        targets += following
    chance = 1 / (len(vocabulary()) - len(SPECIAL))
    return [
        Figure("induction accuracy", sum(right) / len(right), chance, _most_common(targets), 0.95, len(right),
               "fraction", held_out="random segments",
               note=f"segments of {SHORTEST} to {longest} distinct random tokens, {n} of them"),
    ]  # fmt: skip


def year_figures(model: nn.Module, seed: int) -> list[Figure]:
    """Greater-than: probability difference, the step at YY, divergence from the truth, shift against 01."""
    prompts = held_out.years(seed)
    n, count = len(prompts), len(lexicon.YEARS)
    ids = torch.tensor([vocabulary()[year] for year in lexicon.YEARS])
    year = torch.tensor([p.year for p in prompts])
    later = torch.arange(count)[None] > year[:, None]
    truth = torch.zeros(n, count, dtype=torch.float64)
    for row, prompt in enumerate(prompts):
        truth[row, prompt.year + 1 :] = torch.tensor(durations(count - 1 - prompt.year), dtype=torch.float64)
    p = _last(model, [q.tokens for q in prompts]).double().softmax(-1)[:, ids]
    early = _last(model, [q.early for q in prompts]).double().softmax(-1)[:, ids]

    def difference(q: Float[Tensor, "batch year"]) -> float:
        return _share((q * later).sum(-1) - (q * ~later).sum(-1))

    def divergence(q: Float[Tensor, "batch year"]) -> float:
        return _share((truth * (truth.clamp(min=1e-30).log() - q.log())).sum(-1))

    uniform = torch.full_like(truth, 1 / count)
    average = truth.mean(0, keepdim=True).clamp(min=1e-12).expand_as(truth)
    at = torch.arange(n)
    moved = _share(((early - p) * ~later).sum(-1))
    step = _share(p[at, year + 1] > p[at, year - 1])
    where = "year pair (century and starting year) and template"
    return [
        Figure("greater-than P(>YY) − P(≤YY)", difference(p), difference(uniform), 1.0, 0.8, n, "probability",
               held_out=where, note="always answering 99 scores 1, so this figure alone shows little"),
        Figure("greater-than P(YY+1) > P(YY−1)", step, 0.5, 1.0, 0.95, n, "fraction", held_out=where,
               note="any constant distribution that rises with the year scores 1; the next two figures need the "
               "prompt's own year"),
        Figure("greater-than divergence from the grammar", divergence(p), divergence(uniform), divergence(average),
               None, n, "nats", better="lower", held_out=where,
               note="KL from the grammar's later years to the model; the best constant is the truth's average"),
        Figure("greater-than mass leaving years ≤ YY, against first year 01", moved, 0.0, 0.0, None, n,
               "probability", held_out=where),
    ]  # fmt: skip


def toy_ioi_figures(model: nn.Module, seed: int, longest: int = 32) -> list[Figure]:
    """All figures of the card. The sample's seed is the training seed, salted: rows never share a stream."""
    drawn = seed + 1_000_003
    return [
        *ioi_figures(model, drawn),
        *induction_figures(model, drawn, longest),
        *year_figures(model, drawn),
        *verb_figures(model, drawn),
    ]
