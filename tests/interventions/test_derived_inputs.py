"""What a head or an MLP reads, set anew: nothing of the old value is left, not even its rounding."""

from __future__ import annotations

import pytest
import torch

from interp.hooks.edits import add, scale, zero
from interp.interventions.plan import Options, make_plan
from interp.interventions.reading import Reader
from interp.metrics import get_metric
from tests.interventions.drawn import model_of, tokens_task


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "gemma3"])
@pytest.mark.parametrize("site", ["q_input", "k_input"])
def test_queries_and_keys_of_0_stay_0_where_a_norm_would_enlarge_their_rounding(kind: str, site: str) -> None:
    model = model_of(kind)
    task = tokens_task([6] * 8, 2, "left", 0, False, False)
    reader = Reader(model.net, task, get_metric("logit_diff"), "clean")
    interventions = [[zero(f"L{layer}.{site}", pos=place)] for layer in range(3) for place in (0, 1, 3)]
    planned = make_plan(model, interventions, reader, Options()).run()
    plain = [model.run(task.clean, edits=e).logits for e in interventions]
    torch.testing.assert_close(planned, torch.stack([reader.of_logits(x) for x in plain]), atol=5e-6, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_an_edit_of_what_is_read_adds_to_one_of_the_norm_between(kind: str) -> None:
    model, tokens = model_of(kind), [[3, 1, 4, 1, 5]]
    more = torch.linspace(-1, 1, model.geometry.d_model)
    norm, own = scale("L1.ln1", 0.5), add("L1.q_input", more)
    plain, both, halved, moved = (
        model.run(tokens, edits=edits, capture=["L1.q"])["L1.q"] for edits in ([], [norm, own], [norm], [own])
    )
    torch.testing.assert_close(both - halved, moved - plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(halved, plain, atol=1e-3)
    assert not torch.allclose(both, halved, atol=1e-3)
