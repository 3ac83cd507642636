"""Routed MLPs: every token passes the few experts that its router prefers.

    router = W_r · ln2          weight_e = softmax(router)_e, kept for the largest top_k, by some families renormalised
    out    = Σ_kept weight_e · expert_e(ln2)  [+ sigmoid(gate · ln2) · shared(ln2)]

The checkpoint's router and experts are called themselves; the choice between them is made here, so that an edit
of the router's logits takes effect. Limit: the experts are one module, whose insides have no sites.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.hooks.taps import Tap
from interp.models.family import Routing


@dataclass(frozen=True, eq=False)
class Routed:
    """The parts of one routed MLP."""

    router: nn.Module
    experts: nn.Module
    routing: Routing
    shared: nn.Module | None
    shared_gate: nn.Module | None

    def __call__(
        self, layer: int, x: Float[Tensor, "batch pos d_model"], tap: Tap
    ) -> Float[Tensor, "batch pos d_model"]:
        """What all experts together write, through the site `router`."""
        flat = x.reshape(-1, x.shape[-1])
        aside = None if self.shared is None or self.shared_gate is None else self.shared(flat)
        logits = tap("router", layer, self.router(flat)[0].view(*x.shape[:-1], -1))
        weight, index = chosen(logits.reshape(len(flat), -1), self.routing)
        out = self.experts(flat, index, weight)
        if aside is not None and self.shared_gate is not None:
            out = out + torch.sigmoid(self.shared_gate(flat)) * aside
        return out.view_as(x)  # type: ignore[no-any-return]

    def parts(self) -> list[nn.Module]:
        """The modules that a pass calls."""
        return [m for m in (self.router, self.experts, self.shared, self.shared_gate) if m is not None]


def chosen(
    logits: Float[Tensor, "token expert"], routing: Routing, wide: Callable[[Tensor], Tensor] = Tensor.float
) -> tuple[Float[Tensor, "token top"], Int[Tensor, "token top"]]:
    """Weights and indices of each token's experts, the largest first."""
    weight, index = torch.topk(torch.softmax(wide(logits), -1), routing.top_k, -1)
    if routing.normalise:
        weight = weight / weight.sum(-1, keepdim=True)
    return weight if routing.fp32 else weight.to(logits.dtype), index
