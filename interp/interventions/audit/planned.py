"""Replay on one model: an edit of every site in every layer, planned and packed, against a plain pass each.

Halved values at the last token, on two prompts of unequal length that share nothing; a difference of logits is read
at the end of each. What the planner skips, narrows or shares may differ by rounding only.
"""

from __future__ import annotations

import torch

from interp.hooks.edits import scale
from interp.hooks.prompts import Prompts
from interp.hooks.sites import resolve_all
from interp.interventions.audit.records import AuditRow, difference, size
from interp.interventions.plan import DEFAULT, make_plan
from interp.interventions.reading import Reader
from interp.interventions.replay import TOLERANCE
from interp.metrics import get_metric
from interp.models.model import Model
from interp.tasks.answers import Answers
from interp.tasks.values import Task

OUTSIDE = ("logits", "logits_pre_cap")
"""Read off by the metric, after everything that replay skips."""


def planned_row(model: Model, seed: int = 0) -> AuditRow:
    """Every site's edit planned against plain, summed up; by how much they may differ goes by the model's dtype."""
    allowed = TOLERANCE[model.dtype]
    addresses = [a for a in resolve_all(model.sites(), model.geometry) if a.site not in OUTSIDE]
    edits = [[scale(str(a), 0.5, pos=-1)] for a in addresses]
    task = _task(model, seed)
    reader = Reader(model.net, task, get_metric("logit_diff"), "clean")
    planned = make_plan(model, edits, reader, DEFAULT).run()
    plain = torch.stack([reader.of_logits(model.run(task.clean, edits=e).logits) for e in edits])
    share = difference(planned, plain) / (size(plain) or 1.0)
    moved = bool((plain - plain.mean(0)).abs().max() > 1e-4)
    return AuditRow(
        str(model.dtype).removeprefix("torch."), "replay", "logits", "planned = plain, an edit of every site", None, "",
        share <= allowed and moved, share, allowed, 1.0, len(edits), None if moved else "no edit moved the metric",
    )  # fmt: skip


def _task(model: Model, seed: int) -> Task:
    vocab, generator = model.geometry.d_vocab, torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in (7, 5)]
    other = [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in (7, 5)]
    right, wrong = (Answers.of([[[token]], [[token]]]) for token in (3, 7))
    return Task.of("audit", Prompts.of(rows), Prompts.of(other), right, wrong)
