"""Our side of a sweep: `interp.patch`, base and donor runs, planning, replay and reading included."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.benchmark.shapes import Case
    from interp.interventions.effects import Effects
    from interp.interventions.unedited import UneditedRuns

SWEEPS = {"head": ("z", "head"), "residual": ("resid_pre", "position")}


def sweep(case: Case, kind: str, runs: UneditedRuns | None = None) -> Effects:
    """All heads' z, or the residual by layer and position, clean into corrupt; from kept `runs` where given."""
    from interp.interventions.patching import patch

    site, by = SWEEPS[kind]
    return patch(case.model, case.task, site, by, runs=runs)


def indices(effects: Effects) -> list[tuple[int, int]]:
    """(layer, head or position) of each row."""
    other = "head" if "head" in effects.keys[0] else "pos"
    return [(int(k["layer"]), int(k[other])) for k in effects.keys]
