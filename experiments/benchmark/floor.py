"""The floor: what a plan's floating-point operations alone would take at this machine's matrix rate.

The rate is that of the two MLP products at the number of tokens that the plan's own passes hold, so a plan of
small passes is not held to the rate of large ones.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interp.interventions.plan import Plan


def pass_tokens(plan: Plan) -> list[int]:
    """Tokens that each pass of a plan holds."""
    prompts = plan.reader.prompts
    return [len(one.items) * len(prompts) * (prompts.width - one.first) for one in plan.passes]


def matrix_rate(tokens: int, d_model: int, d_mlp: int, rounds: int = 5) -> float:
    """Floating-point operations a second of `[tokens, d_model] · [d_model, d_mlp]` and back."""
    import torch

    a, b = torch.randn(tokens, d_model), torch.randn(d_model, d_mlp)
    c = torch.randn(d_mlp, d_model)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        (a @ b) @ c
        times.append(time.perf_counter() - start)
    return 4 * tokens * d_model * d_mlp / median(times[1:])


def plan_rate(plan: Plan) -> float:
    """The rate at the plan's middle pass size; of one prompt batch where nothing is replayed."""
    g = plan.model.geometry
    tokens = sorted(pass_tokens(plan)) or [len(plan.reader.prompts) * plan.reader.prompts.width]
    return matrix_rate(tokens[len(tokens) // 2], g.d_model, g.d_mlp or 4 * g.d_model)
