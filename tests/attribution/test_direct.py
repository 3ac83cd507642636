"""Direct logit attribution: numbers done by hand, sums on every family, faults 9, 10 and 11, bad input."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from interp.attribution.direct import DirectAttribution, direct_logit_attribution
from interp.hooks.edits import add, zero
from interp.hooks.prompts import Prompts
from interp.metrics import get_metric
from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.models.weights import unembedding
from interp.registry import UserError
from interp.results.schemas import ATTRIBUTION
from interp.results.store import Cell
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.attribution.small_tasks import ROWS, hand_model, small_task
from tests.tiny import FIRST, NATIVE_KINDS, SUMMING_FURTHER, tiny

NATIVE = [f"native:{v}" for v, c in NATIVE_KINDS.items() if c.get("norm") != "post" and v != "no_skip"]
SUMMING = [*FIRST, *NATIVE, *SUMMING_FURTHER]


def hand(rows: list[list[int]], **over: object) -> tuple[Model, Task]:
    module = hand_model(**over)
    prompts = Prompts.of(rows)
    n = len(rows)
    task = Task.of("hand", prompts, prompts, Answers.of([[[0]]] * n), Answers.of([[[1]]] * n))
    return Model(module, FAMILIES["native"], module.config, name="hand"), task


def test_numbers_done_by_hand() -> None:
    """Tokens 2, 1 read at position 1: u = (1, 0) − (0, 1) = (1, −1).

    embed (1, 1)·u = 0; position (0, 0.1)·u = −0.1; values: (2, 1) + (0.5, 0) and (1, 1.1) + (0.5, 0), each
    weighted ½: z = (2, 1.05), swapped (1.05, 2)·u = −0.95; b_O (0, 0.25)·u = −0.25; b_U 0.125.
    """
    model, task = hand([[2, 1]])
    got = direct_logit_attribution(model, task)
    assert got.labels == ["embed", "pos_embed", "L0.H0", "L0.attn_bias", "unembed_bias"]
    assert got.terms[0].tolist() == pytest.approx([0, -0.1, -0.95, -0.25, 0.125], abs=1e-6)
    assert got.logit_diff.item() == pytest.approx(-1.175, abs=1e-6)
    split = direct_logit_attribution(model, task, by_source="position")
    # ½ (1, 2.5)·u and ½ (1.1, 1.5)·u: W_O swapped
    assert split["L0.H0<-0"].item() == pytest.approx(-0.75, abs=1e-6)
    assert split["L0.H0<-1"].item() == pytest.approx(-0.2, abs=1e-6)


def test_centring_and_gain_done_by_hand() -> None:
    """With a LayerNorm before the unembedding, gain (2, 3), bias (1, 5), no attention (W_V = 0).

    r = (1, 1.1) + (0, 0.25) = (1, 1.35), centred (−0.175, 0.175), s = √(0.175² + eps); u = (1, −1).
    u ⊙ gain = (2, −3), centred (2.5, −2.5): embed (1, 1) has term 0, and so would any constant vector.
    """
    model, task = hand([[2, 1]], final_norm=True)
    with torch.no_grad():
        model.module.layers[0].attn.v.weight.zero_()
        model.module.layers[0].attn.v.bias.zero_()
        model.module.final.weight.copy_(torch.tensor([2.0, 3]))
        model.module.final.bias.copy_(torch.tensor([1.0, 5]))
    s = (0.175**2 + 1e-5) ** 0.5
    got = direct_logit_attribution(model, task)
    assert got["embed"].item() == pytest.approx(0, abs=1e-6)
    assert got["pos_embed"].item() == pytest.approx(-0.25 / s, abs=1e-5)
    assert got["L0.attn_bias"].item() == pytest.approx(-0.625 / s, abs=1e-5)
    assert got["final_norm_bias"].item() == pytest.approx(-4)


@pytest.mark.parametrize("kind", SUMMING)
def test_terms_sum_to_the_logit_difference(kind: str) -> None:
    model = tiny(kind)
    for pad_side in ("left", "right"):
        task = small_task(pad_side)
        want = get_metric("logit_diff")(model.run(task.clean).logits, task)
        for granularity in ("components", "heads", "neurons")[: 3 if "mlp_post" in model.sites() else 2]:
            got = direct_logit_attribution(model, task, granularity=granularity)
            assert got.gap < 1e-5
            torch.testing.assert_close(got.capped, want, atol=1e-5, rtol=1e-5)
        heads = direct_logit_attribution(model, task)
        split = direct_logit_attribution(model, task, by_source="position")
        assert split.gap < 1e-5
        for layer, head in ((0, 0), (1, 3)):
            summed = sum(split[f"L{layer}.H{head}<-{p}"].nan_to_num() for p in range(6))
            torch.testing.assert_close(summed, heads[f"L{layer}.H{head}"], atol=1e-5, rtol=1e-4)


def test_a_model_without_mlps_has_no_neurons() -> None:
    with pytest.raises(UserError, match="no MLPs"):
        direct_logit_attribution(tiny("native:attn_only"), small_task(), granularity="neurons")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "neox"])
def test_terms_equal_an_independent_computation(kind: str) -> None:
    """Each head's output at full width, added alone to the frozen norm, read through the whole unembedding."""
    model, task = tiny(kind), small_task()
    got = direct_logit_attribution(model, task)
    net = model.net
    run = model.run(task.clean, capture=["head_out", "ln_final_scale", "attn_out_pre"] if kind == "gemma2" else
                    ["head_out", "ln_final_scale"])  # fmt: skip
    w_u, _ = unembedding(net)
    for row in range(3):
        c = int(task.clean.answer_columns[row])
        for layer in range(2):
            for head in range(4):
                out = run[f"L{layer}.head_out"][row, c, head]
                if kind == "gemma2":
                    post = net.layers[layer].post1
                    out = out / post.denominator(run[f"L{layer}.attn_out_pre"][row, c]) * (1 + post.module.weight)  # type: ignore[union-attr]
                if kind in ("gpt2", "neox"):
                    out = out - out.mean()
                gain = net.final.module.weight + (1 if kind == "gemma2" else 0)  # type: ignore[union-attr,operator]
                logits = (out / run["ln_final_scale"][row, c] * gain) @ w_u
                right = logits[task.right.first[row][task.right.present[row]]].mean()
                wrong = logits[task.wrong.first[row][task.wrong.present[row]]].mean()
                assert got[f"L{layer}.H{head}"][row].item() == pytest.approx((right - wrong).item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_fault_9_the_final_norm_of_the_last_residual_unembeds_to_the_logits(kind: str) -> None:
    model, task = tiny(kind), small_task("right")
    net = model.net
    run = model.run(task.clean, capture="L-1.resid_post")
    w_u, b_u = unembedding(net)
    torch.testing.assert_close(net.final(run["L-1.resid_post"]) @ w_u + b_u, run.logits, atol=1e-5, rtol=1e-5)


def test_fault_10_bias_rows_are_explicit_and_the_value_bias_is_counted_once() -> None:
    model, task = tiny("gpt2"), small_task()
    before = direct_logit_attribution(model, task)
    assert {"L0.attn_bias", "L0.mlp_bias", "L1.attn_bias", "L1.mlp_bias", "final_norm_bias"} <= set(before.labels)
    run = model.run(task.clean, capture=["head_out", "attn_out", "L1.z"])
    weights = model.weights(1)
    torch.testing.assert_close(run["L1.head_out"].sum(2) + weights.b_O, run["L1.attn_out"], atol=1e-5, rtol=1e-5)
    delta = torch.linspace(-1, 1, 32).view(4, 8)
    with torch.no_grad():
        model.module.transformer.h[1].attn.c_attn.bias[64:] += delta.flatten()
    after = model.run(task.clean, capture=["attn_out"])
    moved = (after["L1.attn_out"] - run["L1.attn_out"])[task.clean.mask]
    want = torch.einsum("hd,hdm->m", delta, weights.W_O).expand_as(moved)
    torch.testing.assert_close(moved, want, atol=1e-5, rtol=1e-4)
    got = direct_logit_attribution(model, task)
    assert got.gap < 1e-5
    assert len(got.labels) == len(before.labels)  # the value bias has no row: the heads carry it


@pytest.mark.parametrize("cap", [30.0, 1.0])
def test_fault_11_a_soft_cap_comes_after_the_sum(cap: float) -> None:
    model, task = tiny("gemma2", final_logit_softcapping=cap), small_task()
    got = direct_logit_attribution(model, task)
    run = model.run(task.clean, capture="logits_pre_cap")
    at = run["logits_pre_cap"][torch.arange(3), task.clean.answer_columns]
    torch.testing.assert_close(cap * torch.tanh(at / cap), run.logits[torch.arange(3), task.clean.answer_columns])
    assert got.total[0].item() == pytest.approx((at[0, 3] - at[0, 7]).item(), abs=1e-4)
    capped = get_metric("logit_diff")(run.logits, task)
    torch.testing.assert_close(got.capped, capped)
    assert (got.total - capped).abs().max() > (0.05 if cap == 1 else 1e-4)


def test_a_prompt_s_terms_do_not_depend_on_its_batch_or_padding() -> None:
    model = tiny("llama")
    whole = direct_logit_attribution(model, small_task("left")).terms
    for other in (
        direct_logit_attribution(model, small_task("right")).terms,
        direct_logit_attribution(model, small_task("left"), batch_size=1).terms,
        torch.cat([direct_logit_attribution(model, small_task().rows([i])).terms for i in range(3)]),
    ):
        torch.testing.assert_close(whole, other, atol=1e-5, rtol=1e-5)


def test_splitting_by_label_and_reading_at_a_label() -> None:
    model, task = tiny("gpt2"), small_task()
    heads = direct_logit_attribution(model, task)
    by_pos = direct_logit_attribution(model, task, by_source="position")
    by_label = direct_logit_attribution(model, task, by_source="label")
    assert by_label["L1.H2<-A"].isnan().tolist() == [False, False, True]
    for row, (a, b) in enumerate([(2, 4), (0, 1), (None, 3)]):
        if a is not None:
            assert by_label["L1.H2<-A"][row].item() == pytest.approx(by_pos[f"L1.H2<-{a}"][row].item(), abs=1e-6)
        assert by_label["L1.H2<-B"][row].item() == pytest.approx(by_pos[f"L1.H2<-{b}"][row].item(), abs=1e-6)
    total = sum(by_label[f"L1.H2<-{s}"].nan_to_num() for s in ("A", "B", "other"))
    torch.testing.assert_close(total, heads["L1.H2"], atol=1e-5, rtol=1e-5)
    assert by_pos["L0.H0<-5"].isnan().tolist() == [False, True, True]  # rows of 6, 4 and 5 tokens

    at_b = direct_logit_attribution(model, task, position="B")
    short = Prompts.of([row[: i + 1] for row, i in zip(ROWS, (4, 1, 3), strict=True)])
    cut = Task.of("cut", short, short, task.right, task.wrong)
    torch.testing.assert_close(at_b.terms, direct_logit_attribution(model, cut).terms, atol=1e-5, rtol=1e-5)
    at_a = direct_logit_attribution(model, task, position="A")
    assert at_a.terms.isnan().all(1).tolist() == [False, False, True]
    assert at_a.position == "A"


def test_neurons_the_rest_is_folded_and_the_sum_stays() -> None:
    model, task = tiny("llama"), small_task()
    full = direct_logit_attribution(model, task, granularity="neurons")
    assert sum(c.neuron is not None for c in full.components) == 128
    few = full.top(5)
    chosen = {c.label for c in few.components if c.neuron is not None}
    size = {c.label: full[c.label].abs().mean().item() for c in full.components if c.neuron is not None}
    assert chosen == set(sorted(size, key=size.__getitem__, reverse=True)[:5])
    torch.testing.assert_close(few.total, full.total, atol=1e-5, rtol=1e-5)
    whole = direct_logit_attribution(model, task)
    layer = [c.label for c in full.components if c.neuron is not None and c.layer == 1]
    torch.testing.assert_close(sum(full[name] for name in layer), whole["L1.mlp_out"], atol=1e-5, rtol=1e-4)


def test_a_term_predicts_the_edit_that_removes_it_without_a_norm() -> None:
    """No norm, last layer: taking a head's output away moves the logit difference by exactly its term."""
    model, task = tiny("native:attn_only_none"), small_task()
    got = direct_logit_attribution(model, task)
    base = get_metric("logit_diff")(model.run(task.clean).logits, task)
    for head in range(4):
        without = model.run(task.clean, edits=zero("L1.z", head=head)).logits
        moved = base - get_metric("logit_diff")(without, task)
        torch.testing.assert_close(moved, got[f"L1.H{head}"], atol=1e-5, rtol=1e-4)


def test_terms_of_an_edited_run() -> None:
    model, task = tiny("gpt2"), small_task()
    gone = direct_logit_attribution(model, task, edits=zero("L1.z", head=2))
    assert gone["L1.H2"].abs().max().item() == 0
    assert gone["edits"].abs().max().item() < 1e-4
    pushed = direct_logit_attribution(model, task, edits=add("L1.resid_post", torch.ones(32).cumsum(0)))
    want = get_metric("logit_diff")(
        model.run(task.clean, edits=add("L1.resid_post", torch.ones(32).cumsum(0))).logits, task
    )
    torch.testing.assert_close(pushed.total, want, atol=1e-4, rtol=1e-4)
    assert pushed["edits"].abs().min().item() > 1e-3


def test_half_precision_sums_within_its_rounding() -> None:
    model = tiny("gpt2")
    model.module.to(torch.bfloat16)
    got = direct_logit_attribution(model, small_task())
    assert got.terms.dtype == torch.float32
    assert got.gap < 0.1


def test_the_table_has_a_row_for_every_component_with_its_interval() -> None:
    model, task = tiny("gpt2"), small_task()
    got = direct_logit_attribution(model, task)
    frame = got.table()
    assert list(frame.columns) == ATTRIBUTION.names
    row = frame[(frame["site"] == "head_out") & (frame["layer"] == 1) & (frame["head"] == 3)].iloc[0]
    assert row["score"] == pytest.approx(got["L1.H3"].mean().item(), abs=1e-6)
    assert row["n"] == 3
    assert row["reason"] == "n = 3 < 5"  # no interval from three prompts
    assert len(frame) == len(got)
    assert got.by_head(2, 4)[1, 3].item() == pytest.approx(row["score"], abs=1e-6)


def test_a_saved_attribution_reads_back(tmp_path: Path) -> None:
    got = direct_logit_attribution(tiny("gpt2"), small_task())
    cell = Cell(got.save(tmp_path))
    pd.testing.assert_frame_equal(cell.table(), got.table())
    assert cell.run()["reproducible"] is False


def test_an_unknown_writer_is_noticed() -> None:
    model, task = tiny("gpt2"), small_task()
    with (
        model.hooks(("L0.resid_post", lambda x, ctx: x + torch.arange(32.0))),
        pytest.raises(UserError, match="do not sum"),
    ):
        direct_logit_attribution(model, task)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("native:post", {}, "norms the residual stream itself"),
        ("native:no_skip", {}, "no skip paths"),
        ("gpt2", {"granularity": "head"}, "heads"),
        ("gpt2", {"by_source": "labels"}, "label"),
        ("gpt2", {"granularity": "components", "by_source": "label"}, "heads' terms"),
        ("gpt2", {"position": "C"}, "C"),
        ("gpt2", {"by_source": "label", "labels": ["X"]}, "X"),
    ],
)
def test_bad_input(kind: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        direct_logit_attribution(tiny(kind), small_task(), **options)  # type: ignore[arg-type]


def test_answers_of_several_tokens_and_missing_wrong_answers_raise() -> None:
    model = tiny("gpt2")
    with pytest.raises(UserError, match="up to 2 tokens"):
        direct_logit_attribution(model, small_task(single=False))
    prompts = Prompts.of([[1, 2, 3]])
    none = Task.of("t", prompts, prompts, Answers.of([[[1]]]), Answers.of([[]]))
    with pytest.raises(UserError, match="no wrong answer"):
        direct_logit_attribution(model, none)


def test_two_labels_on_one_token_cannot_be_split() -> None:
    labels = {"A": torch.tensor([1]), "B": torch.tensor([1])}
    prompts = Prompts.of([[1, 2, 3]], labels=labels)
    task = Task.of("t", prompts, prompts, Answers.of([[[1]]]), Answers.of([[[2]]]))
    with pytest.raises(UserError, match="same token of prompt 0"):
        direct_logit_attribution(tiny("gpt2"), task, by_source="label")
    one = direct_logit_attribution(tiny("gpt2"), task, by_source="label", labels=["A"])
    assert isinstance(one, DirectAttribution)
