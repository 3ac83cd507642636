"""Repeated random tokens and the scores of patterns on them, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from interp.registry import UserError
from interp.tasks.repeated import pattern_scores, repeated


def test_prompts() -> None:
    made = repeated(range(1, 20), 5, 6, seed=3, bos=0)
    assert made.tokens.shape == (6, 11)
    assert (made.tokens[:, 0] == 0).all()
    assert torch.equal(made.tokens[:, 1:6], made.tokens[:, 6:])
    assert all(len(set(row)) == 5 for row in made.tokens[:, 1:6].tolist())
    assert not (made.tokens[:, 1:] == 0).any()
    assert torch.equal(repeated(range(1, 20), 5, 6, seed=3, bos=0).tokens, made.tokens)
    assert not torch.equal(repeated(range(1, 20), 5, 6, seed=4, bos=0).tokens, made.tokens)


@pytest.mark.parametrize("bos", [False, True])
def test_pure_heads_score_one_and_the_others_zero(bos: bool) -> None:
    """One head for each stripe: it scores 1 on its own score and 0 on the others; entropy of a sure head is 0."""
    period = 4
    width = 2 * period + bos
    names = {"previous": 1, "duplicate": period, "induction": period - 1, "current": 0}
    pattern = torch.zeros(1, len(names) + 1, width, width)
    for head, back in enumerate(names.values()):
        for i in range(width):
            pattern[0, head, i, max(i - back, 0)] = 1
    pattern[0, -1, :, 0] = 1
    found = pattern_scores(pattern, period, bos)
    for head, name in enumerate(names):
        assert float(found[name][0, head]) == 1.0
        assert all(float(found[other][0, head]) == 0.0 for other in names if other != name)
    assert float(found["first"][0, -1]) == 1.0
    assert float(found["entropy"].abs().max()) == 0.0


def test_uniform_attention() -> None:
    """Even attention over four tokens: entropy ln 4 at the last query, 1/4 on every stripe there."""
    even = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    found = pattern_scores(even[None, None], 2, False)
    assert float(found["entropy"]) == pytest.approx((math.log(3) + math.log(4)) / 2)
    assert float(found["previous"]) == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert float(found["induction"]) == pytest.approx((1 / 3 + 1 / 4) / 2)


def test_errors() -> None:
    with pytest.raises(UserError, match="3 ordinary"):
        repeated([1, 2, 3], 4, 1)
    with pytest.raises(UserError, match="context holds 8"):
        repeated(range(50), 5, 1, n_ctx=8)
    with pytest.raises(UserError, match="does not fit period 3"):
        pattern_scores(torch.zeros(1, 1, 5, 5), 3, False)
