"""RelP: attribution patching with the propagation rules of layer-wise relevance propagation.

The forward pass is the model's own; the backward pass sees another, piecewise linear model:

    norms        denominators are constants
    attention    patterns are constants (so queries and keys get no relevance)
    activations  identity rule: act(x) counts as x · (act(x)/x), the ratio a constant
    gates        half rule: of a product, each factor gets half

Scores are then (clean − ablated) · ∂m/∂ as in EAP or AtP. Source: 2508.21258.
"""

from __future__ import annotations

import torch
from torch import Tensor

from interp.attribution.eap import CLEAN, along_inputs
from interp.attribution.methods import Request, register_method
from interp.attribution.points import Spec
from interp.attribution.scores import Scores
from interp.models.net import Net
from interp.models.norms import Norm
from interp.registry import UserError

SCALES = ("ln1_scale", "ln2_scale", "ln_final_scale")


@register_method("relp")
def relp(request: Request) -> Scores:
    """Relevance patching: norms and patterns frozen, identity rule for activations, half rule for gates."""
    if request.model.geometry.experts:
        raise UserError("relp has no rule for routed MLPs; use eap or eap_ig_inputs")
    return along_inputs(request, "relp", CLEAN, lambda net: Spec(frozenset(), rule=Rules(net)))


def replaced(value: Tensor, seen: Tensor) -> Tensor:
    """`value`, with the gradient of `seen`."""
    return value.detach() + (seen - seen.detach())


class Rules:
    """A tap that leaves every value as it is and changes what gradients see."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self._held: dict[str, Tensor] = {}

    def wants(self, site: str, layer: int | None) -> bool:
        return site in SCALES

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        if site in (*SCALES, "pattern"):
            return x.detach()
        if site == "mlp_post":
            assert layer is not None
            x = self._activation(layer, x)
        elif site in ("attn_out", "mlp_out") and self.net.geometry.post_norm:
            assert layer is not None
            norm = self.net.layers[layer].post1 if site == "attn_out" else self.net.layers[layer].post2
            x = replaced(x, _linear(norm, self._held[f"{site}_pre"]))
        elif site in ("resid_mid", "resid_post") and self.net.geometry.stream_norm:
            assert layer is not None
            x = self._stream(site, layer, x)
        self._held[site] = x
        return x

    def _activation(self, layer: int, post: Tensor) -> Tensor:
        pre, parts = self._held["mlp_pre"], self.net.layers[layer]
        act = parts.act(pre.detach())  # type: ignore[misc]
        # at 0 the ratio is not defined; the value there is 0 whatever it is
        ratio = torch.where(pre == 0, 0.0, act / torch.where(pre == 0, 1.0, pre)).detach()
        if parts.mlp_up is None:
            return replaced(post, pre * ratio)
        up = self._held["mlp_up"]
        return replaced(post, 0.5 * (pre * ratio * up.detach() + act.detach() * up))

    def _stream(self, site: str, layer: int, x: Tensor) -> Tensor:
        parts, first = self.net.layers[layer], site == "resid_mid" or not self.net.geometry.mlp
        before, out = ("resid_pre", "attn_out") if first else ("resid_mid", "mlp_out")
        total = self._held[before] + self._held[out] if self.net.geometry.skip else self._held[out]
        return replaced(x, _linear(parts.post1 if first else parts.post2, total))


def _linear(norm: Norm, x: Tensor) -> Tensor:
    return norm.linear(x, norm.denominator(x).detach()) if norm else x
