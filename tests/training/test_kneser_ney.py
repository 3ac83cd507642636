"""Interpolated Kneser-Ney: probabilities by hand, normalised over every context, better than simpler counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interp.registry import UserError
from interp.training.kneser_ney import fit


def test_by_hand() -> None:
    """Stream a b a b a c over {a, b, c, d}.

    Trigrams aba 2, bab 1, bac 1 (a trigram seen once: n1 = 2, n2 = 1, D3 = 2/4); distinct bigram continuations
    ba 1, ab 1, ac 1 (n1 = 3, n2 = 0, D2 = 1); distinct bigrams ab, ba, ac end in b, a, c once each (D1 = 1), so the
    unigram is uniform: (1 − 1)/3 + 1·3/3·¼ = ¼. P(b | a) = max(1 − 1, 0)/2 + 1·2/2·¼ = ¼.
    P(b | b a) = (1 − ½)/2 + ½·2/2·¼ = 0.375, and d, never seen, ½·¼ = 0.125.
    """
    model = fit(np.array([0, 1, 0, 1, 0, 2]), 4)
    assert [o.discount for o in model.orders] == [1.0, 1.0, 0.5]
    found = model.probability(np.array([1, 1, 1, 1]), np.array([0, 0, 0, 0]), np.arange(4))
    assert found.tolist() == pytest.approx([0.125, 0.375, 0.375, 0.125])
    # the context c c was never seen: the bigram after c neither, so the unigram
    unseen = model.probability(np.array([2]), np.array([2]), np.array([1]))
    assert unseen.tolist() == pytest.approx([0.25])


def test_every_context_sums_to_one() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 7, 300) * rng.integers(0, 2, 300)
    model = fit(tokens, 9)
    w = np.arange(9)
    for u in range(9):
        for v in range(9):
            assert model.probability(np.full(9, u), np.full(9, v), w).sum() == pytest.approx(1.0, abs=1e-12)
            assert model.probability(np.full(9, u), np.full(9, v), w).min() > 0


def test_beats_the_unigram_on_a_chain_of_order_two() -> None:
    """The next token is the sum of the two before, usually: a trigram's loss nears the chain's own entropy."""
    rng = np.random.default_rng(1)
    stream = [1, 2]
    for _ in range(6000):
        stream.append((stream[-1] + stream[-2]) % 5 if rng.random() < 0.8 else int(rng.integers(5)))
    train, test = np.array(stream[:4000]), np.array(stream[4000:])
    nats = fit(train, 5).nats(test, np.arange(2, len(test))).mean()
    right = 0.8 + 0.2 / 5
    entropy = -right * math.log(right) - 4 * 0.04 * math.log(0.04)
    assert entropy - 0.05 < nats < entropy + 0.05
    assert nats < math.log(5) - 0.5


def test_errors() -> None:
    with pytest.raises(UserError, match="0 to 3"):
        fit(np.array([0, 1, 4]), 4)
    with pytest.raises(UserError, match="two tokens before"):
        fit(np.array([0, 1, 2, 3]), 4).nats(np.array([0, 1, 2]), np.array([1]))
