"""Activation patching: put one run's activation into another and see what it does to a metric.

*Denoise*: run the corrupt prompts, put one clean activation in; what restores the behaviour is sufficient on
its path. *Noise*: run the clean prompts, put one corrupt activation in; what breaks it is necessary.
normalized = (value − corrupt)/(clean − corrupt) of the means, 1 = clean in both directions.

Sources: 2309.16042, 2404.15255. Limits: pairs of unequal length can be patched by label only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch

from interp.hooks import edits
from interp.hooks.values import Run
from interp.interventions.base import Base
from interp.interventions.effects import Effects, Progress, stacked
from interp.interventions.plan import DEFAULT, Options
from interp.interventions.sweep import Sides, run_units, sides_by
from interp.interventions.unedited import UneditedRuns
from interp.interventions.units import Unit, parse_by, units
from interp.metric_values import Metric
from interp.models.model import Model
from interp.registry import UserError, unknown
from interp.tasks.values import Side, Task

PatchDirection = Literal["denoise", "noise"]


def patch(
    model: Model,
    task: Task,
    sites: str | Iterable[str] = "z",
    by: str = "head",
    metric: str | Metric = "logit_diff",
    *,
    direction: PatchDirection = "denoise",
    labels: Sequence[str] | None = None,
    window: int = 1,
    together: bool = False,
    seed: int = 0,
    options: Options = DEFAULT,
    runs: UneditedRuns | None = None,
    progress: Progress | None = None,
) -> Effects:
    """Patch each part of the sites from the pair's other run.

    Args:
        sites: one site or several; an address such as `L1.z` keeps to one layer.
        by: `layer`, `head`, `position`, `label`, `neuron`, or several such as `head+position`.
        direction: `denoise` (clean into corrupt) or `noise` (corrupt into clean).
        labels: labels to sweep with `by="label"`; by default all that the prompts carry.
        window: layers patched jointly, starting at each; their joint effect stands beside the sum of the
            single ones (`algorithm` says which).
        together: patch all the sites of a layer in one intervention instead of one after the other.
        runs: both sides' unedited runs, kept from sweep to sweep of this model and task.

    Returns effects in the metric's unit; positive raises the metric. Raises UserError, before any forward
    pass, for pairs of unequal length patched by anything but a label.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> len(patch(model, task, sites="z", by="head").table())
    12
    """
    if direction not in ("denoise", "noise"):
        raise unknown("direction", direction, ["denoise", "noise"])
    sides = sides_by(model, task, by, metric, runs)
    if "label" not in parse_by(by):
        sides.task.require_aligned()
    base: Side = "corrupt" if direction == "denoise" else "clean"
    donor_side: Side = "clean" if direction == "denoise" else "corrupt"
    found = units(model.geometry, sides.task.prompts(base), sites, by, labels)
    about = {
        "method": "patch", "direction": direction, "granularity": by, "ablation": f"{donor_side} run",
        "algorithm": "single",
    }  # fmt: skip
    groups = _together(found) if together else [(u, [u]) for u in found]
    known, donor = sides.pair(base, [[u.address for u in many] for _, many in groups], options)
    members = {id(u): many for u, many in groups}

    def make(unit: Unit) -> list[edits.Edit]:
        return [patch_unit(u, donor) for u in members[id(unit)]]

    singles = run_units(
        sides, base, [u for u, _ in groups], make, about=about, options=options, seed=seed, progress=progress,
        known=known,
    )  # fmt: skip
    if window == 1:
        return singles
    joint = _windows(sides, base, [u for u, _ in groups], make, singles, window, options, seed, known)
    return stacked([singles, *joint])


def patch_unit(unit: Unit, donor: Run) -> edits.Edit:
    """The edit that takes one unit from a donor run."""
    return edits.patch(str(unit.address), donor, **unit.parts)


def _together(found: list[Unit]) -> list[tuple[Unit, list[Unit]]]:
    """Units that differ in their site only, as one; named after all the sites."""
    groups: dict[tuple[object, ...], list[Unit]] = {}
    for u in found:
        groups.setdefault(tuple(sorted((k, v) for k, v in u.key.items() if k != "site")), []).append(u)
    return [
        (Unit(many[0].address, many[0].parts, {**many[0].key, "site": "+".join(u.key["site"] for u in many)}), many)
        for many in groups.values()
    ]


def _windows(
    sides: Sides,
    base: Side,
    found: list[Unit],
    make: Callable[[Unit], list[edits.Edit]],
    singles: Effects,
    window: int,
    options: Options,
    seed: int,
    known: Base | None,
) -> list[Effects]:
    """Joint effect of `window` layers from each on, and beside it the sum of their single effects."""
    layers = sides.model.geometry.layers
    if not 1 <= window <= layers:
        raise UserError(f"window must be 1 to {layers} layers, got {window}")
    lines: dict[tuple[object, ...], dict[int, int]] = {}
    for i, u in enumerate(found):
        if u.address.layer is None:
            raise UserError(f"a window of layers needs sites inside the blocks, got {u.address}")
        key = tuple(sorted((k, v) for k, v in u.key.items() if k != "layer"))
        lines.setdefault(key, {})[u.address.layer] = i
    starts = [(line[s], [line[s + k] for k in range(window)]) for line in lines.values()
              for s in sorted(line) if all(s + k in line for k in range(window))]  # fmt: skip
    heads = [found[first] for first, _ in starts]
    rows = {id(u): members for u, (_, members) in zip(heads, starts, strict=True)}

    def jointly(unit: Unit) -> list[edits.Edit]:
        return [e for i in rows[id(unit)] for e in make(found[i])]

    about = {k: v for k, v in singles.about.items() if k in ("method", "direction", "granularity", "ablation")}
    joint = run_units(sides, base, heads, jointly, about=about, options=options, seed=seed, known=known)
    total = torch.stack([(singles.values[m] - singles.baseline).sum(0) for _, m in starts]) + singles.baseline
    name = f"window of {window}"
    return [
        _renamed(joint, joint.values, f"{name}: joint"),
        _renamed(joint, total, f"{name}: sum of singles"),
    ]


def _renamed(effects: Effects, values: torch.Tensor, algorithm: str) -> Effects:
    keys = tuple({**k, "algorithm": algorithm} for k in effects.keys)
    return Effects(
        keys, values, effects.baseline, effects.clean, effects.corrupt, effects.task, effects.about, effects.seed
    )
