"""Repeated random tokens, and what attention patterns do on them: the sequences that name a head's kind.

A sequence is a segment of T distinct tokens, twice (after BOS, where asked). With i a query of the sequence and
j the key it reads, the scores of a head are means of its pattern over real queries:

    previous      pattern[i, i−1]        i ≥ 2 (at 1 there is little else to read)
    duplicate     pattern[i, i−T]        second copy
    induction     pattern[i, i−T+1]      second copy
    current       pattern[i, i]          i ≥ 2
    first         pattern[i, 0]          i ≥ 2
    entropy       −Σ_j p log p, nats     i ≥ 2

Positions count from the sequence's first token, BOS included. Source: Olsson et al. 2022 (2209.11895).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.prompts import Prompts
from interp.registry import UserError

SCORES = ("previous", "duplicate", "induction", "current", "first", "entropy")


def repeated(
    tokens: Sequence[int], period: int, n: int, seed: int = 0, bos: int | None = None, *, n_ctx: int | None = None
) -> Prompts:
    """`n` prompts, each a segment of `period` distinct tokens drawn from `tokens`, twice.

    Raises UserError where the period is under 2, tokens are too few, or the prompt is longer than `n_ctx`.

    >>> repeated(range(1, 9), 3, 2, bos=0).tokens.shape
    torch.Size([2, 7])
    """
    drawn = [t for t in tokens if t != bos]
    if period < 2 or n < 1:
        raise UserError(f"repeated tokens need a period of at least 2 and at least one prompt, got {period} and {n}")
    if len(drawn) < period:
        raise UserError(
            f"a period of {period} distinct tokens was asked, the vocabulary has {len(drawn)} ordinary ones"
        )
    length = 2 * period + (bos is not None)
    if n_ctx is not None and length > n_ctx:
        raise UserError(f"period {period} makes prompts of {length} tokens, the model's context holds {n_ctx}")
    rng = random.Random(f"repeated:{seed}:{period}:{bos is not None}")
    start = [] if bos is None else [bos]
    segments = [rng.sample(drawn, period) for _ in range(n)]
    return Prompts.of([[*start, *segment, *segment] for segment in segments])


def pattern_scores(
    pattern: Float[Tensor, "batch head query key"], period: int, bos: bool
) -> dict[str, Float[Tensor, "batch head"]]:
    """Each head's scores on each of the prompts that `repeated` made, by name (see the module's docstring)."""
    second = period + bos
    if pattern.shape[-1] != second + period:
        raise UserError(f"a pattern over {pattern.shape[-1]} tokens does not fit period {period}, bos={bos}")
    rest = pattern[:, :, 2:]
    safe = torch.where(rest > 0, rest, torch.ones_like(rest))
    return {
        "previous": _stripe(pattern, 1, 2),
        "duplicate": _stripe(pattern, period, second),
        "induction": _stripe(pattern, period - 1, second),
        "current": _stripe(pattern, 0, 2),
        "first": rest[..., 0].mean(-1),
        "entropy": -(rest * safe.log()).sum(-1).mean(-1),
    }


def _stripe(pattern: Tensor, back: int, first: int) -> Float[Tensor, "batch head"]:
    """Mean of pattern[i, i − back] over queries i ≥ first."""
    query = torch.arange(max(first, back), pattern.shape[-1], device=pattern.device)
    return pattern[:, :, query, query - back].mean(-1)
