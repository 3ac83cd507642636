"""`site_audit`: the whole contract of the sites, tried on any model.

Random prompts (unpadded, and left-padded with rows of unequal length) are run again and again, with one site
edited or patched at a time, and each clause of the contract becomes rows: no-op edits change no bit, cuts
carry everything, row swaps are exact, values agree with their definitions, random edits do exactly what an
independent re-computation says and nothing else, lacking sites raise, padding never leaks, and the logits are
the checkpoint's own. Cost: about ten runs per site, layer and setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from interp.interventions.audit import rules
from interp.interventions.audit.bench import SETTINGS, Bench, benches
from interp.interventions.audit.gradients import gradients
from interp.interventions.audit.random_edits import random_edits
from interp.interventions.audit.records import Audit, AuditRow
from interp.models.model import Model

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Allowed difference by dtype, as a share of the size of the numbers compared, where bits may differ.

Checkpoints' own norms and softmax work in float32 even where the model is float64."""

Rule = Callable[[Bench], None]
EVERYWHERE: tuple[Rule, ...] = (
    rules.no_op, rules.masked, rules.checkpoint_logits, rules.cuts, rules.closures, rules.row_swap,
    rules.values_agree, random_edits, gradients,
)  # fmt: skip
ONCE: tuple[Rule, ...] = (rules.lacking, rules.padding)
"""Rules that bring their own prompts, or none: tried under the first setting only."""


def site_audit(
    model: Model,
    *,
    seed: int = 0,
    rows: int = 3,
    length: int = 7,
    tolerance: float | None = None,
    settings: Sequence[str] = SETTINGS,
) -> Audit:
    """Try every clause of the contract on every site of `model`; `audit.passed` says whether all held.

    Args:
        seed: of the prompts and of the random edits.
        rows, length: size of the batch, at least 3 × 4; shortened to the model's positions.
        tolerance: allowed difference as a share of the numbers compared, where bits may differ; by dtype if
            not given. Clauses that promise equal bits allow 0 whatever this says.
        settings: of `unpadded`, `left-padded`, `right-padded`.

    Raises UserError where the sizes are too small to tell anything.
    """
    relative = TOLERANCE[model.dtype] if tolerance is None else tolerance
    found: list[AuditRow] = []
    for i, bench in enumerate(benches(model, seed, rows, length, relative, tuple(settings))):
        for rule in (*EVERYWHERE, *(ONCE if i == 0 else ())):
            rule(bench)
        found += bench.out.rows
    return Audit(model.name, model.family.name, tuple(found))


__all__ = ["TOLERANCE", "Audit", "AuditRow", "site_audit"]
