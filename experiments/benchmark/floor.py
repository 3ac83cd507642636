"""The floor: what a plan's matrix products alone take on this machine, each timed at the shapes the plan runs it at.

For every block that a pass walks: keys and values of all tokens it holds there, queries, scores and mixed values of
those that go on, and the output and MLP maps of these and of the interventions that join at the block. Products are
timed with the model's own weights, layer after layer as a pass walks up: a plan of small passes is not held to the
rate of large ones, nor one that reads a layer's weights once to the rate of weights that stay in the cache.
"""

from __future__ import annotations

import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeVar

from interp.interventions.base import runs_together
from interp.interventions.cost import block_flops, mlp_in, mlp_out, out_projection, projections, reading_flops

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from interp.hooks.values import Geometry
    from interp.interventions.plan import Pass, Plan

Size = TypeVar("Size")
Kind = Literal["qkv", "kv", "q", "out", "mlp"]
KINDS: tuple[Kind, ...] = ("qkv", "kv", "q", "out", "mlp")
Work = tuple[Kind, int]
"""Products of a block, and over how many tokens."""
Mixing = tuple[int, int]
"""Scores and mixed values: of how many rows, and of how many queries in each."""
SIZES = 8
"""Different numbers of tokens at which a kind is timed at most; those between take the nearest one's rate."""


def plan_floor(plan: Plan) -> float:
    """Seconds of the matrix products of a plan and of its base and donor runs."""
    work, mixing = _work(plan)
    total = 0.0
    for kind in KINDS:
        sizes = sorted(tokens for k, tokens in work if k == kind)
        rates = {n: product_seconds(plan, kind, n) / n for n in _some(sizes)}
        total += sum(n * work[kind, n] * rates[min(rates, key=lambda s: abs(s - n))] for n in sizes)
    rows = {m: mixing_seconds(plan, m) / m[0] for m in _some(sorted(mixing))}
    for (n, queries), count in mixing.items():
        near = min(rows, key=lambda m: (m[1] != queries, abs(m[0] - n)))
        total += n * count * rows[near]
    return total


def _some(sizes: list[Size]) -> list[Size]:
    """Evenly spaced ones where there are many."""
    if len(sizes) <= SIZES:
        return sizes
    return [sizes[round(i * (len(sizes) - 1) / (SIZES - 1))] for i in range(SIZES)]


def _work(plan: Plan) -> tuple[Counter[Work], Counter[Mixing]]:
    """How often which products run."""
    prompts, layers, task = plan.reader.prompts, plan.model.geometry.layers, plan.reader.task
    work: Counter[Work] = Counter()
    mixing: Counter[Mixing] = Counter()
    sides = 1 if runs_together(task.clean, task.corrupt) else 2
    rows = len(prompts) * 2 // sides
    for kind in ("qkv", "out", "mlp"):
        work[kind, rows * prompts.width] += layers * sides  # type: ignore[index]
    mixing[rows, prompts.width] += layers * sides
    for one in plan.passes:
        for layer in range(layers):
            _add(plan, one, layer, work, mixing)
    return work, mixing


def _add(plan: Plan, one: Pass, layer: int, work: Counter[Work], mixing: Counter[Mixing]) -> None:
    """What one pass runs in one layer."""
    prompts, read, count = plan.reader.prompts, plan.reader.columns, len(plan.reader.prompts)
    narrow = layer == plan.model.geometry.layers - 1 and read is not None
    tokens, joined, rows = 0, 0, Counter[int]()
    for item in one.items:
        entry, columns = item.entry, prompts.width - item.first
        kept = min(columns, read.shape[-1]) if narrow and read is not None else columns
        if entry is None or entry.layer > layer:
            continue
        if entry.layer < layer or not entry.given:
            tokens += count * columns
            rows[kept] += count
        elif entry.given == ("z",):
            joined += count * kept
        else:
            raise NotImplementedError(f"a floor is known for edits of whole blocks and of z, not for {entry.given}")
    queries = sum(kept * n for kept, n in rows.items())
    if tokens and queries == tokens:
        work["qkv", tokens] += 1
    elif tokens:
        work["kv", tokens] += 1
        work["q", queries] += 1
    for kept, n in rows.items():
        mixing[n, kept] += 1
    if queries + joined:
        work["out", queries + joined] += 1
        work["mlp", queries + joined] += 1


def product_seconds(plan: Plan, kind: Kind, tokens: int, rounds: int = 3) -> float:
    """Median seconds of a kind of product in one block."""
    import torch

    layers = [_weights(plan, layer)[kind] for layer in range(plan.model.geometry.layers)]
    inputs = {w.shape[0]: torch.randn(tokens, w.shape[0]) for w in layers[0]}

    def run() -> None:
        for weights in layers:
            for w in weights:
                inputs[w.shape[0]] @ w

    return _timed(run, rounds) / len(layers)


def mixing_seconds(plan: Plan, size: Mixing, rounds: int = 3) -> float:
    """Median seconds of one block's scores and mixed values."""
    import torch

    (rows, queries), g, keys = size, plan.model.geometry, plan.reader.prompts.width
    q, k, v = (torch.randn(rows * g.heads, n, g.d_head) for n in (queries, keys, keys))
    pattern = torch.randn(rows * g.heads, queries, keys)

    def run() -> None:
        torch.bmm(q, k.transpose(1, 2))
        torch.bmm(pattern, v)

    return _timed(run, rounds)


def _timed(run: Callable[[], None], rounds: int) -> float:
    import torch

    times = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return median(times[1:])


def _weights(plan: Plan, layer: int) -> dict[Kind, list[Tensor]]:
    """The matrices of a block, `[in, out]`, by kind."""
    from interp.models.net import matrix

    parts, g = plan.base.net.layers[layer], plan.model.geometry
    qkv = [matrix(m) for m in parts.qkv]
    q, kv = (
        (qkv[:1], qkv[1:]) if len(qkv) == 3 else ([qkv[0][:, : g.heads * g.d_head]], [qkv[0][:, g.heads * g.d_head :]])
    )
    mlp = [matrix(m) for m in (parts.mlp_in, parts.mlp_up, parts.mlp_out) if m is not None]
    return {"qkv": qkv, "q": q, "kv": kv, "out": [matrix(parts.out)], "mlp": mlp}


def whole_flops(plan: Plan) -> int:
    """Floating-point operations of the plan with its base and donor runs, each read at the metric's logits only."""
    g, prompts = plan.model.geometry, plan.reader.prompts
    tokens = len(prompts) * prompts.width
    answers = plan.reader.task.right.tokens.shape[1] + plan.reader.task.wrong.tokens.shape[1]
    side = g.layers * block_flops(g, tokens, tokens, prompts.width) + reading_flops(g, len(prompts), 1, answers)
    return plan.flops + 2 * side


def counted_flops(plan: Plan) -> int:
    """The operations of the products that the floor times: those of the plan, reading left out."""
    g: Geometry = plan.model.geometry
    q = 2 * g.d_model * g.d_head * g.heads
    each: dict[Kind, int] = {
        "qkv": projections(g), "q": q, "kv": projections(g) - q, "out": out_projection(g),
        "mlp": mlp_in(g) + mlp_out(g),
    }  # fmt: skip
    work, mixing = _work(plan)
    keys = plan.reader.prompts.width
    total = sum(each[kind] * tokens * count for (kind, tokens), count in work.items())
    return total + sum(4 * g.heads * g.d_head * keys * n * queries * count for (n, queries), count in mixing.items())
