"""Windows and ALiBi on scores: who reads whom, and by how much scores fall, by hand."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny

from interp.hooks.attention import alibi, windowed
from interp.hooks.prompts import Prompts
from interp.registry import UserError

PROMPTS = Prompts.of([[1, 2, 3, 4, 5], [6, 7, 8]], pad_side="left")


def test_window() -> None:
    model = tiny("gpt2")
    with model.hooks(("scores", windowed(2))):
        pattern = model.run(PROMPTS, capture="pattern")["L1.pattern"]
    seen = pattern[0, 0] > 0
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1],
    ]  # fmt: skip
    torch.testing.assert_close(pattern[0].sum(-1), torch.ones(4, 5))
    assert (pattern[1, :, :2] == 0).all()
    with model.hooks(("scores", windowed(5))):
        assert torch.equal(model.run(PROMPTS).logits, tiny("gpt2").run(PROMPTS).logits)


def test_alibi() -> None:
    """Head h of 4 falls by 2^(−2(h+1)) per token of distance: ¼, 1/16, 1/64, 1/256."""
    model = tiny("gpt2")
    plain = model.run(PROMPTS, capture="scores")["L0.scores"]
    with model.hooks(("L0.scores", alibi(4))):
        biased = model.run(PROMPTS, capture="scores")["L0.scores"]
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
        fall = (plain - biased)[0, head, 4, :5]
        torch.testing.assert_close(fall, slope * torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0]), atol=1e-5, rtol=1e-4)
    assert torch.equal(plain[0, :, 0, 1:], biased[0, :, 0, 1:])


def test_errors() -> None:
    with pytest.raises(UserError, match=r"at least 1|itself"):
        windowed(0)
    model = tiny("gpt2")
    with model.hooks(("scores", alibi(3))), pytest.raises(UserError, match=r"alibi\(3\) met scores of 4 heads"):
        model.run(PROMPTS)
