"""A routed MLP written out a second time: every expert on every token, then the weights of the chosen ones.

    out = Σ_e weight_e · W_down,e (act(W_gate,e x) · W_up,e x)  [+ sigmoid(gate · x) · shared(x)]

Weights come from the softmax of the router's logits: the largest top_k, by some families divided by their sum.
"""

from __future__ import annotations

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from interp.models.experts import Routed
from interp.models.parts import matrix


def mixture(
    routed: Routed, x: Float[Tensor, "batch pos d_model"], logits: Float[Tensor, "batch pos expert"]
) -> Float[Tensor, "batch pos d_model"]:
    """What the experts write, in float64."""
    share = torch.softmax(logits, -1)
    least = share.sort(-1, descending=True).values[..., routed.routing.top_k - 1, None]
    share = share * (share >= least)
    if routed.routing.normalise:
        share = share / share.sum(-1, keepdim=True)
    gate_up, down = (getattr(routed.experts, name).detach().double() for name in ("gate_up_proj", "down_proj"))
    gate, up = einsum(x, gate_up, "b p d, expert two_m d -> b p expert two_m").chunk(2, -1)
    each: Tensor = einsum(_act(routed.experts)(gate) * up, down, "b p expert m, expert d m -> b p expert d")
    out: Tensor = einsum(share, each, "b p expert, b p expert d -> b p d")
    if routed.shared is None or routed.shared_gate is None:
        return out
    aside: Tensor = torch.sigmoid(_through(routed.shared_gate, x)) * _gated(routed.shared, x)
    return out + aside


def _gated(mlp: nn.Module, x: Tensor) -> Tensor:
    gate, up = (_through(getattr(mlp, name), x) for name in ("gate_proj", "up_proj"))
    down: nn.Module = mlp.down_proj  # type: ignore[assignment]
    return _through(down, _act(mlp)(gate) * up)


def _through(linear: nn.Module, x: Tensor) -> Tensor:
    return x @ matrix(linear).detach().double()


def _act(module: nn.Module) -> nn.Module:
    act = module.act_fn
    assert isinstance(act, nn.Module)
    return act
