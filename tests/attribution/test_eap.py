"""EAP and its integrals: equal to autograd with explicit copies on every family, and exact where that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.attribution.eap import ENDS, line
from interp.attribution.methods import attribute
from interp.graph import Graph
from interp.hooks.prompts import Prompts
from interp.metric_values import METRICS
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Task
from tests.attribution.edge_copies import long_way, source_values
from tests.attribution.small_tasks import small_task
from tests.tiny import KINDS, SUMMING_FURTHER, refuses_ungrouped, tiny

ADDITIVE = [k for k in KINDS if not (g := tiny(k).geometry).stream_norm and g.skip]
GROUPED = [k for k in ADDITIVE if tiny(k).geometry.group > 1]
CLEAN = [(0.0, 1.0)]


def sites_of(model: Model) -> list[str]:
    return ["L0.resid_pre", "z", *(["mlp_out"] if model.geometry.mlp else [])]


def corrupt(model: Model, task: Task) -> list[Tensor]:
    return source_values(model, model.run(task.corrupt, capture=sites_of(model)))


def close(got: Tensor, want: Tensor) -> None:
    assert bool(want.abs().max() > 1e-2), "nothing to compare"
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("kind", [*ADDITIVE, *SUMMING_FURTHER])
def test_every_edge_equals_autograd_with_copies(kind: str, ungrouped: bool) -> None:
    model, task = tiny(kind), small_task()
    if ungrouped and (model.geometry.group == 1 or refuses_ungrouped(model)):
        return
    got = attribute(model, task, "eap", ungrouped=ungrouped)
    assert got.edges == Graph(model.geometry, ungrouped).edges
    close(got.values, long_way(model, task, corrupt(model, task), CLEAN, ungrouped=ungrouped))


@pytest.mark.parametrize("kind", [*ADDITIVE, *SUMMING_FURTHER])
@pytest.mark.parametrize(
    ("method", "rule"), [("eap_ig_inputs", "midpoint"), ("eap_ig_inputs", "trapezoid"), ("clean_corrupt", "")]
)
def test_averaged_gradients_equal_autograd_with_copies(kind: str, method: str, rule: Any) -> None:
    model, task = tiny(kind), small_task("right")
    got = attribute(model, task, method, steps=3, rule=rule or "midpoint")
    places = line(3, rule) if rule else ENDS
    close(got.values, long_way(model, task, corrupt(model, task), places))
    assert got.about["algorithm"] == f"{rule}, 3 steps" if rule else "algorithm" not in got.about


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("metric", ["kl", "logprob", "cross_entropy"])
def test_other_metrics_and_answers_of_several_tokens(kind: str, metric: str) -> None:
    model, task = tiny(kind), small_task(single=metric == "cross_entropy")
    # at the clean run itself kl has no slope, so the gradient is taken half-way
    got = attribute(model, task, "eap_ig_inputs", metric=metric, steps=1)
    close(got.values, long_way(model, task, corrupt(model, task), [(0.5, 1.0)], metric))


def even_task() -> Task:
    """Six prompts of one length, so that every one has donors."""
    generator = torch.Generator().manual_seed(0)
    clean, other = (torch.randint(0, 50, (6, 5), generator=generator) for _ in range(2))
    from interp.tasks.answers import Answers

    right, wrong = (Answers.of([[[int(t)]] for t in torch.randint(0, 50, (6,), generator=generator)]) for _ in range(2))
    return Task.of("even", Prompts.of(clean), Prompts.of(other), right, wrong)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
@pytest.mark.parametrize("ablation", ["zero", "mean", "resample", "corrupt"])
def test_every_ablation(kind: str, ablation: str) -> None:
    from interp.hooks.edits import donors

    model, task = tiny(kind), even_task()
    base = source_values(model, model.run(task.clean, capture=sites_of(model)))
    other = corrupt(model, task)
    gone = {
        "zero": [torch.zeros_like(t) for t in base],
        "mean": [t.mean(0, keepdim=True).expand_as(t) for t in other],
        "resample": [t[donors(task.clean, 3)] for t in base],
        "corrupt": other,
    }[ablation]
    got = attribute(model, task, "eap", ablation=ablation, seed=3)
    close(got.values, long_way(model, task, gone, CLEAN))
    assert str(got.about["ablation"]).startswith(ablation)
    # the batch a prompt is in makes no difference
    torch.testing.assert_close(
        attribute(model, task, "eap", ablation=ablation, seed=3, batch_tokens=10).values, got.values
    )


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("method", ["eap", "eap_ig_inputs", "eap_ig_activations", "relp"])
def test_a_grouped_score_is_the_sum_over_its_group(kind: str, method: str) -> None:
    model, task = tiny(kind), small_task()
    whole, split = attribute(model, task, method), attribute(model, task, method, ungrouped=True)
    assert len(split) > len(whole)
    group = model.geometry.group
    for edge in whole.edges:
        if edge.dst.part in ("k", "v"):
            layer, kv = edge.dst.node.layer, edge.dst.node.head
            names = [f"{edge.src}->a{layer}.h{kv * group + i}<{edge.dst.part}>" for i in range(group)]
            total = torch.stack([split.of(n) for n in names]).sum(0)
        else:
            total = split.of(str(edge))
        torch.testing.assert_close(total, whole.of(str(edge)), atol=1e-5, rtol=1e-4)


def freeze_patterns(model: Model) -> Model:
    """W_Q = 0 and b_Q = 0: every token attends evenly, whatever it reads."""
    with torch.no_grad():
        for layer in model.module.layers:  # type: ignore[union-attr]
            layer.attn.q.weight.zero_()  # type: ignore[union-attr]
            layer.attn.q.bias.zero_()  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize("method", ["eap", "eap_ig_inputs", "eap_ig_activations", "clean_corrupt", "relp"])
def test_exact_on_a_linear_model(method: str) -> None:
    # attention only, no norms, patterns that depend on nothing, a metric linear in the logits
    model, task = freeze_patterns(tiny("native:attn_only_none")), even_task()
    got, want = attribute(model, task, method), attribute(model, task, "exact")
    close(got.values, want.values)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "gemma2", "native:none"])
def test_the_input_s_integrals_add_up_to_the_whole_change(kind: str) -> None:
    model, task = tiny(kind), small_task()
    got = attribute(model, task, "eap_ig_inputs", steps=100)
    total = sum(got.of(str(e)) for e in got.edges if e.src.kind == "input")
    gap = got.sides.value("clean") - got.sides.value("corrupt")
    torch.testing.assert_close(total, gap, atol=1e-3 * float(gap.abs().max()), rtol=1e-3)


def test_the_activation_integral_of_one_source_is_its_own_change() -> None:
    # the last source is read by the logits alone: its integral is the exact effect of that edge
    model, task = tiny("gpt2"), small_task()
    got, want = attribute(model, task, "eap_ig_activations", steps=30), attribute(model, task, "exact")
    torch.testing.assert_close(got.of("m1->logits"), want.of("m1->logits"), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_activation_integrals_do_not_depend_on_the_packing(kind: str) -> None:
    from interp.interventions.plan import Options

    model, task = tiny(kind), small_task()
    one, many = (attribute(model, task, "eap_ig_activations", steps=3, options=Options(pack=p)) for p in (1, None))
    torch.testing.assert_close(one.values, many.values, atol=1e-6, rtol=1e-5)
    one, many = (attribute(model, task, "eap_ig_inputs", steps=3, options=Options(pack=p)) for p in (1, None))
    torch.testing.assert_close(one.values, many.values, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", [*ADDITIVE, *SUMMING_FURTHER])
@pytest.mark.parametrize("method", ["eap", "eap_ig_inputs", "clean_corrupt", "relp", "exact"])
def test_a_prompt_against_itself_is_exactly_zero(kind: str, method: str) -> None:
    model, task = tiny(kind), small_task()
    if method == "relp" and model.geometry.experts:
        with pytest.raises(UserError, match="no rule for routed MLPs"):
            attribute(model, task, method)
        return
    ungrouped = not refuses_ungrouped(model)
    got = attribute(model, replace(task, corrupt=task.clean), method, ungrouped=ungrouped)
    assert bool((got.values == 0).all())


def test_train_mode_dropout_and_gradients_are_left_alone() -> None:
    model, task = tiny("gpt2", resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5), small_task()
    want = attribute(model, task, "eap").values
    model.module.train()
    frozen = next(model.module.parameters())
    frozen.requires_grad_(False)
    got = attribute(model, task, "eap").values
    assert torch.equal(got, want)
    assert all(m.training for m in model.module.modules())
    assert all(p.grad is None and p.requires_grad == (p is not frozen) for p in model.module.parameters())


def test_half_precision_is_close() -> None:
    model, task = tiny("llama"), small_task()
    want = attribute(model, task, "eap").values
    model.module.bfloat16()
    got = attribute(model, task, "eap").values
    assert got.dtype == torch.float32
    assert torch.corrcoef(torch.stack([got.flatten(), want.flatten()]))[0, 1] > 0.98


def test_loss_like_metrics_are_negated() -> None:
    # kl grows when anything is ablated; the integral of the last MLP's edge is that growth
    model, task = tiny("gpt2"), even_task()
    got, want = (attribute(model, task, m, metric="kl", steps=30) for m in ("eap_ig_activations", "exact"))
    assert bool((want.of("m1->logits") > 1e-2).all())
    torch.testing.assert_close(got.of("m1->logits"), want.of("m1->logits"), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "accuracy"}, "metric 'accuracy' has no gradient"),
        ({"method": "eapp"}, "unknown method 'eapp'; did you mean eap"),
        ({"method": "atp_star"}, "atp_star scores nodes only, not edges"),
        ({"granularity": "edges"}, "unknown granularity 'edges'; did you mean edge"),
        ({"rule": "simpson"}, "unknown rule"),
        ({"ablation": "means"}, "unknown ablation 'means'; did you mean mean"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"sites": ["z"]}, "need granularity=node"),
    ],
)
def test_bad_requests_are_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        attribute(tiny("gpt2"), small_task(), **settings)
    assert "\n" not in str(raised.value)


def test_a_metric_that_detaches_is_named() -> None:
    cut = replace(METRICS["logit_diff"], name="cut", fn=lambda view, task, ref: view.right.detach().sum(1))
    with pytest.raises(UserError, match="metric 'cut' has no gradient"):
        attribute(tiny("gpt2"), small_task(), metric=cut)


def test_unequal_lengths_and_models_without_a_sum_are_refused() -> None:
    task = small_task()
    short = replace(task, corrupt=Prompts.of([[1, 2], [3, 4, 5, 6], [7, 8]]))
    for method in ("eap", "exact", "eap_ig_inputs"):
        with pytest.raises(UserError, match="pair 0 of task 'small' has 6 clean and 2 corrupt tokens"):
            attribute(tiny("gpt2"), short, method)
    for kind in ("native:post", "native:no_skip"):
        with pytest.raises(UserError, match="edges need a residual stream that is a sum"):
            attribute(tiny(kind), task, "eap")
    # with the mean as ablation lengths may differ
    assert bool(attribute(tiny("gpt2"), short, "eap", ablation="mean", mean_by="all").values.isfinite().all())


def test_tables_carry_scores_and_intervals() -> None:
    scores = attribute(tiny("gpt2"), even_task(), "eap")
    frame = scores.table()
    assert len(frame) == 110
    row = frame[(frame.src == "a0.h1") & (frame.dst == "a1.h0<q>")].iloc[0]
    assert row.score == pytest.approx(float(scores.of("a0.h1->a1.h0<q>").mean()), abs=1e-6)
    assert row.ci_low <= row.score <= row.ci_high
    assert (row.n, row.method, row.granularity, row.ablation, row.unit) == (6, "eap", "edge", "corrupt", "logits")
    gap = row.clean - row.corrupt
    assert row.normalized == pytest.approx(row.score / gap, rel=1e-4)
