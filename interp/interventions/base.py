"""The base run of a sweep: one unedited forward pass, and what replay needs of it.

It keeps the values of every edited site (to see which edits change what), the residual at the layers where
passes enter, and the rotated keys and values that later positions read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.hooks.prompts import Prompts
from interp.hooks.taps import RunTap
from interp.hooks.values import NO_TENSORS, Run
from interp.interventions.entry import FINAL
from interp.models.attention import KeyValue
from interp.models.block import mixed
from interp.models.forward import blocks, embed, final_norm
from interp.models.grid import Grid
from interp.models.heap import keep_freed_memory
from interp.models.model import Model
from interp.models.net import Net
from interp.registry import UserError

if TYPE_CHECKING:
    from interp.interventions.pair import Pair
    from interp.interventions.reading import Reader
    from interp.metric_values import LogitsView


@dataclass(frozen=True, eq=False)
class Base:
    """An unedited run up to the last residual, with captures."""

    model: Model
    net: Net
    prompts: Prompts
    run: Run
    """Captures by address; its logits are left empty."""
    ending: Float[Tensor, "batch pos d_model"] | None
    """The residual after the last block; None where the pair that this run is a side of gives it."""
    pair: Pair | None = None
    side: int = 0

    @property
    def final(self) -> Float[Tensor, "batch pos d_model"]:
        """The residual after the last block."""
        if self.ending is None:
            assert self.pair is not None
            return self.pair.final(self.side)
        return self.ending

    def view(self, reader: Reader) -> LogitsView:
        """What a metric reads of it."""
        return reader.view_of_final(self.final) if self.pair is None else self.pair.view(self.side, reader)

    @cached_property
    def altered(self) -> str:
        """Why only whole passes are right (`Model.altered`); empty where replay is."""
        return "" if self.pair is not None else self.model.altered(self.net)

    @cached_property
    def held(self) -> Held:
        """All columns of the prompts."""
        return Held.all(self.prompts)

    def at(self, site: str, layer: int | None) -> Tensor:
        """A captured value."""
        value: Tensor = self.run.acts[str(Address(site, layer))]
        return value

    def prefix(self, first: int, layer: int) -> KeyValue | None:
        """Rotated keys and values of a layer's columns before `first`; None where there are none or none are kept."""
        acts, k, v = self.run.acts, f"L{layer}.k_rot", f"L{layer}.v"
        if first == 0 or k not in acts or v not in acts:
            return None
        return acts[k][:, :first].transpose(1, 2), acts[v][:, :first].transpose(1, 2)


def base_run(
    model: Model,
    prompts: Prompts,
    capture: Iterable[Address],
    net: Net | None = None,
    *,
    whole_passes: bool = False,
    loose: bool = False,
) -> Base:
    """Run the prompts unedited, keeping the addresses named. `net` saves finding the model's parts again; `loose` as
    `Net` has it.

    UserError where functions or hooks of the user take part in runs, unless only `whole_passes` follow: what computes
    a model part by part would pass them by.
    """
    net, wanted = model.net if net is None else net, list(capture)
    if not whole_passes and (reason := model.altered(net)):
        raise UserError(f"{reason}: a model that is computed part by part cannot heed that; take it off first")
    prompts = model.prompts(prompts)
    model._refuse_container_hooks(net)
    acts, (final,) = run_blocks(replace(net, loose=loose), prompts, wanted)
    empty = final.new_empty(len(prompts), 0, 0)
    return Base(model, net, prompts, Run(prompts, empty, acts, layers=net.geometry.layers), final)


def run_blocks(
    net: Net,
    prompts: Prompts,
    wanted: list[Address],
    start: int = 0,
    prefix: Sequence[KeyValue] | None = None,
    *,
    to_z: bool = False,
) -> tuple[Mapping[str, Tensor], tuple[Tensor, ...]]:
    """Captures by address, and the residual after the last block; with `to_z` the residual before it, and its z.

    Only columns from `start` on are run: `prefix` are each layer's keys and values of those before.
    """
    keep_freed_memory(net.device)
    last, columns = net.geometry.layers - 1, torch.arange(start, prompts.width, device=prompts.device)
    held = Held(prompts, columns, start == 0, start=start)
    grid, tap = Grid(net, held, net.dtype, start), RunTap(net.geometry, held, capture=wanted)
    with torch.no_grad():
        x = embed(net, held.take(prompts.tokens), grid, tap)
        x = blocks(net, x, grid, tap, prefix=prefix, stop=last if to_z else None)
        if to_z:
            x = tap("resid_pre", last, x.to(net.layers[last].device))
            z, _ = mixed(net, last, x, grid, tap, None if prefix is None else prefix[last], NO_TENSORS, None)
            assert z is not None
            return tap.captured(), (x, z)
        if any(a.site in FINAL for a in wanted):
            final_norm(net, x, tap)
    return tap.captured(), (x,)
