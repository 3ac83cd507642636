"""Weights by head, in the field's layout, read from whatever modules and packing the checkpoint has.

    W_Q [head, d_model, d_head]   W_K W_V [kv_head, d_model, d_head]   W_O [head, d_head, d_model]
    b_Q [head, d_head]            b_K b_V [kv_head, d_head]            b_O [d_model]
    W_E [d_vocab, d_model]        W_U [d_model, d_vocab]               b_U [d_vocab]

Nothing is folded: norms' gains are applied where they are needed, by whoever needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.models.block import unpack
from interp.models.linear import linear
from interp.models.net import Net, packed
from interp.registry import UserError


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The attention weights of one layer, by head. Biases are zeros where the checkpoint has none."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"]
    b_K: Float[Tensor, "kv_head d_head"]
    b_V: Float[Tensor, "kv_head d_head"]
    b_O: Float[Tensor, " d_model"]


def head_weights(net: Net, layer: int) -> HeadWeights:
    """Read one layer's attention weights."""
    parts, g = net.layers[layer], net.geometry
    if net.family.packing == "separate":
        full = [linear(m).detach() for m in parts.qkv]
        biases = [_bias(m, w.shape[1], w) for m, w in zip(parts.qkv, full, strict=True)]
        q, k, v = (rearrange(w, "d_model (head d_head) -> head d_model d_head", d_head=g.d_head) for w in full)
        bq, bk, bv = (b.view(-1, g.d_head) for b in biases)
    else:
        if net.family.packing == "in_proj":
            weight, own = packed(parts.qkv[0])
            fused = weight.detach().T
            bias = fused.new_zeros(fused.shape[1]) if own is None else own.detach()
        else:
            fused = linear(parts.qkv[0]).detach()
            bias = _bias(parts.qkv[0], fused.shape[1], fused)
        q, k, v = (rearrange(t, "1 d_model head d_head -> head d_model d_head") for t in unpack(net, fused[None]))
        bq, bk, bv = (t[0, 0] for t in unpack(net, bias[None, None]))
    out = rearrange(linear(parts.out).detach(), "(head d_head) d_model -> head d_head d_model", head=g.heads)
    return HeadWeights(q, k, v, out, bq, bk, bv, _bias(parts.out, g.d_model, out))


def _bias(module: torch.nn.Module, size: int, like: Tensor) -> Tensor:
    bias = getattr(module, "bias", None)
    return like.new_zeros(size) if bias is None else bias.detach()


def unembedding(net: Net) -> tuple[Float[Tensor, "d_model d_vocab"], Float[Tensor, " d_vocab"]]:
    """W_U and b_U; identity and zeros for a model without an unembedding."""
    if net.unembed is None:
        eye = torch.eye(net.geometry.d_model, dtype=net.dtype, device=net.device)
        return eye, eye.new_zeros(len(eye))
    weight = linear(net.unembed).detach()
    return weight, _bias(net.unembed, weight.shape[1], weight)


def embedding(net: Net) -> Float[Tensor, "d_vocab d_model"]:
    """The token embedding as it enters the residual stream, scaled as the family scales it."""
    if not net.reads_tokens:
        raise UserError("this model takes vectors, not tokens: it has no token embedding")
    every = torch.arange(net.geometry.d_vocab, device=net.device)
    with torch.no_grad():
        return net.embed(every)  # type: ignore[no-any-return]
