"""The base run of a sweep: one unedited forward pass, and what replay needs of it.

It keeps the values of every edited site (to see which edits change what), the residual at the layers where
passes enter, and the rotated keys and values that later positions read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.hooks.sites import SITES
from interp.hooks.taps import RunTap
from interp.hooks.values import Prompts, Run
from interp.interventions.entry import FINAL
from interp.models.attention import KeyValue
from interp.models.forward import blocks, embed, final_norm
from interp.models.grid import Grid
from interp.models.heap import keep_freed_memory
from interp.models.model import Model
from interp.models.net import Net
from interp.registry import UserError

TOGETHER = 2048
"""Tokens of a pair of sides up to which one pass runs both: larger ones gain nothing, and hold captures of both."""


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

    @cached_property
    def altered(self) -> str:
        """Why only whole passes are right (`Model.altered`); empty where replay is."""
        return self.model.altered(self.net)

    @cached_property
    def held(self) -> Held:
        """All columns of the prompts."""
        return Held.all(self.prompts)

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


def base_run(
    model: Model, prompts: Prompts, capture: Iterable[Address], net: Net | None = None, *, whole_passes: bool = False
) -> Base:
    """Run the prompts unedited, keeping the addresses named. `net` saves finding the model's parts again.

    UserError where functions or hooks of the user take part in runs, unless only `whole_passes` follow: what computes
    a model part by part would pass them by.
    """
    net, wanted = model.net if net is None else net, list(capture)
    if not whole_passes and (reason := model.altered(net)):
        raise UserError(f"{reason}: a model that is computed part by part cannot heed that; take it off first")
    prompts = model.prompts(prompts)
    model._refuse_container_hooks(net)
    acts, final = _run(net, prompts, wanted)
    empty = final.new_empty(len(prompts), 0, 0)
    return Base(model, net, prompts, Run(prompts, empty, acts, layers=net.geometry.layers), final)


def base_pair(
    model: Model, mine: Prompts, theirs: Prompts, capture: Iterable[Address], given: Iterable[Address], net: Net
) -> tuple[Base, Base]:
    """Both sides of aligned pairs in one pass, by the kernels that packed replay uses.

    Up to rounding what two `base_run` give; the second side keeps only `given`, what its values are patched in from.
    What lies before the first token in which a pair differs is the same in both to the bit (causal models), so that a
    planner finds it so.
    """
    both = Prompts.of(torch.cat([mine.tokens, theirs.tokens]), torch.cat([mine.mask, theirs.mask]))
    model._refuse_container_hooks(net)
    acts, final = _run(replace(net, loose=True), model.prompts(both), list(capture))
    rows = len(mine)
    first, second = {a: t[:rows] for a, t in acts.items()}, {str(a): acts[str(a)][rows:] for a in given}
    if net.geometry.causal:
        shared = _shared(mine, theirs)
        second = {a: _as_in(t, first[a], shared, a) for a, t in second.items()}
    empty, layers = final.new_empty(rows, 0, 0), net.geometry.layers
    return (
        Base(model, net, mine, Run(mine, empty, first, layers=layers), final[:rows]),
        Base(model, net, theirs, Run(theirs, empty, second, layers=layers), final[rows:]),
    )


def runs_together(mine: Prompts, theirs: Prompts) -> bool:
    """Whether `base_pair` fits two sides: rows that stand in the same columns, few enough to gain by it."""
    same = mine.tokens.shape == theirs.tokens.shape and torch.equal(mine.mask, theirs.mask)
    return same and 2 * mine.tokens.numel() <= TOGETHER


def _shared(mine: Prompts, theirs: Prompts) -> Bool[Tensor, "batch pos"]:
    """Columns before the first token in which a pair differs."""
    differs = (mine.tokens != theirs.tokens) & mine.mask
    return differs.long().cumsum(1) == 0


def _as_in(own: Tensor, other: Tensor, shared: Bool[Tensor, "batch pos"], address: str) -> Tensor:
    """The tensor with another's values at the shared columns."""
    axis = SITES[Address.parse(address).site].token_axis
    shape = [shared.shape[0], *(1,) * (own.ndim - 1)]
    shape[axis] = shared.shape[1]
    return torch.where(shared.view(shape), other, own)


def _run(net: Net, prompts: Prompts, wanted: list[Address]) -> tuple[Mapping[str, Tensor], Tensor]:
    """Captures by address, and the residual after the last block."""
    if net.device.type == "cpu":
        keep_freed_memory()
    tap = RunTap(net.geometry, Held.all(prompts), capture=wanted)
    grid = Grid.of(net, prompts, net.dtype)
    with torch.no_grad():
        final = blocks(net, embed(net, prompts.tokens, grid, tap), grid, tap)
        if any(a.site in FINAL for a in wanted):
            final_norm(net, final, tap)
    return tap.captured(), final
