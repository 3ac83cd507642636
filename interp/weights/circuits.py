"""QK and OV circuits of every head, factored, with the gain of the norm they read through.

    W_QK^h = W_Q^h R(Δ) W_Kᵀ     score of a query residual (rows) for a key residual (columns)
    W_OV^h = W_V W_O^h           what is written to the residual for what is read

`fold_norm` multiplies the reading side by the norm's gain g: diag(g) W_Q … W_Kᵀ diag(g), diag(g) W_V W_O.
`centre` also takes the mean off, where the norm does. Under grouped queries head h uses kv head h // (H/H_kv).
R(Δ) is the rotary embedding of a query Δ tokens after its key; 0 by default. Full circuits put the token
embedding and the unembedding (with the final norm's gain) around these.

Source: A Mathematical Framework for Transformer Circuits (2021). Limits: biases and attention's scale 1/√d are
left out, denominators of norms too; queries and keys with a norm of their own have no bilinear form and raise;
gains of post-norms (Gemma-2) and of stream norms are not folded.
"""

from __future__ import annotations

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.hooks.prompts import Prompts
from interp.models.grid import Grid
from interp.models.model import Model
from interp.models.net import Net
from interp.models.norms import Norm
from interp.models.weights import embedding, head_weights, unembedding
from interp.registry import UserError
from interp.weights.factored import Factored

Side = Literal["qk", "ov"]


def qk_circuits(model: Model, *, fold_norm: bool = True, centre: bool = False, delta: int = 0) -> Factored:
    """W_QK of every head, `[layer, head, d_model (query), d_model (key)]`.

    `delta`: tokens from key to query, for rotary models. Raises UserError where there is no bilinear form, and
    for an offset in a model without rotary positions.

    >>> from tests.tiny import tiny
    >>> qk_circuits(tiny("llama"), delta=1).shape
    (2, 4, 32, 32)
    """
    _check(model, "qk", delta)
    net, lefts, rights = model.net, [], []
    for layer in range(model.geometry.layers):
        w = head_weights(net, layer)
        norm = _reading(net, layer)
        q, k = (_read(x, norm, fold_norm, centre) for x in (w.W_Q, w.W_K))
        lefts.append(rotated(net, q, layer, delta))
        rights.append(_each(rotated(net, k, layer, 0), model.geometry.group).mT)
    return Factored(torch.stack(lefts), torch.stack(rights))


def ov_circuits(model: Model, *, fold_norm: bool = True, centre: bool = False) -> Factored:
    """W_OV of every head, `[layer, head, d_model (read), d_model (written)]`.

    >>> import interp
    >>> ov_circuits(interp.load_model("attn-2l")).shape
    (2, 8, 128, 128)
    """
    _check(model, "ov", 0)
    net, lefts, rights = model.net, [], []
    for layer in range(model.geometry.layers):
        w = head_weights(net, layer)
        v = _read(w.W_V, _reading(net, layer), fold_norm, centre)
        lefts.append(_each(v, model.geometry.group))
        rights.append(w.W_O)
    return Factored(torch.stack(lefts), torch.stack(rights))


def full_circuit(
    model: Model, side: Side | str, layer: int, head: int, *, fold_norm: bool = True, delta: int = 0
) -> Factored:
    """One head's circuit between tokens, `[d_vocab, d_vocab]`, factored: W_E W_QK W_Eᵀ or W_E W_OV W_U.

    >>> import interp
    >>> full_circuit(interp.load_model("attn-2l"), "ov", 1, 0).shape  # token read, token raised; never made whole
    (1024, 1024)
    """
    if side == "qk":
        e = embedding(model.net)
        return qk_circuits(model, fold_norm=fold_norm, delta=delta)[layer, head].between(e, e.mT)
    if side != "ov":
        raise UserError(f"a circuit is 'qk' or 'ov', got {side!r}")
    return ov_circuits(model, fold_norm=fold_norm)[layer, head].between(
        embedding(model.net), reading_unembedding(model.net, fold_norm)
    )


def reading_unembedding(net: Net, fold_norm: bool = True) -> Float[Tensor, "d_model d_vocab"]:
    """W_U with the final norm's gain on the side that reads the residual."""
    weight, _ = unembedding(net)
    gain = net.final.gain if fold_norm and net.final else 1.0
    return weight if isinstance(gain, float) else gain.detach()[:, None] * weight


def rotated(
    net: Net, x: Float[Tensor, "heads d_model d_head"], layer: int, position: int
) -> Float[Tensor, "heads d_model d_head"]:
    """A projection's output directions, turned by a layer's rotary embedding to a position."""
    if net.rotary is None:
        return x
    prompts = Prompts.of(torch.zeros(1, position + 1, dtype=torch.long, device=x.device))
    grid = Grid.of(net, prompts, x.dtype, first=position)
    with torch.no_grad():
        turned = grid.rotate(rearrange(x, "heads d_model d_head -> d_model 1 heads d_head"), layer)
    return rearrange(turned, "d_model 1 heads d_head -> heads d_model d_head")


def _reading(net: Net, layer: int) -> Norm | None:
    norm = net.layers[layer].ln1
    return norm if net.geometry.pre_norm and norm else None


def _read(
    x: Float[Tensor, "heads d_model d_head"], norm: Norm | None, fold: bool, centre: bool
) -> Float[Tensor, "heads d_model d_head"]:
    """A reading projection with the norm before it folded in."""
    if norm is None:
        return x
    gain = norm.gain
    if fold and not isinstance(gain, float):
        x = gain.detach()[:, None] * x
    if centre and norm.centred:
        x = x - x.mean(1, keepdim=True)
    return x


def _each(x: Float[Tensor, "kv_head d_model d_head"], group: int) -> Float[Tensor, "head d_model d_head"]:
    """Each kv head once for every query head that shares it."""
    return x.repeat_interleave(group, 0)


def _check(model: object, side: Side, delta: int) -> None:
    if not isinstance(model, Model):
        raise UserError(f"weight circuits need a model of a known family, got {type(model).__name__} ({model!r})")
    g = model.geometry
    if side == "qk" and g.qk_norm:
        raise UserError(
            f"{model.name} norms its queries and keys, so a head's scores are no bilinear form of the residuals; "
            "its OV circuits exist (ov_circuits)"
        )
    if delta and not g.rotary:
        raise UserError(f"delta={delta}: {model.name} has no rotary positions, its QK circuit has no offset")
    if delta < 0 and g.causal:
        raise UserError(f"delta={delta}: a query reads keys at or before itself, so the offset is at least 0")
