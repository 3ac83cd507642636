"""The MLP of a block: from the residual it reads to what it writes, dense, gated or routed.

    pre = W_in · ln2(resid)      post = act(pre) [· up]      out = W_out · post

Like the block, it calls the checkpoint's leaf modules, calls the tap at every named tensor, and takes from `given`
what is known already.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.taps import Tap
from interp.models.activation import activate, gives_fresh
from interp.models.again import heard, hooked, unheard
from interp.models.loose import activated, caller, fits_activated
from interp.models.net import Net
from interp.models.reading import read_norm, replaced


def mlp(
    net: Net,
    layer: int,
    resid: Float[Tensor, "batch pos d_model"],
    tap: Tap,
    given: Mapping[str, Tensor],
    normed: Tensor | None = None,
    post: Tensor | None = None,
) -> Float[Tensor, "batch pos d_model"]:
    """The residual the MLP reads to mlp_out; from `mlp_post` on where that is known."""
    parts = net.layers[layer]
    if "mlp_out" in given:
        return tap("mlp_out", layer, given["mlp_out"])
    if parts.routed is not None:
        return tap("mlp_out", layer, parts.routed(layer, _read_by_mlp(net, layer, resid, tap, given, normed), tap))
    post = hidden(net, layer, resid, tap, given, normed) if post is None else post
    out = caller(net.loose)(parts.mlp_out, post)  # type: ignore[arg-type]
    if net.geometry.post_norm:
        out = parts.post2(tap("mlp_out_pre", layer, out))
    return tap("mlp_out", layer, out)


def _read_by_mlp(
    net: Net, layer: int, resid: Tensor, tap: Tap, given: Mapping[str, Tensor], normed: Tensor | None
) -> Float[Tensor, "batch pos d_model"]:
    """The residual after ln2; `normed` is it, where it is known."""
    x = given.get("ln2")
    if x is None:
        x = read_norm(net, layer, resid, "ln2", tap, normed)
        if tap.wants("mlp_in", layer):
            x = _through_mlp_input(net, layer, resid, x, tap)
    return tap("ln2", layer, x)


def hidden(
    net: Net,
    layer: int,
    resid: Float[Tensor, "batch pos d_model"],
    tap: Tap,
    given: Mapping[str, Tensor],
    normed: Tensor | None = None,
) -> Float[Tensor, "batch pos d_mlp"]:
    """The residual the MLP reads to what its output weights receive."""
    post = given.get("mlp_post")
    if post is None:
        x = _read_by_mlp(net, layer, resid, tap, given, normed)
        post = _activated(net, layer, x, tap, given)
    return tap("mlp_post", layer, post)


def _activated(
    net: Net, layer: int, x: Tensor, tap: Tap, given: Mapping[str, Tensor]
) -> Float[Tensor, "batch pos d_mlp"]:
    """ln2 to mlp_post."""
    parts, call = net.layers[layer], caller(net.loose)
    if parts.gate_up is not None:
        pre, up = call(parts.gate_up, x).chunk(2, -1)
        pre = given.get("mlp_pre", pre)
        return activate(parts.act, tap("mlp_pre", layer, pre)) * tap("mlp_up", layer, up)  # type: ignore[arg-type]
    unseen = "mlp_pre" not in given and not tap.wants("mlp_pre", layer)
    if net.loose and unseen and fits_activated(parts.mlp_in, parts.act):
        gate = None if parts.mlp_up is None else tap("mlp_up", layer, call(parts.mlp_up, x))
        return activated(parts.mlp_in, parts.act, x, gate)  # type: ignore[arg-type]
    pre = tap("mlp_pre", layer, given["mlp_pre"] if "mlp_pre" in given else call(parts.mlp_in, x))  # type: ignore[arg-type]
    post = activate(parts.act, pre, unseen and gives_fresh(parts.mlp_in))  # type: ignore[arg-type]
    return post if parts.mlp_up is None else post * tap("mlp_up", layer, call(parts.mlp_up, x))


def _through_mlp_input(net: Net, layer: int, resid: Tensor, x: Tensor, tap: Tap) -> Tensor:
    norm = net.layers[layer].ln2
    own = resid.clone()
    edited = tap("mlp_in", layer, own)
    if edited is own:
        return x
    call, before = unheard, norm(own, unheard)
    if hooked([norm.module]) and not torch.equal(before, x):
        call, before = heard, norm(own)
    return replaced(x, before, norm(edited, call), edited, own, tap.wants("ln2_scale", layer))
