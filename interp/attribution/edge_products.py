"""From gradients at q, k, v, MLP inputs and the final residual to a score for every edge, without copies.

For a slot v of layer l and a source u above it, with δ_u = base − ablated of what u adds to the residual,

    score(u → v) = Σ_pos δ_u · ∂m/∂input_v,      ∂m/∂input_v = J_normᵀ W ∂m/∂(q, k or v)

where J_norm is the reading norm's Jacobian at the point where the gradient was taken. The norm's gain and
centring are folded into W here, so that per layer there is one product from d_head to d_model and one with
the sources. With x̂ the normalised residual and s its denominator:

    J_normᵀ W g = W' (g/s) − x̂ · (g/s · W'ᵀ x̂)/d,   W' = centred(gain · W)

Where attention's output passes a norm of its own, a head's δ goes through that norm's Jacobian first.
In the ungrouped graph every query head has a k and a v of its own; their gradients add up to the shared one's.

Source: 2310.10348.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from interp.attribution.ablated import jacobian
from interp.attribution.points import Point, over_steps, precise
from interp.graph import Graph
from interp.hooks.addresses import Address
from interp.hooks.geometry import Geometry
from interp.models.attention import attend
from interp.models.block import head_norm
from interp.models.net import Net
from interp.models.norms import NO_NORM, Norm
from interp.models.weights import head_weights

Deltas = Float[Tensor, "source batch pos d_model"]


def gradient_sites(graph: Graph) -> frozenset[Address]:
    """Where gradients are needed to score the edges of a graph."""
    g = graph.geometry
    sites = ["q", "k", "v", *(["ln2"] if g.mlp else []), *(["z"] if _splits(graph) else [])]
    inside = {Address(site, layer) for layer in range(g.layers) for site in sites}
    return frozenset(inside | {Address("resid_post", g.layers - 1)})


def value_sites(graph: Graph) -> frozenset[Address]:
    """Whose values are needed at each point: what norms read, and what ungrouped heads recompute."""
    g = graph.geometry
    sites = ["resid_pre"] if g.pre_norm or g.parallel else []
    if g.mlp and g.pre_norm and not g.parallel:
        sites.append("resid_mid")
    if g.post_norm:
        sites.append("attn_out_pre")
    if g.pre_norm:
        sites += ["q", "k", "v"]
    if _splits(graph):
        sites += ["q_rot", *([] if g.pre_norm else ["k", "v"])]
    return frozenset(Address(site, layer) for layer in range(g.layers) for site in sites)


def _splits(graph: Graph) -> bool:
    return graph.ungrouped and graph.geometry.group > 1


def per_point(g: Geometry) -> bool:
    """Whether the sources' changes depend on the point, through a post-norm's Jacobian."""
    return g.post_norm


def through_post_norms(net: Net, graph: Graph, delta: Deltas, point: Point) -> Deltas:
    """Heads' changes through their layer's post-norm at a point of one step; the same tensor without such norms."""
    g = graph.geometry
    if not g.post_norm:
        return delta
    out = delta.clone()
    for layer in range(g.layers):
        at = slice(1 + layer * graph.per_layer, 1 + layer * graph.per_layer + g.heads)
        before = point.value("attn_out_pre", layer).to(delta.device)
        out[at] = jacobian(net.layers[layer].post1, before, delta[at], point.frozen)
    return out


def edge_scores(
    net: Net, graph: Graph, point: Point, delta: Deltas, first: int = 0
) -> Float[Tensor, "batch source slot"]:
    """Scores of every edge from the sources `first`, `first` + 1, …, summed over positions and steps; 0 where no edge.

    Only slots whose gradients the point holds are scored.
    """
    out = delta.new_zeros(delta.shape[1], len(delta), len(graph.slots))
    for slots, grads in slot_gradients(net, graph, point):
        reads = [min(graph.upstream(graph.slots[i]) - first, len(delta)) for i in slots]
        count = max(reads)
        if count <= 0:
            continue
        out[:, :count, slots.start : slots.stop] = _product(delta[:count], grads.to(delta.device))
        for i, own in zip(slots, reads, strict=True):
            if own < count:
                out[:, max(own, 0) : count, i] = 0
    return out


def _product(delta: Tensor, grads: Tensor) -> Float[Tensor, "batch source slot"]:
    left = delta.flatten(2).transpose(0, 1)
    right = grads.flatten(2).permute(1, 2, 0)
    return torch.bmm(left, right)


def slot_gradients(
    net: Net, graph: Graph, point: Point
) -> Iterator[tuple[range, Float[Tensor, "slot batch pos d_model"]]]:
    """∂m/∂input of slots that stand side by side, with their indices.

    An MLP comes together with the attention of the next layer (or the logits), so that the sources are read
    once for both. The gradients lie in a buffer that the next ones overwrite.
    """
    g = graph.geometry
    width = g.heads + 2 * graph.kv_heads
    last = point.summed("resid_post", g.layers - 1)
    buffer = last.new_empty(width + 1, *last.shape)
    waiting = at = 0
    for layer in range(g.layers):
        if Address("q", layer) in point.grads:
            into = buffer.to(net.layers[layer].device)
            attention_inputs(net, graph, point, layer, into[waiting : waiting + width])
            yield range(at - waiting, at + width), into[: waiting + width]
            waiting = 0
        at += width
        if g.mlp:
            if Address("ln2", layer) in point.grads:
                buffer[0] = _mlp_input(net, point, layer)
                waiting = 1
            at += 1
    buffer[waiting] = last
    yield range(at - waiting, at + 1), buffer[: waiting + 1]


def attention_inputs(
    net: Net, graph: Graph, point: Point, layer: int, into: Float[Tensor, "slot batch pos d_model"]
) -> None:
    """Write ∂m/∂ the residual as each q, k and v of a layer reads it, summed over steps."""
    g, share = graph.geometry, graph.geometry.group if _splits(graph) else 1
    norm = net.layers[layer].ln1 if g.pre_norm else NO_NORM
    keys = [point.grad("k", layer), point.grad("v", layer)] if share == 1 else _own_keys(net, point, layer)
    grads = torch.cat([point.grad("q", layer), *keys], 2)  # [step·batch, pos, slot, d_head]
    if not norm:
        _to_inputs(over_steps(grads, point.steps), _folded(net, layer, norm, share), into)
        return
    x = point.value("resid_pre", layer)
    scale = norm.denominator(x)
    grads = grads / scale[..., None]
    _to_inputs(over_steps(grads, point.steps), _folded(net, layer, norm, share), into)
    if point.frozen:
        return
    unit = norm.centre(x) / scale
    along = (grads * _normed_projection(net, point, layer, norm, share)).sum(-1).div_(g.d_model)
    for u, s in zip(unit.chunk(point.steps), along.chunk(point.steps), strict=True):
        into.addcmul_(u[None], rearrange(s, "b p slot -> slot b p 1"), value=-1)


def _by_slot(parts: Sequence[Tensor], share: int) -> list[Tensor]:
    """q, k, v with the heads of k and v once per slot (axis 0)."""
    q, k, v = parts
    return [q, k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)] if share > 1 else [q, k, v]


def _folded(net: Net, layer: int, norm: Norm, share: int) -> Float[Tensor, "slot d_head d_model"]:
    """W_Q, W_K, W_V of every slot, with the reading norm's gain and centring in them."""
    w = head_weights(net, layer)
    parts = _by_slot([precise(t) for t in (w.W_Q, w.W_K, w.W_V)], share)
    gain = norm.gain if norm else 1.0
    factor = precise(gain.detach()) if isinstance(gain, Tensor) else torch.tensor(gain).to(parts[0])
    out = torch.empty(sum(map(len, parts)), *parts[0].shape[:0:-1], dtype=factor.dtype, device=factor.device)
    at = 0
    for part in parts:
        torch.mul(part.transpose(1, 2), factor, out=out[at : at + len(part)])
        at += len(part)
    return out.sub_(out.mean(-1, keepdim=True)) if norm.centred else out


