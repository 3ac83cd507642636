"""The logit lens: the last depth is the model, other depths are a model cut short, places, bad input."""

from __future__ import annotations

import math

import pytest
import torch

from interp.attribution.direct import direct_logit_attribution
from interp.attribution.lens import logit_lens
from interp.hooks.edits import zero
from interp.hooks.prompts import Prompts
from interp.metrics import get_metric
from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.attribution.small_tasks import ROWS, hand_model, small_task
from tests.tiny import FURTHER, KINDS, tiny


def test_numbers_done_by_hand() -> None:
    """Tokens 2, 1 read at the second: x = (1, 1.1) unembeds to (1.125, 1.1, 2.1), the last layer to the model's."""
    module = hand_model()
    model = Model(module, FAMILIES["native"], module.config, name="hand")
    prompts = Prompts.of([[2, 1]])
    task = Task.of("hand", prompts, prompts, Answers.of([[[0]]]), Answers.of([[[1], [2]]]))
    lens = logit_lens(model, task)
    assert lens.of("logit_diff")[0].item() == pytest.approx(1.125 - 1.6)
    assert lens.of("rank")[0].item() == 1
    total = math.exp(1.125) + math.exp(1.1) + math.exp(2.1)
    assert lens.of("prob")[0].item() == pytest.approx(math.exp(1.125) / total, abs=1e-6)
    # x + (1.05, 2) + b_O = (2.05, 3.35): logits (2.175, 3.35, 5.4)
    assert lens.of("logit_diff")[1].item() == pytest.approx(2.175 - 4.375, abs=1e-5)
    assert lens.of("rank")[1].item() == 2


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_the_last_depth_is_the_model_itself(kind: str) -> None:
    model = tiny(kind)
    for pad_side in ("left", "right"):
        task = small_task(pad_side)
        lens = logit_lens(model, task, metrics=["logit_diff", "rank", "accuracy", "kl"])
        logits = model.run(task.clean).logits
        want = get_metric("logit_diff")(logits, task)
        torch.testing.assert_close(lens.of("logit_diff")[-1], want, atol=1e-5, rtol=1e-5)
        assert torch.equal(lens.of("rank")[-1], get_metric("rank")(logits, task))
        assert torch.equal(lens.of("accuracy")[-1], get_metric("accuracy")(logits, task))
        assert lens.of("kl")[-1].abs().max() < 1e-6
        assert (lens.of("kl")[0] > 1e-6).all()
        assert lens.values.shape == (4, 3, 1, 3)


def test_an_earlier_depth_is_the_model_with_later_blocks_writing_nothing() -> None:
    model, task = tiny("gpt2"), small_task()
    lens = logit_lens(model, task)
    for depth in range(2):
        gone = [zero(f"L{i}.{site}") for i in range(depth, 2) for site in ("attn_out", "mlp_out")]
        logits = model.run(task.clean, edits=gone).logits
        want = get_metric("logit_diff")(logits, task)
        torch.testing.assert_close(lens.of("logit_diff")[depth], want, atol=1e-5, rtol=1e-5)
        want = get_metric("logprob")(logits, task).exp()
        torch.testing.assert_close(lens.of("prob")[depth], want, atol=1e-6, rtol=1e-5)


def test_sums_of_terms_meet_the_lens_at_the_last_depth_only() -> None:
    model, task = tiny("gpt2"), small_task()
    lens = logit_lens(model, task).of("logit_diff")
    dla = direct_logit_attribution(model, task, granularity="components")
    constant = dla["final_norm_bias"]
    summed = [dla["embed"] + dla["pos_embed"] + constant]
    for layer in range(2):
        names = ("attn_out", "attn_bias", "mlp_out", "mlp_bias")
        summed.append(summed[-1] + sum(dla[f"L{layer}.{name}"] for name in names))
    assert (summed[0] - lens[0]).abs().max() > 1e-2
    torch.testing.assert_close(summed[-1], lens[-1], atol=1e-4, rtol=1e-4)


def test_places() -> None:
    model, task = tiny("llama"), small_task()
    every = logit_lens(model, task, positions="all")
    assert every.places == (0, 1, 2, 3, 4, 5)
    assert every.of("rank", 4).isnan().tolist() == [[False, True, False]] * 3
    some = logit_lens(model, task, positions=["answer", "A", -1, 2])
    assert some.of("prob", "A").isnan().tolist() == [[False, False, True]] * 3
    torch.testing.assert_close(some.of("prob", "answer"), some.of("prob", -1))
    torch.testing.assert_close(some.of("logit_diff", 2), every.of("logit_diff", 2), atol=1e-5, rtol=1e-5)
    cut = Prompts.of([row[:3] for row in ROWS])
    short = logit_lens(model, Task.of("cut", cut, cut, task.right, task.wrong))
    torch.testing.assert_close(some.of("logit_diff", 2), short.of("logit_diff"), atol=1e-5, rtol=1e-5)
    one_by_one = logit_lens(model, task, positions=["answer", "A", -1, 2], batch_size=1)
    torch.testing.assert_close(some.values, one_by_one.values, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_the_table_is_a_curve_per_metric_and_place() -> None:
    model, task = tiny("gpt2"), small_task()
    lens = logit_lens(model, task, positions=["answer", "A"])
    frame = lens.table()
    assert len(frame) == 3 * 3 * 2
    row = frame[(frame["metric"] == "rank") & (frame["x"] == 1) & (frame["series"] == "A")].iloc[0]
    assert (row["layer"], row["site"], row["n"], row["unit"]) == (0, "resid_post", 2, "rank")
    assert row["value"] == pytest.approx(lens.of("rank", "A")[1][:2].mean().item())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["cross_entropy"]}, "every position"),
        ({"metrics": ["rnak"]}, "rank"),
        ({"positions": ["C"]}, "C"),
        ({"positions": [9]}, "outside every prompt"),
        ({"positions": ["A", "A"]}, "once"),
        ({"positions": []}, "at least one"),
    ],
)
def test_bad_input(options: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        logit_lens(tiny("gpt2"), small_task(), **options)  # type: ignore[arg-type]


def test_answers_of_several_tokens_raise() -> None:
    with pytest.raises(UserError, match="up to 2 tokens"):
        logit_lens(tiny("gpt2"), small_task(single=False))
