"""What every source would be under an ablation, batch by batch, and the change it makes to the residual.

The values are those of `interp.interventions.ablation`: zero, mean (over a set of prompts, of the whole task),
resample (a donor prompt), corrupt (the pair's other prompt). Changes have the sign of attributions, base −
ablated: positive times a positive gradient helps the metric. Padding changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.attribution.points import precise
from interp.graph import Graph
from interp.hooks import edits
from interp.hooks.addresses import Address
from interp.hooks.context import EditContext, Held
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.selection import Selection
from interp.hooks.sites import SITES
from interp.hooks.values import Run
from interp.interventions.ablation import Replacement
from interp.interventions.base import base_run
from interp.interventions.sources import Recipe
from interp.interventions.units import Unit
from interp.models.model import Model
from interp.models.net import Net
from interp.models.norms import Norm
from interp.models.weights import head_weights
from interp.tasks.values import Task

INPUT = Address("resid_pre", 0)
"""What the graph's input node writes: embedding and positions."""

Values = dict[Address, Tensor]


def source_sites(g: Geometry) -> list[Address]:
    """Where the graph's sources are ablated: the input, z, mlp_out."""
    sites = ("z", "mlp_out") if g.mlp else ("z",)
    return [INPUT, *(Address(site, layer) for layer in range(g.layers) for site in sites)]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some prompts of a task, with which rows and prompts of the whole task they are."""

    task: Task
    rows: slice
    prompts: slice


def batches(task: Task, tokens: int) -> Iterator[Batch]:
    """The task in order, at most `tokens` tokens of clean prompts at a time (at least one prompt)."""
    firsts = [*task.first_rows.tolist(), len(task.prompt_of_row)]
    start = 0
    while start < task.n:
        stop = start + 1
        while stop < task.n and (firsts[stop + 1] - firsts[start]) * task.clean.width <= tokens:
            stop += 1
        whole = start == 0 and stop == task.n
        part = task if whole else task.rows(slice(start, stop))
        yield Batch(part, slice(firsts[start], firsts[stop]), slice(start, stop))
        start = stop


def over_batches(
    task: Task,
    tokens: int,
    rows_of: Callable[[Batch], Float[Tensor, "row part"]],
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "row prompt"]:
    """The rows of every batch side by side, without a graph. `progress(done, total)` is called in prompts."""
    out: Tensor | None = None
    for batch in batches(task, tokens):
        with torch.no_grad():
            rows = rows_of(batch)
        out = rows.new_empty(len(rows), task.n) if out is None else out
        out[:, batch.prompts] = rows
        if progress is not None:
            progress(batch.prompts.stop, task.n)
    assert out is not None
    return out


class Ablated:
    """The values that an ablation gives to sites, for any batch of a task."""

    def __init__(self, model: Model, task: Task, recipe: Recipe, sites: Iterable[Address]) -> None:
        self.model, self.task, self.recipe, self.sites = model, task, recipe, list(sites)
        self._fixed: Replacement | None = None
        self._donors: Tensor | None = None
        self.name = recipe.ablation
        if recipe.ablation == "corrupt":
            task.require_aligned()
        elif recipe.ablation == "resample":
            self._donors = edits.donors(task.clean, recipe.seed, recipe.match)
            self.name = "resample" if recipe.match is None else f"resample matched at {recipe.match}"
        else:
            names = [str(a) for a in self.sites]
            self._fixed = Replacement(model, task, recipe.ablation, names, recipe.over, recipe.mean_by)
            self.name = self._fixed.name

    def of(self, batch: Batch, base: Values) -> Values:
        """Ablated values where `base` has the values of the batch's clean prompts."""
        prompts = batch.task.clean
        donor = self._donor(batch)
        held, g = Held.all(prompts), self.model.geometry
        out = {}
        with torch.no_grad():
            for address in self.sites:
                if donor is not None:
                    edit = edits.patch(str(address), donor)
                else:
                    assert self._fixed is not None
                    edit = self._fixed(Unit(address, {}, {}))
                ctx = EditContext(SITES[address.site], address.layer, g, held, Selection())
                out[address] = edit.apply(base[address], ctx)
        return out

    def _donor(self, batch: Batch) -> Run | None:
        """The run whose values replace the batch's, without its logits."""
        if self._fixed is not None:
            return None
        prompts: Prompts = batch.task.corrupt
        if self._donors is not None:
            prompts = self.task.clean.rows(self._donors[batch.rows])
        return base_run(self.model, prompts, self.sites).run


@dataclass(frozen=True, eq=False)
class Changes:
    """base − ablated of what each source writes, from the first column where anything changes."""

    values: Float[Tensor, "source batch pos d_model"]
    column: int


def written(net: Net, graph: Graph, base: Values, ablated: Values) -> Changes:
    """The changes of a graph's sources, in its order; heads' before any post-norm."""
    g = graph.geometry
    moved = {a: precise(base[a]) - precise(ablated[a]) for a in source_sites(g)}
    column = min(_first_column(t) for t in moved.values())
    moved = {a: t[:, column:] for a, t in moved.items()}
    out = torch.empty(len(graph.sources), *moved[INPUT].shape, dtype=moved[INPUT].dtype, device=moved[INPUT].device)
    out[0] = moved[INPUT]
    for layer in range(g.layers):
        at = 1 + layer * graph.per_layer
        w_o = precise(head_weights(net, layer).W_O)
        change = rearrange(moved[Address("z", layer)], "b p head d_head -> head (b p) d_head")
        into = out[at : at + g.heads].view(g.heads, -1, g.d_model)
        if change.device == into.device:
            torch.bmm(change, w_o, out=into)
        else:
            into.copy_(torch.bmm(change, w_o))
        if g.mlp:
            out[at + g.heads] = moved[Address("mlp_out", layer)]
    return Changes(out, column)


def _first_column(moved: Float[Tensor, "batch pos ..."]) -> int:
    """The first column where anything changes; the last one where nothing does."""
    some = (moved != 0).flatten(2).any(2).any(0).nonzero()
    return int(some[0]) if len(some) else moved.shape[1] - 1


def jacobian(norm: Norm, x: Float[Tensor, "... d"], change: Float[Tensor, "... d"], frozen: bool = False) -> Tensor:
    """What a small change of a norm's input becomes at its output, linearised at x (`frozen`: denominator held)."""
    if not norm:
        return change
    scale = norm.denominator(x)
    moved = norm.centre(change) / scale
    if not frozen:
        unit = norm.centre(x) / scale
        moved = moved - unit * (moved * unit).mean(-1, keepdim=True)
    return moved * norm.gain
