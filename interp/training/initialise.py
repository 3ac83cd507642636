"""Xavier initialisation: every matrix gets variance 2/(fan_in + fan_out) (Glorot and Bengio 2010, section 4.2.1).

Packed projections (GPT-2's `c_attn` holds W_Q, W_K, W_V side by side) are initialised piece by piece: taken as
one matrix of [d, 3d] each piece would get half the variance it should. Biases are 0, norm gains 1. Embeddings
are matrices too. Draws come from an explicit generator, in the order of `named_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

PACKED = {"c_attn": 3}
"""Modules whose weight holds several matrices side by side along its last axis."""


@torch.no_grad()
def xavier(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Initialise in place, and return the model.

    Matrices: N(0, 2/(fan_in + fan_out)). Vectors named `bias`: 0. Other vectors (norm gains): 1.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        owner = name.rsplit(".", 2)[-2] if "." in name else ""
        for piece in parameter.data.chunk(PACKED.get(owner, 1), dim=-1):
            nn.init.xavier_normal_(piece, generator=generator)
    return model


def fresh(build: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """Build a model and initialise it from `generator`; torch's default generator is left as it was."""
    with torch.random.fork_rng([]):
        model = build()
    return xavier(model, generator)


@torch.no_grad()
def sinusoids(table: Float[Tensor, "pos d_model"], scale: float, base: float = 200.0) -> None:
    """Fill a table of positions with sines and cosines (1706.03762), in place; training moves them from there.

    A shift by one position is then a rotation, so heads that look at the token before are found sooner.
    """
    pos, width = table.shape
    rates = base ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(pos).float(), rates)
    table.copy_(scale * torch.cat([angles.sin(), angles.cos()], dim=-1))
