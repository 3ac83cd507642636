"""Custom attention as functions on the site `scores`: a window, ALiBi, or one's own.

    with model.hooks(("scores", windowed(4))): …
    with model.hooks(("L0.scores", alibi(model.geometry.heads))): …

They see scores `[batch, head, query, key]` before the softmax; what a mask hides stays hidden whatever they say.
Positions are columns of the prompts, so padding at either side changes no distance.

Source: sliding windows as in Longformer (2004.05150), ALiBi (2108.12409).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.context import EditContext
from interp.registry import UserError

Scores = Float[Tensor, "batch head query key"]


def distances(ctx: EditContext, width: int) -> Int[Tensor, "rows query key"]:
    """How many tokens each held query stands after each key (negative: before it)."""
    columns = ctx.held.columns
    query = (columns if columns.ndim == 2 else columns[None])[:, :, None]
    return query - torch.arange(width, device=columns.device)


def windowed(width: int) -> Callable[[Scores, EditContext], Scores]:
    """Each query reads only the `width` tokens up to itself (and, in bidirectional models, as many after it).

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> with model.hooks(("scores", windowed(2))):
    ...     pattern = model.run([[1, 2, 3, 4]], capture="L0.pattern")["L0.pattern"]
    >>> (pattern[0, 0] > 0).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    if width < 1:
        raise UserError(f"a window holds at least the token itself, got {width}")

    def window(x: Scores, ctx: EditContext) -> Scores:
        far = (distances(ctx, x.shape[-1]).abs() >= width)[:, None]
        return x.masked_fill(far, torch.finfo(x.dtype).min)

    return window


def alibi(heads: int, strength: float = 1.0) -> Callable[[Scores, EditContext], Scores]:
    """Lower each score by slope · distance; head h of H has slope strength · 2^(−8(h+1)/H).

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> plain = model.run([[1, 2, 3]], capture="L0.scores")["L0.scores"]
    >>> with model.hooks(("L0.scores", alibi(model.geometry.heads))):
    ...     lower = model.run([[1, 2, 3]], capture="L0.scores")["L0.scores"]
    >>> (plain - lower)[0, 0, 2].tolist()  # two tokens away, one, none; the slope of head 0 of 4 is 1/4
    [0.5, 0.25, 0.0]
    """
    if heads < 1:
        raise UserError(f"alibi needs the number of heads, got {heads}")
    slopes = strength * 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)

    def biased(x: Scores, ctx: EditContext) -> Scores:
        if x.shape[1] != heads:
            raise UserError(f"alibi({heads}) met scores of {x.shape[1]} heads at {ctx.address}")
        far = distances(ctx, x.shape[-1]).abs()[:, None].to(x.dtype)
        return x - slopes.to(x)[None, :, None, None] * far

    return biased
