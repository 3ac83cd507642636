"""Run one intervention per unit and collect the effects: what patching and ablation share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.edits import Edit
from interp.hooks.prompts import Prompts
from interp.hooks.sites import resolve_all
from interp.hooks.values import Run
from interp.interventions.base import Base, base_run
from interp.interventions.effects import Effects, Progress
from interp.interventions.plan import Options, Plan, make_plan, needed
from interp.interventions.reading import Reader
from interp.interventions.unedited import SideRuns, UneditedRuns
from interp.interventions.units import Unit, carries, parse_by, with_positions
from interp.metrics import LogitsView, Metric, get_metric
from interp.models.model import Model
from interp.models.net import Net
from interp.registry import UserError
from interp.tasks.values import Side, Task, other_side

MakeEdits = Callable[[Unit], Sequence[Edit]]
_BY_POSITION: WeakKeyDictionary[Task, Task] = WeakKeyDictionary()
"""Tasks with a label for every real position, made once for each."""


def _expect(what: str, given: object, kind: type) -> None:
    if not isinstance(given, kind):
        raise UserError(f"a {what} was expected, as interp.load_{what} gives it, got {given!r}")


class Sides:
    """The two runs of a task that every effect is compared with, and the reference some metrics need.

    Each side is run once: what is captured on the way (`run`) and what the metric reads come from the same pass.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> sides = Sides(model, task, "logit_diff")
    >>> float(sides.value("clean").mean()) > float(sides.value("corrupt").mean())
    True
    """

    def __init__(self, model: Model, task: Task, metric: str | Metric, runs: SideRuns | None = None) -> None:
        _expect("model", model, Model)
        _expect("task", task, Task)
        self.model, self.metric = model, get_metric(metric)
        self.metric.check(task)
        self.task = task.to(model.device)
        self.runs = SideRuns(model) if runs is None else runs
        self._bases: dict[Side, Base] = {}
        self._views: dict[Side, LogitsView] = {}
        self._values: dict[Side, Tensor] = {}

    def run(self, side: Side, capture: Iterable[str] = ()) -> Run:
        """The unedited run of one side with captures; its logits are left empty where only the metric's are read."""
        prompts = self.task.prompts(side)
        if self.altered:
            run = self.model.run(prompts, capture=capture)
            self._views[side] = self.metric.view(run.logits, self.task, side)
            return run
        wanted = resolve_all(capture, self.model.geometry)
        base = base_run(self.model, prompts, wanted, self.net, whole_passes=True)
        self._bases[side] = base
        self._read(side)
        return base.run

    def pair(self, side: Side, places: Iterable[Sequence[Address]], options: Options) -> tuple[Base | None, Run]:
        """The base run of one side, for interventions at `places`, and the other side's run with the same captures.

        Small sides are a `Pair`, which runs both when it is asked for one. Where replay may not round (`options`) no
        base comes back, and the planner makes its own.
        """
        other = other_side(side)
        places = list(dict.fromkeys(map(tuple, places)))
        edited = list(dict.fromkeys(a for one in places for a in one))
        if not self._replays(options):
            return None, self.run(other, map(str, edited))
        mine, theirs = self.task.prompts(side), self.task.prompts(other)
        base, donor = self.runs.pair(side, mine, theirs, needed(places, self.model.geometry, options), edited)
        self._bases = {side: base, other: donor}
        return base, donor.run

    def base(self, side: Side, addresses: Iterable[Address], options: Options) -> Base | None:
        """The base run of one side, for interventions at one of the addresses each; None where `options` say so."""
        if not self._replays(options):
            return None
        wanted = needed([[a] for a in addresses], self.model.geometry, options)
        self._bases[side] = self.runs.base(side, self.task.prompts(side), wanted)
        return self._bases[side]

    def _replays(self, options: Options) -> bool:
        """Whether interventions start from runs that may round another way than plain ones."""
        return options.prefix and not options.plain and not self.altered

    def _read(self, side: Side) -> None:
        base = self._bases[side]
        with torch.no_grad():
            self._views[side] = base.view(Reader(base.net, self.task, self.metric, side))

    @cached_property
    def altered(self) -> str:
        """Why only whole passes are right (`Model.altered`); empty where replay is."""
        return self.model.altered(self.net)

    @property
    def net(self) -> Net:
        """The model's parts, found once."""
        return self.runs.net

    def view(self, side: Side) -> LogitsView:
        """What the metric reads of the unedited run of one side."""
        if side not in self._views:
            if side in self._bases:
                self._read(side)
            else:
                self.run(side)
        return self._views[side]

    def reference(self) -> LogitsView | None:
        """The clean run's view, for metrics that compare with it."""
        return self.view("clean") if self.metric.needs_reference else None

    def value(self, side: Side) -> Tensor:
        """The metric of the unedited run of one side, per prompt."""
        if side not in self._values:
            self._values[side] = self.metric.from_view(self.view(side), self.task, self.reference())
        return self._values[side]

    def keep(self, side: Side, value: Tensor) -> None:
        """Say what the metric of one side is, where a sweep has computed it."""
        self._values.setdefault(side, value)

    def reader(self, side: Side) -> Reader:
        """Reads the metric of runs on one side."""
        return Reader(self.net, self.task, self.metric, side, self.reference)