def _to_inputs(grads: Tensor, weight: Tensor, into: Float[Tensor, "slot batch pos d_model"]) -> None:
    left = rearrange(grads, "b p slot d_head -> slot (b p) d_head")
    torch.bmm(left, weight, out=into.view(len(into), -1, into.shape[-1]))


def _normed_projection(net: Net, point: Point, layer: int, norm: Norm, share: int) -> Tensor:
    """W'ᵀ x̂ of every slot `[step·batch, pos, slot, d_head]`: the projections without what biases put in."""
    w = head_weights(net, layer)
    values = [point.value(s, layer) for s in "qkv"]
    for i, (weight, bias) in enumerate(((w.W_Q, w.b_Q), (w.W_K, w.b_K), (w.W_V, w.b_V))):
        fixed = precise(bias)
        if norm.bias is not None:
            fixed = fixed + einsum(precise(norm.bias), precise(weight), "d, head d d_head -> head d_head")
        if net.geometry.qk_positions and i < 2:
            pos = point.narrowed(net.pos_embed(point.grid.positions))  # type: ignore[misc]
            fixed = fixed + einsum(precise(pos), precise(weight), "b p d, head d d_head -> b p head d_head")
        values[i] = values[i] - fixed
    q, k, v = values
    return torch.cat([q, k.repeat_interleave(share, 2), v.repeat_interleave(share, 2)], 2)


def _mlp_input(net: Net, point: Point, layer: int) -> Float[Tensor, "batch pos d_model"]:
    g, parts = net.geometry, net.layers[layer]
    grad = point.grad("ln2", layer)
    if g.pre_norm and parts.ln2:
        x = point.value("resid_pre" if g.parallel else "resid_mid", layer)
        grad = transposed(parts.ln2, x, grad, point.frozen)
    return over_steps(grad, point.steps)


def transposed(norm: Norm, x: Tensor, grad: Tensor, frozen: bool = False) -> Tensor:
    """The norm's Jacobian at x, transposed, applied to a gradient at its output (`frozen`: denominator held)."""
    if not frozen:
        return norm.transposed_jacobian(x, grad)
    return norm.centre(grad * norm.gain) / norm.denominator(x)


def _own_keys(net: Net, point: Point, layer: int) -> list[Tensor]:
    """Gradients at k and v as if each query head had its own, `[step·batch, pos, head, d_head]`."""
    group = net.geometry.group
    whole = replace(point, column=0)
    q = whole.value("q_rot", layer).transpose(1, 2)
    with torch.enable_grad():
        # one copy of all kv heads for each member of a group
        k, v = (whole.value(s, layer).expand(group, *(-1,) * 4).clone().requires_grad_(True) for s in ("k", "v"))
        turned = [point.grid.rotate(head_norm(net, layer, one, "k"), layer).transpose(1, 2) for one in k]
        keys, values = (torch.stack(t, 2).flatten(1, 2) for t in (turned, [one.transpose(1, 2) for one in v]))
        pattern = attend(net, layer, q, keys, point.grid)
        z = torch.matmul(pattern.detach() if point.frozen else pattern, values).transpose(1, 2)
        found = torch.autograd.grad(z, [k, v], whole.grad("z", layer), allow_unused=True)
    grads = [torch.zeros_like(x) if t is None else t for x, t in zip((k, v), found, strict=True)]
    split = [rearrange(t, "member b p kv_head d_head -> b p (kv_head member) d_head") for t in grads]
    return [point.narrowed(t) for t in split]
