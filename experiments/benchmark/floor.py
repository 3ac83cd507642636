"""The floor: what a plan's matrix products alone take on this machine, run in the plan's order at the plan's shapes.

For every block that a pass walks: keys and values of all tokens it holds there, queries, scores and mixed values of
those that go on, and the output and MLP maps of these and of the interventions that join at the block. The products
use the model's own weights and follow each other as they do in the plan: a plan of small passes is not held to the
rate of large ones, nor one that goes from weight to weight to the rate of weights that stay in the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from interp.interventions.cost import block_flops, mlp_in, mlp_out, out_projection, reading_flops

if TYPE_CHECKING:
    from torch import Tensor

    from interp.interventions.plan import Pass, Plan

Kind = Literal["qkv", "kv", "q", "out", "mlp"]
Work = tuple[Kind, int]
"""Products of a block, and over how many tokens."""
Mixing = tuple[int, int]
"""Scores and mixed values: of how many rows, and of how many queries in each."""
Product = tuple["Tensor", "Tensor"]
"""What is multiplied."""


@dataclass(frozen=True)
class Step:
    """What one pass multiplies in one layer, in this order."""

    layer: int
    before: tuple[Work, ...]
    mixing: tuple[Mixing, ...]
    after: tuple[Work, ...]


def floor_of(plan: Plan) -> Callable[[], None]:
    """Multiplies, at each call, all that the plan and its base and donor runs multiply."""
    import torch

    from interp.models.products import by_onednn, product

    with torch.no_grad():
        every = [(a, b, b.ndim == 2 and by_onednn(a, b)) for a, b in products(plan)]

    def run() -> None:
        with torch.no_grad():
            for a, b, onednn in every:
                _ = product(a, b) if onednn else a @ b

    run()
    return run


def steps(plan: Plan) -> Iterator[Step]:
    """What the plan multiplies: the base and donor runs, and its passes."""
    layers, width = plan.model.geometry.layers, plan.reader.prompts.width
    for rows, columns in _walks(plan):
        tokens = rows * columns
        after: tuple[Work, ...] = (("out", tokens), ("mlp", tokens))
        for layer in range(layers):
            ends = layer == layers - 1 and _ends(plan)
            yield Step(layer, (("qkv", tokens),), ((rows, columns),), () if ends else after)
    if _ends(plan):
        yield Step(layers - 1, (), (), (("out", _ends(plan)), ("mlp", _ends(plan))))
    for one in plan.passes:
        for layer in range(layers):
            yield _step(plan, one, layer, width)


def _step(plan: Plan, one: Pass, layer: int, width: int) -> Step:
    read, count = plan.reader.columns, len(plan.reader.prompts)
    narrow = layer == plan.model.geometry.layers - 1 and read is not None
    tokens, joined, rows = 0, 0, Counter[int]()
    for item in one.items:
        entry, columns = item.entry, width - item.first
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
    before: tuple[Work, ...] = (("qkv", tokens),) if queries == tokens else (("kv", tokens), ("q", queries))
    after: tuple[Work, ...] = (("out", queries + joined), ("mlp", queries + joined))
    return Step(layer, before if tokens else (), tuple((n, q) for q, n in rows.items()), after if after[0][1] else ())


def _walks(plan: Plan) -> list[tuple[int, int]]:
    """The passes that run base and donor: how many rows, and how many columns of them."""
    pair, prompts = plan.base.pair, plan.reader.prompts
    if pair is None:
        return [(len(prompts), prompts.width)] * 2
    return [(len(of), of.width - start) for of, start in pair.walks]


def _ends(plan: Plan) -> int:
    """Tokens of both sides, those that the metric reads, for which alone the last block is run beyond z; 0 for all."""
    pair, read = plan.base.pair, plan.reader.columns
    return (
        2 * len(plan.reader.prompts) * read.shape[-1]
        if pair is not None and read is not None and pair.ends_early
        else 0
    )


def products(plan: Plan) -> Iterator[Product]:
    """The factors of every product in turn; what is multiplied with the weights is the same few random numbers."""
    import torch

    g, keys, every = plan.model.geometry, plan.reader.prompts.width, list(steps(plan))
    wide, square = max(g.d_model, g.d_mlp, g.heads * g.d_head), g.heads * keys * max(g.d_head, keys)
    most = [n * wide for step in every for _, n in step.before + step.after]
    memory = torch.randn(max(most + [n * square for step in every for n, _ in step.mixing]))

    def numbers(*shape: int) -> Tensor:
        return memory[: torch.Size(shape).numel()].view(shape)

    of_layers = [_weights(plan, layer) for layer in range(g.layers)]
    for step in every:
        weights = of_layers[step.layer]
        for kind, tokens in step.before:
            yield from ((numbers(tokens, len(w)), w) for w in weights[kind])
        for rows, queries in step.mixing:
            n = rows * g.heads
            yield numbers(n, queries, g.d_head), numbers(n, keys, g.d_head).transpose(1, 2)
            yield numbers(n, queries, keys), numbers(n, keys, g.d_head)
        for kind, tokens in step.after:
            yield from ((numbers(tokens, len(w)), w) for w in weights[kind])


def _weights(plan: Plan, layer: int) -> dict[Kind, list[Tensor]]:
    """The matrices of a block, `[in, out]`, by kind; parts of one lie whole."""
    from interp.models.net import matrix

    parts, g = plan.base.net.layers[layer], plan.model.geometry
    qkv = [matrix(m) for m in parts.qkv]
    q, kv = (
        (qkv[:1], qkv[1:])
        if len(qkv) == 3
        else tuple([part.contiguous()] for part in qkv[0].tensor_split([g.heads * g.d_head], 1))
    )
    mlp = [matrix(m) for m in (parts.mlp_in, parts.mlp_up, parts.mlp_out) if m is not None]
    return {"qkv": qkv, "q": q, "kv": kv, "out": [matrix(parts.out)], "mlp": mlp}


def whole_flops(plan: Plan) -> int:
    """Floating-point operations of the plan with its base and donor runs, each read at the metric's logits only."""
    g, prompts = plan.model.geometry, plan.reader.prompts
    answers = plan.reader.task.right.tokens.shape[1] + plan.reader.task.wrong.tokens.shape[1]
    tokens = sum(rows * columns for rows, columns in _walks(plan))
    sides = g.layers * block_flops(g, tokens, tokens, prompts.width)
    if _ends(plan):
        sides -= (tokens - _ends(plan)) * (out_projection(g) + mlp_in(g) + mlp_out(g))
    return plan.flops + sides + 2 * reading_flops(g, len(prompts), 1, answers)
