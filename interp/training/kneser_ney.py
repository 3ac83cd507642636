"""Interpolated Kneser-Ney trigram: the count-based model that a small language model has to beat.

    P(w | u v) = max(c(uvw) − D₃, 0)/c(uv·) + D₃ N(uv·)/c(uv·) · P(w | v)
    P(w | v)   = max(N(·vw) − D₂, 0)/N(·v·) + D₂ N(v·)/N(·v·) · P(w)
    P(w)       = max(N(·w) − D₁, 0)/N(··)  + D₁ N₊/N(··) · 1/V

c counts tokens, N counts distinct neighbours (continuation counts), and each order's discount is
n₁/(n₁ + 2n₂), from the numbers of grams seen once and twice.

Source: Kneser & Ney 1995, interpolated as in Chen & Goodman 1998 (one discount per order).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from interp.registry import UserError

Tokens = Int[np.ndarray, " token"]


@dataclass(frozen=True, eq=False)
class Order:
    """Counts of one order: of each gram, and of each context over all words that follow."""

    grams: Int[np.ndarray, " gram"]
    count: Float[np.ndarray, " gram"]
    contexts: Int[np.ndarray, " context"]
    total: Float[np.ndarray, " context"]
    kinds: Float[np.ndarray, " context"]
    """Distinct words seen after each context."""
    discount: float


@dataclass(frozen=True, eq=False)
class Trigram:
    """A fitted model over the tokens 0 … vocabulary − 1."""

    vocabulary: int
    orders: tuple[Order, Order, Order]
    """Unigrams, bigrams (both by distinct left neighbours), trigrams (by count)."""

    def probability(self, u: Tokens, v: Tokens, w: Tokens) -> Float[np.ndarray, " token"]:
        """P(w | u v), elementwise; unseen contexts fall back to the lower order."""
        n = self.vocabulary
        below = np.full(len(w), 1.0 / n)
        contexts = (np.zeros_like(w), v, u * n + v)
        for order, context in zip(self.orders, contexts, strict=True):
            count = _look(order.grams, order.count, context * n + w)
            total = _look(order.contexts, order.total, context)
            kinds = _look(order.contexts, order.kinds, context)
            seen = np.maximum(total, 1.0)
            mixed = np.maximum(count - order.discount, 0) / seen + order.discount * kinds / seen * below
            below = np.where(total > 0, mixed, below)
        return below

    def nats(self, stream: Tokens, at: Int[np.ndarray, " place"]) -> Float[np.ndarray, " place"]:
        """−log P of the tokens at these places (each ≥ 2) of a stream, from the two before each."""
        if len(at) and int(at.min()) < 2:
            raise UserError("a trigram needs two tokens before each place it predicts")
        p = self.probability(stream[at - 2], stream[at - 1], stream[at])
        return np.asarray(-np.log(p))


def fit(tokens: Tokens, vocabulary: int) -> Trigram:
    """Count a stream of tokens.

    >>> t = fit(np.array([0, 1, 2, 0, 1, 2, 0, 1, 3]), 4)
    >>> every = np.arange(4)
    >>> round(float(t.probability(np.zeros(4, int), np.ones(4, int), every).sum()), 12)
    1.0
    """
    if len(tokens) < 3 or int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary:
        raise UserError(f"a trigram needs at least 3 tokens, each from 0 to {vocabulary - 1}")
    n, t = vocabulary, tokens.astype(np.int64)
    trigrams, count = np.unique((t[:-2] * n + t[1:-1]) * n + t[2:], return_counts=True)
    # continuation counts: how many distinct words stand to the left of each shorter gram
    bigrams, left = np.unique(trigrams % (n * n), return_counts=True)
    unigrams, lefter = np.unique(np.unique(t[:-1] * n + t[1:]) % n, return_counts=True)
    return Trigram(vocabulary, (_order(unigrams, lefter, n), _order(bigrams, left, n), _order(trigrams, count, n)))


def _order(grams: Tokens, count: Tokens, n: int) -> Order:
    contexts, where = np.unique(grams // n, return_inverse=True)
    total = np.bincount(where, weights=count.astype(np.float64))
    kinds = np.bincount(where).astype(np.float64)
    once, twice = int((count == 1).sum()), int((count == 2).sum())
    discount = once / (once + 2 * twice) if once else 0.5
    return Order(grams, count.astype(np.float64), contexts, total, kinds, discount)


def _look(
    keys: Int[np.ndarray, " key"], values: Float[np.ndarray, " key"], wanted: Tokens
) -> Float[np.ndarray, " token"]:
    """Values by sorted key, 0 where a key is absent."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0.0)
