"""Schedule values by hand, clipping by hand, decay only on matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from interp.registry import UserError
from interp.training.optim import adamw, clip_gradients, learning_rate
from interp.training.recipes import Settings


def test_schedule_by_hand() -> None:
    settings = Settings(steps=14, lr=2.0, warmup=4, floor=0.1)
    assert [learning_rate(settings, i) for i in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert learning_rate(settings, 4) == pytest.approx(2.0)
    # half way down: 2 · (0.1 + 0.9 · ½)
    assert learning_rate(settings, 9) == pytest.approx(1.1)
    last = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.9))
    assert learning_rate(settings, 13) == pytest.approx(2.0 * last)
    assert learning_rate(settings, 14) == pytest.approx(0.2)
    assert learning_rate(settings, 99) == pytest.approx(0.2)


def test_clipping_by_hand() -> None:
    model = nn.Linear(2, 1)
    model.weight.grad = torch.tensor([[3.0, 0.0]])
    model.bias.grad = torch.tensor([4.0])
    before, after = clip_gradients(model, 1.0)
    assert before == pytest.approx(5.0)
    assert after == pytest.approx(1.0, rel=1e-5)
    assert model.weight.grad[0, 0].item() == pytest.approx(0.6, rel=1e-5)
    assert model.bias.grad[0].item() == pytest.approx(0.8, rel=1e-5)


def test_small_gradients_are_left_alone() -> None:
    model = nn.Linear(2, 1)
    model.weight.grad = torch.tensor([[0.3, 0.0]])
    model.bias.grad = torch.tensor([0.4])
    before, after = clip_gradients(model, 1.0)
    assert before == after == pytest.approx(0.5)
    assert model.weight.grad.tolist() == torch.tensor([[0.3, 0.0]]).tolist()


def test_decay_on_matrices_only() -> None:
    """With no gradient the decoupled decay alone moves a matrix: p ← p·(1 − lr·wd)."""
    model = nn.Linear(2, 2)
    start, bias = model.weight.detach().clone(), model.bias.detach().clone()
    optimiser = adamw(model, Settings(steps=1, lr=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    torch.testing.assert_close(model.weight.detach(), start * 0.95)
    assert torch.equal(model.bias.detach(), bias)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"lr": 0.0}, {"clip": -1.0}, {"floor": 2.0}, {"warmup": -1}])
def test_bad_settings(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match="must be"):
        Settings(**{"steps": 10, **bad})  # type: ignore[arg-type]
