"""Ablation: take a component away and see what it does to a metric, on the clean prompts.

    zero      set to 0 (off the distribution the model knows)
    mean      the mean over a set of prompts, by all, position, label or template; real tokens only
    resample  another prompt's value: other tokens, same length and labels, seeded
    corrupt   the pair's other prompt's value (the same as patching with noise)

The clean task's own mean leaks the answer: where a task names a set for it (IOI: the ABC prompts, per
template), that set is the default, else the corrupt prompts. Source: 2407.08734 for the recipe's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from torch import Tensor

from interp.hooks import edits
from interp.hooks.prompts import Prompts
from interp.hooks.values import Means, Run
from interp.interventions.effects import Effects, Progress
from interp.interventions.plan import DEFAULT, Options
from interp.interventions.sweep import run_units, sides_by
from interp.interventions.unedited import UneditedRuns
from interp.interventions.units import Unit, parse_by, units, with_positions
from interp.metric_values import Metric
from interp.models.model import Model
from interp.registry import UserError, unknown
from interp.tasks.values import Task

AblationKind = Literal["zero", "mean", "resample", "corrupt"]
Over = Literal["auto", "clean", "corrupt", "task"]
KINDS = ("zero", "mean", "resample", "corrupt")


def ablate(
    model: Model,
    task: Task,
    sites: str | Iterable[str] = "z",
    by: str = "head",
    metric: str | Metric = "logit_diff",
    *,
    ablation: AblationKind = "mean",
    over: Over = "auto",
    mean_by: str = "auto",
    match: str | None = None,
    labels: Sequence[str] | None = None,
    seed: int = 0,
    options: Options = DEFAULT,
    runs: UneditedRuns | None = None,
    progress: Progress | None = None,
) -> Effects:
    """Ablate each part of the sites in the clean run.

    Args:
        ablation: `zero`, `mean`, `resample` or `corrupt`.
        over: prompts of the mean: `task` (the set the task names), `clean`, `corrupt`; `auto` as above.
        mean_by: `all`, `position`, `label`, `template`; `auto` takes template where the set has them, else
            position.
        match: with `resample`, a label whose token the donor must share.
        runs: both sides' unedited runs, kept from sweep to sweep of this model and task.

    Returns effects in the metric's unit; negative means that the component helped.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> len(ablate(model, task, sites="z", by="head", ablation="zero").table())
    12
    """
    if ablation not in KINDS:
        raise unknown("ablation", ablation, list(KINDS))
    sides = sides_by(model, task, by, metric, runs)
    if ablation == "corrupt" and "label" not in parse_by(by):
        sides.task.require_aligned()
    found = units(model.geometry, sides.task.clean, sites, by, labels)
    addresses = sorted({str(u.address) for u in found})
    known, donor = None, None
    if ablation == "corrupt":
        known, donor = sides.pair("clean", [[u.address] for u in found], options)
    elif runs is not None:
        known = sides.base("clean", (u.address for u in found), options)
    replace = Replacement(model, sides.task, ablation, addresses, over, mean_by, match, seed, donor)
    about = {
        "method": "ablate", "direction": "ablate", "ablation": replace.name, "granularity": by,
    }  # fmt: skip
    return run_units(
        sides, "clean", found, lambda u: [replace(u)], about=about, options=options, seed=seed, progress=progress,
        known=known,
    )  # fmt: skip


class Replacement:
    """What an ablated part is replaced by: makes the edit for each unit. `donor`: the run read, where it is known."""

    def __init__(
        self,
        model: Model,
        task: Task,
        ablation: str,
        addresses: Sequence[str],
        over: str = "auto",
        mean_by: str = "auto",
        match: str | None = None,
        seed: int = 0,
        donor: Run | None = None,
    ) -> None:
        self.ablation, self.match, self.seed = ablation, match, seed
        self.means: Means | None = None
        self.donor = donor
        self.rows: Tensor | None = None
        self.name = ablation
        if ablation == "mean":
            prompts, named = means_prompts(task, over)
            by = mean_by if mean_by != "auto" else "position" if prompts.template is None else "template"
            self.means = model.means(prompts if by != "label" else with_positions(prompts), addresses, by=by)
            self.name = f"mean over {named} by {by}"
        elif ablation in ("resample", "corrupt", "clean"):
            # `clean` mirrors the corrupt ablation, for runs on the corrupt prompts
            prompts = task.corrupt if ablation == "corrupt" else task.clean
            self.donor = model.run(prompts, capture=addresses) if donor is None else donor
            self.rows = edits.donors(prompts, seed, match) if ablation == "resample" else None
            self.name = ablation if match is None else f"{ablation} matched at {match}"

    def __call__(self, unit: Unit) -> edits.Edit:
        address = str(unit.address)
        if self.ablation == "zero":
            return edits.zero(address, **unit.parts)
        if self.means is not None:
            return edits.mean(address, self.means, **unit.parts)
        assert self.donor is not None
        if self.ablation in ("corrupt", "clean"):
            return edits.patch(address, self.donor, **unit.parts)
        return edits.resample(address, self.donor, self.seed, self.match, self.rows, **unit.parts)


def means_prompts(task: Task, over: str) -> tuple[Prompts, str]:
    """The prompts to average over, and their name. UserError where the task names no set of its own."""
    if over == "auto":
        over = "corrupt" if task.means_on is None else "task"
    if over == "task":
        if task.means_on is None:
            raise UserError(f"task {task.name!r} names no prompts to average over; over= clean or corrupt")
        return task.means_on, str(task.meta.get("means_on", "task set"))
    if over not in ("clean", "corrupt"):
        raise unknown("prompts to average over", over, ["auto", "clean", "corrupt", "task"])
    return task.prompts(over), over  # type: ignore[arg-type]
