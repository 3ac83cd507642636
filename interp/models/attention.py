"""Attention within a block: from rotated queries, keys and values to what each query reads.

    scores = q·kᵀ · scale (+ bias, cap, mask)      pattern = softmax(scores)      z = pattern · v

Scores and pattern are sites, so the tap sees them; where nobody looks and rounding may differ, they are not
written down (`loose_attention.py`). Rows of different lengths are mixed grid by grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.taps import NO_TAP, Tap
from interp.hooks.values import NO_TENSORS
from interp.models.grid import Grid
from interp.models.loose import softmax
from interp.models.loose_attention import fits_attention, lanes_short, loose_attention
from interp.models.net import Net
from interp.models.ragged import Ragged, end_to_end

KeyValue = tuple[Tensor, Tensor]


def mixed_by_grid(
    net: Net,
    layer: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    here: Ragged,
    grid: Ragged,
    prefix: Sequence[KeyValue | None],
) -> Float[Tensor, "token 1 head d_head"]:
    """The values that queries of rows of different lengths read."""
    each = zip(here.grids, here.parted(qkv[0]), grid.parted(qkv[1]), grid.parted(qkv[2]), prefix, strict=True)
    mixed = []
    for own, *of_grid, before in each:
        q, k, v = (t.transpose(1, 2) for t in of_grid)
        mixed.append(values_read(net, layer, q, (k, v), own, before, NO_TAP, NO_TENSORS).transpose(1, 2))
    return end_to_end(mixed)


def values_read(
    net: Net,
    layer: int,
    q: Tensor,
    own: KeyValue,
    grid: Grid,
    prefix: KeyValue | None,
    tap: Tap,
    given: Mapping[str, Tensor],
) -> Float[Tensor, "batch head query d_head"]:
    """Attention of a grid's queries over the held columns and those before them."""
    loose = net.loose and _unseen(layer, tap, given) and fits_attention(net, layer, q, grid)
    more = lanes_short(grid.prompts.width, q.device) if loose else 0
    k, v = (with_prefix(b, o, more) for b, o in zip(prefix or (None, None), own, strict=True))
    if loose:
        return loose_attention(net, layer, q, k, v, grid)
    k, v = (per_query_head(t, net.geometry.group, net.family.keys_lie) for t in (k, v))
    return torch.matmul(attend(net, layer, q, k, grid, tap, given), v)


def _unseen(layer: int, tap: Tap, given: Mapping[str, Tensor]) -> bool:
    """Whether nobody looks at scores and pattern."""
    return not any(tap.wants(site, layer) or site in given for site in ("scores", "pattern"))


def with_prefix(
    before: Float[Tensor, "base kv_head first d"] | None, own: Float[Tensor, "batch kv_head pos d"], more: int = 0
) -> Float[Tensor, "batch kv_head key d"]:
    """Keys or values of all columns: what rows share (a base run's, once for each of its prompts), then their own.

    `more` columns of zeros follow.
    """
    if before is None and not more:
        return own
    prompts = len(own) if before is None else len(before)
    x = own.unflatten(0, (-1, prompts))
    parts = [] if before is None else [before.expand(len(x), -1, -1, -1, -1)]
    parts += [x] + ([x.new_zeros(()).expand(*x.shape[:3], more, x.shape[4])] if more else [])
    return torch.cat(parts, 3).flatten(0, 1)


def per_query_head(
    x: Float[Tensor, "batch kv_head pos d"], group: int, lie: Literal["token", "head"] | None = None
) -> Float[Tensor, "batch head pos d"]:
    """Each kv head once for every query head that shares it; in memory as `Family.keys_lie` says."""
    if group == 1:
        return x.contiguous() if lie == "head" else x
    if lie == "token":
        return x.transpose(1, 2).repeat_interleave(group, 2).transpose(1, 2)
    return x.repeat_interleave(group, 1)


def attend(
    net: Net,
    layer: int,
    q: Tensor,
    k: Tensor,
    grid: Grid,
    tap: Tap = NO_TAP,
    given: Mapping[str, Tensor] = NO_TENSORS,
    heads: Sequence[int] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Attention probabilities of the grid's queries over all keys; queries and keys by query head, rotated.

    `heads` says which query heads they are of, where not all.
    """
    parts = net.layers[layer]
    allowed = grid.allowed(parts.window).to(q.device)
    pattern = given.get("pattern")
    if pattern is None:
        scores = given.get("scores")
        if scores is None:
            bias = grid.bias if heads is None or grid.bias is None else grid.bias[:, list(heads)]
            scores = _products(net, q, k, parts.scale, None if bias is None else bias.to(q.device))
            if parts.cap is not None:
                scores = torch.tanh(scores / parts.cap) * parts.cap
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        edited = tap("scores", layer, scores)
        if edited is not scores:
            edited = _unread(tap, "scores", layer, edited, ~allowed, torch.finfo(scores.dtype).min)
        upcast = torch.float32 if net.family.softmax_fp32 else None
        if upcast is not None and edited.dtype == torch.float64:  # whose least number is −∞ there: a row of it is nan
            edited = edited.clamp(min=torch.finfo(upcast).min)
        weights = softmax(edited, upcast) if net.loose else torch.softmax(edited, -1, dtype=upcast)
        pattern = weights.to(q.dtype)
        if grid.padded:  # a query that may read nothing: softmax of a constant row
            pattern = pattern.masked_fill(~allowed, 0.0)
    edited = tap("pattern", layer, pattern)
    return edited if edited is pattern else _unread(tap, "pattern", layer, edited, ~allowed, 0.0)


def _products(
    net: Net, q: Tensor, k: Tensor, scale: float, bias: Float[Tensor, "rows head 1 key"] | None = None
) -> Float[Tensor, "batch head query key"]:
    """q·k times the scale, plus the bias: one product with both, which half precision rounds once."""
    if net.scores_fp32:
        q, k = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k))
    k = k.transpose(2, 3)
    if bias is not None or net.scale_in_product:
        a, b = q.flatten(0, 1), k.flatten(0, 1)
        wide = a.new_zeros(()) if bias is None else bias.expand(q.shape[0], -1, -1, -1).flatten(0, 1)
        return torch.baddbmm(wide, a, b, beta=int(bias is not None), alpha=scale).view(*q.shape[:3], -1)
    if net.family.scale_queries:
        return torch.matmul(q * scale, k)
    return torch.matmul(q, k) / scale**-1 if net.family.scale_divides else torch.matmul(q, k) * scale


def _unread(tap: Tap, site: str, layer: int, edited: Tensor, hidden: Tensor, fill: float) -> Tensor:
    """What may not be read stays unread, whatever an edit says; a tap that captures gets it so."""
    used = edited.masked_fill(hidden, fill)
    settle = getattr(tap, "settle", None)
    if settle is not None:
        settle(site, layer, used)
    return used
