"""Exact scores are minus the effects of path patching by edges, with losses negated, on every family."""

from __future__ import annotations

import pytest
import torch

from interp.attribution.methods import attribute
from interp.interventions.edges import edge_effects
from tests.attribution.small_tasks import small_task
from tests.tiny import tiny

KINDS = ["gpt2", "llama", "neox", "gemma2", "native:attn_only", "native:none"]


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("metric", "sign"), [("logit_diff", -1.0), ("kl", 1.0)])
def test_exact_edges_are_minus_the_effects_of_path_patching(
    kind: str, ungrouped: bool, metric: str, sign: float
) -> None:
    model, task = tiny(kind), small_task()
    scores = attribute(model, task, "exact", metric=metric, ungrouped=ungrouped)
    effects = edge_effects(model, task, None, metric, ungrouped=ungrouped)
    torch.testing.assert_close(scores.values, sign * (effects.values - effects.baseline), atol=1e-6, rtol=0)
    assert scores.mean.abs().max() > 1e-4
