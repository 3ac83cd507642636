"""Optimiser, learning-rate schedule and gradient clipping.

AdamW (1711.05101) with weight decay on matrices only; linear warmup to `lr`, then half a cosine down to
`floor · lr`; clipping scales all gradients by clip / norm where the global norm exceeds `clip`.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from interp.training.recipes import Settings


def learning_rate(settings: Settings, step: int) -> float:
    """The rate of a step, counted from 0.

    >>> s = Settings(steps=110, lr=1.0, warmup=10, floor=0.0)
    >>> [round(learning_rate(s, i), 3) for i in (0, 9, 10, 60, 110)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return settings.lr * (settings.floor + (1 - settings.floor) * cosine)


def adamw(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW over the model's parameters: decay on matrices, none on biases and norm gains."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2))


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Use this learning rate from the next step on."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def clip_gradients(model: nn.Module, limit: float) -> tuple[float, float]:
    """Scale the gradients so that their global norm is at most `limit`; the norm before and after."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    before = float(nn.utils.clip_grad_norm_(parameters, limit))
    after = float(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    return before, after
