"""Flow: the residual stream's norm layer by layer, and the gradient's paths back through it.

Residual: at each block, the norm of the residual that enters, the norms of what attention and MLP add, and the
angle by which each update turns the residual. Means over real tokens, per prompt.

Gradient: with g the loss's gradient at the residual, the one that enters a block is a sum of three vectors,

    skip   what comes back past both sublayers unchanged (post-LayerNorm: through the Jacobians of its norms)
    mlp    what comes back through the MLP and then past attention
    attn   what comes back through attention, the MLP behind it included (parallel blocks: attention alone)

and a part's share is its projection on the total, ⟨part, total⟩/⟨total, total⟩, so that shares sum to 1 (a share
may be negative). Where there are no skip paths everything comes back through attention.

Source: the residual view of 2012.11747 and A Mathematical Framework (2021); He et al. 2016 (1603.05027) for skip
paths, Xiong et al. 2020 (2002.04745) for pre- and post-norm. Limits: sandwich norms count as part of sublayers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.prompts import Prompts
from interp.hooks.values import Run
from interp.models.model import Model
from interp.models.net import Net
from interp.models.norms import Norm
from interp.numerics.replay import Loss, next_token_loss

PARTS = ("skip", "attn", "mlp")


@dataclass(frozen=True, eq=False)
class ResidualFlow:
    """Per prompt and layer; norms in the residual's own unit, angles in degrees."""

    norm: Float[Tensor, "batch layer"]
    """Of the residual entering the block."""
    attn_norm: Float[Tensor, "batch layer"]
    mlp_norm: Float[Tensor, "batch layer"]
    """Zeros where there are no MLPs."""
    angle: Float[Tensor, "batch layer"]
    """Between the residual entering and leaving the block."""


@dataclass(frozen=True, eq=False)
class GradientFlow:
    """Gradient at the residual entering each block, per prompt: norms over all its tokens, and shares of its parts."""

    norm: Float[Tensor, "batch layer"]
    parts: Mapping[str, Float[Tensor, "batch layer"]]
    """Norm of each part."""
    shares: Mapping[str, Float[Tensor, "batch layer"]]
    """Projection of each part on the total; they sum to 1 (NaN where the gradient is 0)."""
    gap: float
    """Largest |sum of parts − total| over the largest |total|: rounding."""


@torch.no_grad()
def residual_flow(model: Model, prompts: Prompts) -> ResidualFlow:
    """Norms and angles of the residual stream on these prompts.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> residual_flow(model, model.prompts([[1, 2, 3], [4, 5, 6]])).norm.shape  # prompts, layers
    torch.Size([2, 3])
    """
    mlp = model.geometry.mlp
    run = model.run(prompts, capture=["resid_pre", "resid_post", "attn_out", *(["mlp_out"] if mlp else [])])
    mask = run.prompts.mask

    def mean(x: Float[Tensor, "batch pos"]) -> Float[Tensor, " batch"]:
        return (x.double() * mask).sum(1) / mask.sum(1)

    columns: list[list[Tensor]] = [[], [], [], []]
    for layer in range(model.geometry.layers):
        before, after = run[f"L{layer}.resid_pre"], run[f"L{layer}.resid_post"]
        cosine = torch.nn.functional.cosine_similarity(before.double(), after.double(), dim=-1).clamp(-1, 1)
        sizes = [before, run[f"L{layer}.attn_out"], run[f"L{layer}.mlp_out"] if mlp else torch.zeros_like(before)]
        for column, x in zip(columns, [*(t.norm(dim=-1) for t in sizes), cosine.arccos().rad2deg()], strict=True):
            column.append(mean(x))
    norm, attn, mlps, angle = (torch.stack(c, 1).cpu() for c in columns)
    return ResidualFlow(norm, attn, mlps, angle)


def gradient_flow(model: Model, prompts: Prompts, loss: Loss = next_token_loss) -> GradientFlow:
    """The gradient of the summed loss at each block's residual, taken apart (see the module's docstring).

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> flow = gradient_flow(model, model.prompts([[1, 2, 3], [4, 5, 6]]))
    >>> flow.norm.shape, flow.gap < 1e-4
    (torch.Size([2, 3]), True)
    """
    g = model.geometry
    grads = ["resid_pre", "resid_post"]
    acts = ["resid_pre"]
    if g.mlp and not g.parallel:
        grads.append("resid_mid")
        acts.append("resid_mid")
    if g.parallel:
        grads.append("ln1")
    if g.stream_norm:
        acts += ["attn_out", *(["mlp_out"] if g.mlp else [])]
    run = model.run(prompts, capture=acts, grads=grads, metric=lambda logits: loss(logits, prompts))
    net = model.net
    norms, sizes, shares = [], [], []
    gap = 0.0
    for layer in range(g.layers):
        total = run.grads[f"L{layer}.resid_pre"]
        parts = tuple(p.detach() for p in _parts(net, layer, run))
        square = total.square().sum((1, 2))
        off = (torch.stack(parts).sum(0) - total).detach().abs().max()
        gap = max(gap, float(off / total.abs().max().clamp(min=1e-30)))
        norms.append(square.sqrt())
        sizes.append(torch.stack([p.square().sum((1, 2)).sqrt() for p in parts]))
        share = torch.stack([(p * total).sum((1, 2)) for p in parts]) / square
        shares.append(torch.where(square > 0, share, torch.nan))
    size, share = torch.stack(sizes, -1).cpu(), torch.stack(shares, -1).cpu()
    named = dict(zip(PARTS, size, strict=True)), dict(zip(PARTS, share, strict=True))
    return GradientFlow(torch.stack(norms, -1).cpu(), named[0], named[1], gap)


def _parts(net: Net, layer: int, run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """skip, attn, mlp: vectors that sum to the gradient at the block's entrance."""
    g, parts = net.geometry, net.layers[layer]
    total, out = run.grads[f"L{layer}.resid_pre"], run.grads[f"L{layer}.resid_post"]
    none = torch.zeros_like(total)
    if not g.skip:
        return none, total, none
    if g.parallel:
        before = run[f"L{layer}.resid_pre"]
        attn = parts.ln1.transposed_jacobian(before, run.grads[f"L{layer}.ln1"])
        return out, attn, total - out - attn
    if not g.mlp:
        past = _past(g.stream_norm, parts.post1, run, layer, "resid_pre", "attn_out", out)
        return past, total - past, none
    mid = run.grads[f"L{layer}.resid_mid"]
    past_mlp = _past(g.stream_norm, parts.post2, run, layer, "resid_mid", "mlp_out", out)
    skip = _past(g.stream_norm, parts.post1, run, layer, "resid_pre", "attn_out", past_mlp)
    past_attn = _past(g.stream_norm, parts.post1, run, layer, "resid_pre", "attn_out", mid)
    return skip, total - past_attn, past_attn - skip


def _past(stream: bool, norm: Norm, run: Run, layer: int, before: str, added: str, grad: Tensor) -> Tensor:
    """A gradient after an addition, brought back to the residual before it, past the sublayer."""
    if not stream:
        return grad
    at = run[f"L{layer}.{before}"] + run[f"L{layer}.{added}"]
    return norm.transposed_jacobian(at, grad).detach()
