"""Agreement with exact patching: hand-made scores with known correlations, overlaps and signs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from interp.attribution.agreement import MEASURES, agree, groups_of
from interp.attribution.methods import attribute
from interp.attribution.scores import Scores
from interp.registry import UserError
from tests.attribution.test_eap import even_task, freeze_patterns
from tests.tiny import tiny


def made(values: torch.Tensor, signed: bool = True) -> Scores:
    """Scores of 110 edges with one number for all six prompts."""
    return replace(attribute(tiny("gpt2"), even_task()), values=values[:, None].expand(-1, 6), signed=signed)


def of(found: list[object], measure: str, kind: str = "all", layer: int | None = None) -> float:
    one = [a for a in found if (a.measure, a.group.kind, a.group.layer) == (measure, kind, layer)]  # type: ignore[attr-defined]
    assert len(one) == 1
    return one[0].value  # type: ignore[attr-defined,no-any-return]


def test_known_numbers() -> None:
    exact = made(torch.arange(110.0) + 1)
    same = agree(made(2 * torch.arange(110.0) + 7), exact, exact.resampling())
    assert [of(same, m) for m in MEASURES] == pytest.approx([1, 1, 1])
    reverse = agree(made(-torch.arange(110.0) - 1), exact, exact.resampling())
    assert [of(reverse, m) for m in MEASURES] == pytest.approx([-1, 1, 0])
    # the eleven largest of exact are edges 99 … 109; the estimate ranks 104 … 109 there and five others
    moved = torch.arange(110.0) + 1
    moved[99:104], moved[:5] = 0.5, 200.0
    assert of(agree(made(moved), exact, exact.resampling()), "overlap") == pytest.approx(6 / 11)
    unsigned = agree(made(torch.arange(110.0), signed=False), made(-torch.arange(110.0)), exact.resampling())
    assert of(unsigned, "pearson") == pytest.approx(1)
    assert np.isnan(of(unsigned, "signs"))
    assert {a.reason for a in unsigned if a.measure == "signs"} == {"the method's scores have no sign"}


def test_groups_cover_every_edge_once() -> None:
    scores = made(torch.arange(110.0))
    whole, *groups = groups_of(scores)
    assert len(whole.rows) == 110
    assert sorted(i for g in groups for i in g.rows) == list(range(110))
    sizes = {(g.kind, g.layer): len(g.rows) for g in groups}
    assert sizes == {
        ("q", 0): 4, ("k", 0): 4, ("v", 0): 4, ("mlp", 0): 5,
        ("q", 1): 24, ("k", 1): 24, ("v", 1): 24, ("mlp", 1): 10, ("logits", None): 11,
    }  # fmt: skip


def test_a_linear_model_agrees_fully() -> None:
    model, task = freeze_patterns(tiny("native:attn_only_none")), even_task()
    exact = attribute(model, task, "exact")
    found = agree(attribute(model, task, "eap"), exact, exact.resampling())
    assert of(found, "pearson") == pytest.approx(1, abs=1e-4)
    into_q = next(a for a in found if a.measure == "pearson" and a.group.kind == "q" and a.group.layer == 1)
    assert np.isnan(into_q.value)
    assert into_q.reason is not None


def test_other_rows_are_refused() -> None:
    model, task = tiny("llama"), even_task()
    exact = attribute(model, task, "exact", ungrouped=True)
    with pytest.raises(UserError, match="do not score the same rows"):
        agree(attribute(model, task, "eap"), exact, exact.resampling())
