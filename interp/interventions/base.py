"""The base run of a sweep: one unedited forward pass, and what replay needs of it.

It keeps the values of every edited site (to see which edits change what), the residual at the layers where
passes enter, and the rotated keys and values that later positions read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.hooks.taps import RunTap
from interp.hooks.values import Prompts, Run
from interp.interventions.entry import FINAL
from interp.models.block import KeyValue
from interp.models.forward import blocks, embed, final_norm
from interp.models.grid import Grid
from interp.models.model import Model
from interp.models.net import Net


@dataclass(frozen=True, eq=False)
class Base:
    """An unedited run up to the last residual, with captures."""

    model: Model
    net: Net
    prompts: Prompts
    run: Run
    """Captures by address; its logits are left empty."""
    final: Float[Tensor, "batch pos d_model"]
    """The residual after the last block."""

    def at(self, site: str, layer: int | None) -> Tensor:
        """A captured value."""
        return self.run.acts[str(Address(site, layer))]

    def prefix(self, first: int) -> list[KeyValue | None] | None:
        """Rotated keys and values of the columns before `first`, by layer; None where there are none."""
        if first == 0:
            return None
        found: list[KeyValue | None] = []
        for layer in range(self.net.geometry.layers):
            pair = [self.run.acts.get(f"L{layer}.{site}") for site in ("k_rot", "v")]
            if pair[0] is None or pair[1] is None:
                found.append(None)
                continue
            k, v = (t[:, :first].transpose(1, 2) for t in pair if t is not None)
            found.append((k, v))
        return found


def base_run(model: Model, prompts: Prompts, capture: Iterable[Address], net: Net | None = None) -> Base:
    """Run the prompts unedited, keeping the addresses named. `net` saves finding the model's parts again."""
    net, wanted = model.net if net is None else net, list(capture)
    prompts = model.prompts(prompts)
    model._refuse_container_hooks(net)
    tap = RunTap(net.geometry, Held.all(prompts), capture=wanted)
    grid = Grid.of(net, prompts, net.dtype)
    with torch.no_grad():
        final = blocks(net, embed(net, prompts.tokens, grid, tap), grid, tap)
        if any(a.site in FINAL for a in wanted):
            final_norm(net, final, tap)
    acts = tap.captured()
    empty = final.new_empty(len(prompts), 0, 0)
    return Base(model, net, prompts, Run(prompts, empty, acts, layers=net.geometry.layers), final)