def labelled(task: Task, by: str) -> Task:
    """The task with a label for every real position on both sides, where a sweep goes by position."""
    _expect("task", task, Task)
    if "position" not in parse_by(by):
        return task
    if task not in _BY_POSITION:
        _BY_POSITION[task] = replace(task, clean=with_positions(task.clean), corrupt=with_positions(task.corrupt))
    return _BY_POSITION[task]


def sides_by(model: Model, task: Task, by: str, metric: str | Metric, runs: UneditedRuns | None = None) -> Sides:
    """The two runs that a sweep by these axes is compared with; UserError where kept `runs` are of something else."""
    return Sides(model, labelled(task if runs is None else runs.of(model, task), by), metric, runs)


def run_units(
    sides: Sides,
    side: Side,
    units: Sequence[Unit],
    make: MakeEdits,
    *,
    about: Mapping[str, Any],
    options: Options,
    seed: int,
    progress: Progress | None = None,
    known: Base | None = None,
) -> Effects:
    """One intervention per unit on the base run of `side` (`known`, where it has been made); prompts that lack a
    unit's label have no value."""
    if not units:
        raise UserError("nothing to sweep over: no site was selected")
    reader = sides.reader(side)
    plan = make_plan(sides.model, [tuple(make(u)) for u in units], reader, options, known)
    values = plan.run(progress)
    values = _without_absent(values, units, reader.prompts, sides.task)
    return effects_of(sides, side, [u.key for u in units], values, plan, about, seed)


def effects_of(
    sides: Sides,
    side: Side,
    keys: Sequence[Mapping[str, Any]],
    values: Tensor,
    plan: Plan | None,
    about: Mapping[str, Any],
    seed: int,
) -> Effects:
    """Effects with the columns that every sweep states.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> sides = Sides(model, task, "logit_diff")
    >>> doubled = model.run(task.clean, edits=[interp.scale("L1.z", 2.0)]).logits
    >>> values = sides.metric(doubled, task, "clean")[None]  # one intervention
    >>> effects_of(sides, "clean", [{"site": "z", "layer": 1}], values, None, {}, seed=0).table()["n"].tolist()
    [8]
    """
    from interp.interventions.replay import baseline

    task, metric = sides.task, sides.metric
    if plan is not None:
        sides.keep(side, baseline(plan))
    base = sides.value(side) if plan is None else baseline(plan)
    stated = {
        "model": sides.model.name, "task": task.name, "metric": metric.name, "unit": metric.unit_for(task),
        "split": _text(task.meta.get("split")), "corruption": _text(task.meta.get("corruption")), **about,
    }  # fmt: skip
    return Effects(
        tuple(dict(k) for k in keys), values, base, sides.value("clean"), sides.value("corrupt"), task,
        {k: v for k, v in stated.items() if v is not None}, seed, plan,
    )  # fmt: skip


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _without_absent(values: Tensor, units: Sequence[Unit], prompts: Prompts, task: Task) -> Tensor:
    places = sorted({unit.place for unit in units if unit.place is not None})
    if not places:
        return values
    here = torch.stack([carries(prompts, place)[task.first_rows] for place in places])
    here = torch.cat([here, torch.ones_like(here[:1])])  # the last is for units without a place
    index = torch.tensor([len(places) if u.place is None else places.index(u.place) for u in units])
    return torch.where(here[index.to(here.device)], values, torch.nan)
