"""The whole forward pass: embedding, blocks, final norm, unembedding.

The plain forward is replay with nothing skipped: `start` enters at a layer from a given residual, `prefix`
supplies the keys and values before the first held column, `tail` keeps only some columns after the last block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.taps import NO_TAP, Tap
from interp.hooks.values import NO_TENSORS
from interp.models.attention import KeyValue
from interp.models.block import block
from interp.models.grid import Grid
from interp.models.loose import caller
from interp.models.net import Net
from interp.models.reading import through_scale


def embed(net: Net, tokens: Int[Tensor, "batch pos"], grid: Grid, tap: Tap) -> Float[Tensor, "batch pos d_model"]:
    """Tokens to the residual entering block 0. What stands on padding is taken for token 0: experts that it is routed
    to would else multiply other numbers of rows, which may round another way."""
    if grid.padded and net.reads_tokens:
        tokens = tokens * grid.held.take(grid.prompts.mask)
    x = net.embed(tokens)
    x = tap("embed", None, x)
    if net.pos_embed is not None and net.geometry.pos_embed:
        positions = grid.learned
        positions = positions.expand(x.shape[0], -1, -1) if tap.wants("pos_embed", None) else positions
        x = x + tap("pos_embed", None, positions)
    return x


def blocks(
    net: Net,
    resid: Float[Tensor, "batch pos d_model"],
    grid: Grid,
    tap: Tap = NO_TAP,
    *,
    start: int = 0,
    stop: int | None = None,
    prefix: Sequence[KeyValue] | None = None,
    given: Mapping[str, Tensor] = NO_TENSORS,
    tail: Grid | None = None,
    keep: list[KeyValue | None] | None = None,
) -> Float[Tensor, "batch kept d_model"]:
    """Run the blocks from `start` on, up to `stop` where not all; `given` belongs to the first of them, `tail` narrows
    the last one of the model.

    With `keep`, a list, the rotated keys and values of each block are appended to it.
    """
    last = net.geometry.layers - 1
    for layer in range(start, last + 1 if stop is None else stop):
        resid, after = block(
            net,
            layer,
            resid.to(net.layers[layer].device),
            grid,
            tap,
            prefix=None if prefix is None else prefix[layer],
            given=given if layer == start else NO_TENSORS,
            tail=tail if layer == last else None,
        )
        if keep is not None:
            keep.append(after)
    return resid


def final_norm(net: Net, resid: Float[Tensor, "*rows pos d_model"], tap: Tap = NO_TAP) -> Tensor:
    """The residual after the last block to what the unembedding receives."""
    out = through_scale(net.final, resid, net.final(resid), "ln_final_scale", None, tap)
    return tap("ln_final", None, out)


def unembed(net: Net, x: Float[Tensor, "*rows pos d_model"], tap: Tap = NO_TAP) -> Float[Tensor, "*rows pos d_vocab"]:
    """What the unembedding receives to logits, soft-cap included."""
    logits = x if net.unembed is None else caller(net.loose)(net.unembed, x)
    return tap("logits", None, cap_logits(net, logits, tap))


def cap_logits(net: Net, logits: Tensor, tap: Tap = NO_TAP) -> Tensor:
    """Apply the family's logit soft-cap, if it has one."""
    if net.logit_cap is None:
        return logits
    logits = tap("logits_pre_cap", None, logits)
    return torch.tanh(logits / net.logit_cap) * net.logit_cap


def forward(
    net: Net,
    tokens: Int[Tensor, "batch pos"],
    grid: Grid,
    tap: Tap = NO_TAP,
    *,
    keep: list[KeyValue | None] | None = None,
) -> Float[Tensor, "batch pos d_vocab"]:
    """Tokens to logits, everything computed."""
    resid = embed(net, tokens, grid, tap)
    resid = blocks(net, resid, grid, tap, keep=keep)
    return unembed(net, final_norm(net, resid, tap), tap)
