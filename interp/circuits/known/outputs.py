"""Metrics of whole outputs, for models whose truth is known: every position that means something, every output.

    output_change    root of the summed squared change of the outputs against the whole model's, per prompt
    output_overlap   inner product of the outputs with the whole model's, divided by the latter's with itself

The first is 0 for the whole model and sees any change, but has no gradient there; the second is 1 there and
linear in the outputs. Positions before `first_read` (the BOS token of compiled programs) do not count.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.metric_values import LogitsView, Metric
from interp.tasks.values import Task


def _pair(view: LogitsView, task: Task, reference: LogitsView | None) -> tuple[Tensor, Tensor]:
    """Outputs `[prompt, pos, out]` of the run and of the reference, 0 where a position does not count."""
    assert view.full is not None
    assert reference is not None
    assert reference.full is not None
    prompts = task.prompts(view.side)
    first = int(task.meta.get("first_read", 0))  # type: ignore[call-overload]
    read = prompts.mask & (prompts.positions >= first)
    if task.meta.get("read") == "answer":
        columns = torch.arange(prompts.width, device=read.device)
        read = read & (columns[None] == prompts.answer_columns[:, None])
    own = read[..., None].to(view.full.device)
    return torch.where(own, view.full, 0.0), torch.where(own, reference.full.detach(), 0.0)


def change(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """Size of the change of the outputs."""
    run, whole = _pair(view, task, reference)
    size: Tensor = torch.linalg.vector_norm((run - whole).flatten(1), dim=1)
    return size


def overlap(view: LogitsView, task: Task, reference: LogitsView | None = None) -> Float[Tensor, " prompt"]:
    """Overlap of the outputs with the whole model's."""
    run, whole = _pair(view, task, reference)
    return (run * whole).flatten(1).sum(1) / (whole * whole).flatten(1).sum(1).clamp(min=1e-12)


CHANGE = Metric(
    "output_change", change, "output units", "lower", loss_like=True, reads="all", needs_reference=True,
    differentiable=False, summary="Size of the change of the outputs.",
)  # fmt: skip
OVERLAP = Metric(
    "output_overlap", overlap, "fraction", "higher", loss_like=False, reads="all", needs_reference=True,
    summary="Overlap of the outputs with the whole model's.",
)  # fmt: skip
