"""Unedited runs of a task, kept from one sweep to the next: sweeps of other sites, parts and metrics start from them.

A sweep of few edits spends much of its time on the two runs that it starts from. Kept, they are run once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING

import torch
from torch import nn

from interp.hooks.addresses import Address
from interp.hooks.prompts import Prompts
from interp.interventions.base import Base, base_run
from interp.interventions.pair import Pair, runs_together
from interp.models.net import Net, modules_of
from interp.registry import UserError
from interp.tasks.values import Side, Task, other_side

if TYPE_CHECKING:
    from interp.models.model import Model


class SideRuns:
    """Runs of both sides of one task, made when something asks for them and kept for who asks next.

    Who asks may give the sides other labels: the tokens are the same.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._pairs: dict[Side, Pair] = {}
        self._bases: dict[Side, Base] = {}

    @cached_property
    def net(self) -> Net:
        """The model's parts, found once."""
        return self.model.net

    def pair(
        self, side: Side, mine: Prompts, theirs: Prompts, wanted: list[Address], given: Iterable[Address]
    ) -> tuple[Base, Base]:
        """The run of one side with the addresses `wanted`, and the other's with `given`, which are among them."""
        given = list(given)
        if not runs_together(mine, theirs):
            return self.base(side, mine, wanted), self.base(other_side(side), theirs, given)
        known = self._pairs.get(side)
        if known is None or not known.covers(wanted, given):
            if known is not None:
                wanted = list(dict.fromkeys([*known.wanted, *wanted]))
                given = [a for a in wanted if a in given or str(a) in known.given]
            known = self._pairs[side] = Pair(self.model, mine, theirs, wanted, given, self.net)
        base, donor = known.sides()
        return _labelled(base, mine), _labelled(donor, theirs)

    def base(self, side: Side, prompts: Prompts, wanted: list[Address]) -> Base:
        """The run of one side with the addresses `wanted`."""
        pair = self._pairs.get(side)
        if pair is not None and pair.covers(wanted, ()):
            return _labelled(pair.sides()[0], prompts)
        known, names = self._bases.get(side), {str(a) for a in wanted}
        if known is None or not names <= set(known.run.acts):
            if known is not None:
                wanted = [*wanted, *(Address.parse(name) for name in known.run.acts if name not in names)]
            known = base_run(self.model, prompts, wanted, self.net, whole_passes=True, loose=True)
            self._bases[side] = known
        return _labelled(known, prompts)


class UneditedRuns(SideRuns):
    """Both sides of a task as a model runs them without edits, for several sweeps: `patch(…, runs=runs)`.

    The first sweep makes them; a later one that asks for a site nobody has asked for yet makes them anew, with all
    sites asked for so far. They hold these sites' activations of both sides. A sweep that runs the plain way, or a
    model with functions or hooks on it, does not use them.

    Raises UserError, when a sweep is given them, for another model or task, and where weights or modules have been
    changed since (a write past autograd's counter, by `.data`, is not seen).

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> runs = interp.UneditedRuns(model, task)
    >>> heads = interp.patch(model, task, "z", "head", runs=runs)
    >>> len(interp.patch(model, task, "z", "head", "prob_diff", runs=runs))  # starts from what the first has run
    12
    >>> without = interp.ablate(model, task, "z", "head", ablation="zero", runs=runs)
    """

    def __init__(self, model: Model, task: Task) -> None:
        super().__init__(model)
        self.given, self.task = task, task.to(model.device)
        self._modules = modules_of(model.module)
        self._weights = _versions(self._modules)

    def of(self, model: Model, task: Task) -> Task:
        """The task, on the model's device. UserError where these are the runs of something else."""
        if model is not self.model or task is not self.given:
            what = "model" if model is not self.model else "task"
            raise UserError(f"runs= are of another {what} than this sweep: make them with UneditedRuns(model, task)")
        modules = modules_of(model.module)
        same = len(modules) == len(self._modules) and all(map(is_, modules, self._modules))
        if not same or _versions(modules) != self._weights:
            raise UserError("the model has been changed since runs= were made: make new ones with UneditedRuns")
        self.net.refuse_stray_hooks(model.module)
        return self.task


def _labelled(base: Base, prompts: Prompts) -> Base:
    """A run of the same tokens under other labels."""
    return base if base.prompts is prompts else replace(base, prompts=prompts, run=replace(base.run, prompts=prompts))


def _versions(modules: Iterable[nn.Module]) -> list[tuple[int, int, torch.dtype]]:
    """What changes when a weight is written to, or moved."""
    every = (t for m in modules for t in chain(m._parameters.values(), m._buffers.values()) if t is not None)
    return [(t.data_ptr(), 0 if t.is_inference() else t._version, t.dtype) for t in every]
