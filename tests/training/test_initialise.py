"""Xavier: variances by fan, packed pieces one by one, biases and gains, explicit generator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from interp.training.initialise import fresh, sinusoids, xavier


class Packed(nn.Module):
    """A matrix of its own, a packed one, a norm, a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(1, 1)
        self.c_attn.weight = nn.Parameter(torch.empty(256, 3 * 256))
        self.c_attn.bias = nn.Parameter(torch.full((3 * 256,), 7.0))
        self.up = nn.Linear(256, 1024)
        self.norm = nn.LayerNorm(256)


def built(seed: int) -> Packed:
    model = xavier(Packed(), torch.Generator().manual_seed(seed))
    assert isinstance(model, Packed)
    return model


def test_variance_of_each_piece() -> None:
    model = built(0)
    # 65,536 draws: the standard deviation is known to about 0.3%
    for piece in model.c_attn.weight.chunk(3, -1):
        assert piece.std().item() == pytest.approx((2 / (256 + 256)) ** 0.5, rel=0.02)
        assert abs(piece.mean().item()) < 1e-3
    assert model.up.weight.std().item() == pytest.approx((2 / (256 + 1024)) ** 0.5, rel=0.02)


def test_vectors() -> None:
    model = built(0)
    assert bool((model.c_attn.bias == 0).all())
    assert bool((model.norm.weight == 1).all())
    assert bool((model.norm.bias == 0).all())


def test_generator_decides_and_no_global_draws() -> None:
    before = torch.get_rng_state()
    one, same, other = (fresh(Packed, torch.Generator().manual_seed(s)) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.get_parameter("up.weight"), other.get_parameter("up.weight"))


def test_sinusoids_by_hand() -> None:
    """Width 4, base 100: rates 1 and 1/10; sines, then cosines."""
    table = torch.zeros(3, 4)
    sinusoids(table, 2.0, base=100.0)
    row = [2 * math.sin(2), 2 * math.sin(0.2), 2 * math.cos(2), 2 * math.cos(0.2)]
    assert table[2].tolist() == pytest.approx(row, rel=1e-5)
    assert table[0].tolist() == [0.0, 0.0, 2.0, 2.0]
