"""The floor: what a plan's floating-point operations alone would take at this machine's matrix rate.

The rate is measured at the plan's own shapes: for every block that a pass runs, the number of tokens it holds
there, and with it the matrix products of a block (q, k and v; out; the MLP's two). A plan of small passes is not
held to the rate of large ones.
"""

from __future__ import annotations

import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from interp.interventions.cost import block_flops, reading_flops

if TYPE_CHECKING:
    from interp.hooks.values import Geometry
    from interp.interventions.plan import Plan

SIZES = 12
"""Different numbers of tokens that are timed at most; those between take the nearest one's rate."""


def block_tokens(plan: Plan) -> Counter[int]:
    """How many blocks of the plan's passes, and of its base and donor runs, hold how many tokens."""
    prompts, layers = plan.reader.prompts, plan.model.geometry.layers
    found: Counter[int] = Counter()
    for one in plan.passes:
        each = len(prompts) * (prompts.width - one.first)
        entries = [i.entry.layer for i in one.items if i.entry is not None]
        for layer in range(max(0, min(entries)), layers):
            found[each * sum(e <= layer for e in entries)] += 1
    found[len(prompts) * prompts.width] += 2 * layers
    return found


def whole_flops(plan: Plan) -> int:
    """Floating-point operations of the plan with its base and donor runs, each read at the metric's logits only."""
    g, prompts = plan.model.geometry, plan.reader.prompts
    tokens = len(prompts) * prompts.width
    answers = plan.reader.task.right.tokens.shape[1] + plan.reader.task.wrong.tokens.shape[1]
    side = g.layers * block_flops(g, tokens, tokens, prompts.width) + reading_flops(g, len(prompts), 1, answers)
    return plan.flops + 2 * side


def matrix_seconds(tokens: int, g: Geometry, rounds: int = 5) -> tuple[float, int]:
    """Median seconds of one block's matrix products over so many tokens, and their floating-point operations."""
    import torch

    wide = g.d_head * (g.heads + 2 * g.kv_heads)
    shapes = [(g.d_model, wide), (g.heads * g.d_head, g.d_model)]
    shapes += [(g.d_model, g.d_mlp)] * (2 if g.gated else 1) + [(g.d_mlp, g.d_model)] if g.mlp else []
    pairs = [(torch.randn(tokens, a), torch.randn(a, b)) for a, b in shapes]
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for x, w in pairs:
            x @ w
        times.append(time.perf_counter() - start)
    return median(times[1:]), sum(2 * tokens * a * b for a, b in shapes)


def plan_rate(plan: Plan) -> float:
    """Floating-point operations a second over all the plan's blocks, each at its own number of tokens."""
    found = block_tokens(plan)
    sizes = sorted(found)
    timed = sizes if len(sizes) <= SIZES else [sizes[round(i * (len(sizes) - 1) / (SIZES - 1))] for i in range(SIZES)]
    per_token = {}
    for tokens in timed:
        seconds, flops = matrix_seconds(tokens, plan.model.geometry)
        per_token[tokens] = (seconds / tokens, flops / tokens)
    total_seconds, total_flops = 0.0, 0.0
    for tokens, count in found.items():
        nearest = per_token[min(timed, key=lambda t: abs(t - tokens))]
        total_seconds += count * tokens * nearest[0]
        total_flops += count * tokens * nearest[1]
    return total_flops / total_seconds
