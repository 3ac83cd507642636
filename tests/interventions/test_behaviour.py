"""Attention between labels against the pattern itself."""

from __future__ import annotations

import pytest
import torch

import tests.interventions.pairs as pairs
from interp.hooks import edits
from interp.interventions.behaviour import label_attention
from interp.interventions.sources import Recipe
from interp.registry import UserError
from tests.tiny import tiny


@pytest.mark.parametrize("side", ["left", "right"])
def test_attention_between_labels_is_read_off_the_pattern(side: str) -> None:
    model = tiny("llama")
    task = pairs.random_task(model, side=side)
    got = label_attention(model, task, [("END", "D")])
    pattern = model.run(task.clean, capture="pattern")
    for key, value in zip(got.keys, got.values, strict=True):
        for row in range(3):
            start = int(task.clean.starts[row])
            query, place = start + int(task.clean.labels["END"][row]), start + int(task.clean.labels["D"][row])
            assert value[row] == pattern[f"L{key['layer']}.pattern"][row, key["head"], query, place]


def test_ablation_changes_later_heads_only() -> None:
    model = tiny("gpt2")
    task = pairs.random_task(model)
    got = label_attention(model, task, [("END", "D")], ablate=["a0.h1"], recipe=Recipe("zero"))
    run = model.run(task.clean, edits=edits.zero("L0.z", head=1), capture="pattern")
    for key, value, before in zip(got.keys, got.values, got.baseline, strict=True):
        columns = task.clean.column("END"), task.clean.column("D")
        after = run[f"L{key['layer']}.pattern"][torch.arange(3), key["head"], *columns]
        assert torch.equal(value, after)
        assert torch.equal(value, before) == (key["layer"] == 0)


def test_refused() -> None:
    model = tiny("gpt2")
    with pytest.raises(UserError, match="unknown position label 'IO'"):
        label_attention(model, pairs.random_task(model), [("END", "IO")])
    with pytest.raises(UserError, match=r"no node a0\.h7"):
        label_attention(model, pairs.random_task(model), ablate=["a0.h7"])
