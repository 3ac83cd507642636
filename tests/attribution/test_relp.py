"""RelP: values untouched, relevance conserved where nothing has a bias, equal to EAP where the rules are exact."""

from __future__ import annotations

import pytest
import torch

from interp.attribution.methods import attribute
from interp.attribution.relp import Rules
from interp.metrics import get_metric
from interp.models.forward import forward
from interp.models.grid import Grid
from interp.registry import UserError
from tests.attribution.test_eap import even_task, freeze_patterns
from tests.tiny import FURTHER, KINDS, tiny

NO_BIAS = [("llama", {}), ("gemma2", {"final_logit_softcapping": None})]


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_the_rules_leave_every_value_as_it_is(kind: str) -> None:
    model, task = tiny(kind), even_task()
    if model.geometry.experts:
        with pytest.raises(UserError, match="no rule for routed MLPs"):
            attribute(model, task, "relp")
        return
    want = model.run(task.clean).logits
    with torch.no_grad():
        got = forward(model.net, task.clean.tokens, Grid.of(model.net, task.clean, model.dtype), Rules(model.net))
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("kind", "over"), NO_BIAS)
def test_relevance_is_conserved(kind: str, over: dict[str, object]) -> None:
    # without biases the frozen model is homogeneous: what all sources give the logits is the metric itself
    model, task = tiny(kind, **over), even_task()
    metric = get_metric("logit_diff")(model.run(task.clean).logits, task)
    edges = attribute(model, task, "relp", ablation="zero")
    into_logits = torch.stack([edges.of(str(e)) for e in edges.edges if str(e.dst) == "logits"]).sum(0)
    torch.testing.assert_close(into_logits, metric, atol=1e-5, rtol=1e-4)
    nodes = attribute(model, task, "relp", "node", ablation="zero")
    torch.testing.assert_close(nodes.of("L0.resid_pre"), metric, atol=1e-5, rtol=1e-4)
    out_of_input = torch.stack([edges.of(str(e)) for e in edges.edges if e.src.kind == "input"]).sum(0)
    torch.testing.assert_close(out_of_input, metric, atol=1e-5, rtol=1e-4)
    plain = attribute(model, task, "atp", "node", ablation="zero").of("L0.resid_pre")
    assert not torch.allclose(plain, metric, atol=1e-2)


def test_queries_and_keys_get_no_relevance() -> None:
    scores = attribute(tiny("gpt2"), even_task(), "relp")
    parts = {part: torch.stack([scores.of(str(e)) for e in scores.edges if e.dst.part == part]) for part in "qkv"}
    assert bool((parts["q"] == 0).all())
    assert bool((parts["k"] == 0).all())
    assert bool((parts["v"].abs() > 1e-3).any())


def test_relu_without_norms_is_eap() -> None:
    # relu(x)/x is relu's derivative, and patterns depend on nothing
    model, task = freeze_patterns(tiny("native:none", act="relu")), even_task()
    got, want = (attribute(model, task, m).values for m in ("relp", "eap"))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    gelu = freeze_patterns(tiny("native:none"))
    got, want = (attribute(gelu, task, m).values for m in ("relp", "eap"))
    assert not torch.allclose(got, want, atol=1e-2)
