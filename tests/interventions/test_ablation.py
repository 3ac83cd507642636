"""`ablate` against one plain run per row: zero, mean, resample, corrupt."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interp.hooks import edits
from interp.hooks.prompts import Prompts
from interp.interventions.ablation import ablate
from interp.interventions.plan import Options
from interp.metrics import get_metric
from interp.registry import UserError
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.interventions.tables import by_hand, m_task, pairs
from tests.tiny import FURTHER, tiny


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return float((got - want).abs().max()) <= 1e-5 * float(want.std())


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "gemma2", "native:attn_only_none"])
def test_zeroed_heads_equal_plain_runs(kind: str) -> None:
    model, task = tiny(kind), pairs(4)
    effects = ablate(model, task, "z", "head", ablation="zero")
    want = by_hand(
        model, task, "clean", effects.keys, lambda k: [edits.zero(f"L{k['layer']}.z", head=k["head"])]
    )  # fmt: skip
    assert _close(effects.values, want)
    assert set(effects.table()["ablation"]) == {"zero"}


@pytest.mark.parametrize("mean_by", ["all", "position"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
def test_mean_ablation_equals_holding_an_average_taken_by_hand(kind: str, mean_by: Any) -> None:
    model, task = tiny(kind), pairs(4)
    effects = ablate(model, task, "mlp_out", "layer", ablation="mean", mean_by=mean_by)
    donor = model.run(task.corrupt, capture=["mlp_out"])

    def make(key: Any) -> list[edits.Edit]:
        value = donor[f"L{key['layer']}.mlp_out"].double()
        mean = (value.mean((0, 1)) if mean_by == "all" else value.mean(0)).float()
        return [edits.hold(f"L{key['layer']}.mlp_out", mean.expand(4, 6, -1))]

    assert _close(effects.values, by_hand(model, task, "clean", effects.keys, make))
    assert set(effects.table()["ablation"]) == {f"mean over corrupt by {mean_by}"}


def test_mean_prefers_the_set_the_task_names_and_its_templates() -> None:
    model, task = tiny("gpt2"), pairs(4, template=torch.tensor([0, 0, 1, 1]))
    abc = Prompts.of(torch.randint(1, 50, (6, 6), generator=torch.Generator().manual_seed(9)),
                     template=torch.tensor([0, 1, 0, 1, 0, 1]))  # fmt: skip
    named = Task.of("named", task.clean, task.corrupt, task.right, task.wrong, means_on=abc, meta={"means_on": "ABC"})
    effects = ablate(model, named, "L1.attn_out", "layer", ablation="mean")
    value = model.run(abc, capture=["L1.attn_out"])["L1.attn_out"]
    by_template = torch.stack([value[0::2].mean(0), value[1::2].mean(0)])
    held = [edits.hold("L1.attn_out", by_template[torch.tensor([0, 0, 1, 1])])]
    assert _close(effects.values, by_hand(model, named, "clean", effects.keys, lambda _: held))
    assert set(effects.table()["ablation"]) == {"mean over ABC by template"}
    assert set(ablate(model, task, "L1.attn_out", "layer").table()["ablation"]) == {"mean over corrupt by template"}
    assert set(ablate(model, pairs(4), "L1.z").table()["ablation"]) == {"mean over corrupt by position"}
    with pytest.raises(UserError, match="names no prompts to average over"):
        ablate(model, task, "z", over="task")


def test_resample_takes_another_prompts_value_and_never_its_own() -> None:
    """Fault 30."""
    model, task = tiny("gpt2"), pairs(6)
    effects = ablate(model, task, "attn_out", "layer", ablation="resample", seed=3)
    donor = model.run(task.clean, capture=["attn_out"])
    rows = edits.donors(task.clean, 3)
    assert bool((rows != torch.arange(6)).all())
    want = by_hand(
        model, task, "clean", effects.keys,
        lambda k: [edits.hold(f"L{k['layer']}.attn_out", donor[f"L{k['layer']}.attn_out"][rows])],
    )  # fmt: skip
    assert _close(effects.values, want)
    assert not torch.allclose(
        effects.values, ablate(model, task, "attn_out", "layer", ablation="resample", seed=4).values
    )
    with pytest.raises(UserError, match="prompt 0 has no donor"):
        ablate(model, m_task(3), "z", ablation="resample")


def test_corrupt_ablation_is_patching_with_noise() -> None:
    from interp.interventions.patching import patch

    model, task = tiny("llama"), pairs(4, first=2)
    ablated = ablate(model, task, "z", "head", ablation="corrupt")
    assert torch.equal(ablated.values, patch(model, task, "z", "head", direction="noise").values)


def test_one_head_of_a_layer() -> None:
    """Fault 12: the other heads' z keep their bits, and the score is not the whole layer's."""
    model, task = tiny("gpt2"), m_task(2)
    clean = model.run(task.clean, capture=["L1.z"])
    edited = model.run(task.clean, edits=[edits.zero("L1.z", head=2)], capture=["L1.z"])
    others = [0, 1, 3]
    assert torch.equal(edited["L1.z"][:, :, others], clean["L1.z"][:, :, others])
    assert bool((edited["L1.z"][:, :, 2] == 0).all())
    heads = ablate(model, task, "L1.z", "head", ablation="zero")
    layer = ablate(model, task, "L1.z", "layer", ablation="zero")
    assert abs(float(heads.mean[2] - layer.mean[0])) > 1e-3


@pytest.mark.parametrize("ablation", ["zero", "mean", "corrupt"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", *FURTHER])
@pytest.mark.parametrize("pad_side", ["left", "right"])
def test_batched_lengths_give_the_rows_of_one_by_one(kind: str, pad_side: str, ablation: Any) -> None:
    """Fault 5, for every ablation. The mean is over both prompts in either case: it is the task's own set."""
    model = tiny(kind)
    rows = [([1, 2, 3, 4], [7, 8, 9, 10]), ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])]
    means_on = Prompts.of([c for _, c in rows], pad_side="right")

    def task(chosen: list[tuple[list[int], list[int]]]) -> Task:
        clean, corrupt = (Prompts.of([pair[i] for pair in chosen], pad_side=pad_side) for i in (0, 1))
        n = len(chosen)
        return Task.of("t", clean, corrupt, Answers.of([[[3]]] * n), Answers.of([[[7]]] * n), means_on=means_on)

    together = ablate(model, task(rows), "z", "head", ablation=ablation)
    for i, one in enumerate(rows):
        alone = ablate(model, task([one]), "z", "head", ablation=ablation)
        # one prompt has no spread; where its sides agree too, what is left is the rounding of logits of their size
        own = float((alone.clean - alone.corrupt).abs().max()), float(alone.values.abs().max()) / 8
        scale = max(*own, float(alone.values.std()))
        assert float((together.values[:, i] - alone.values[:, 0]).abs().max()) <= 1e-5 * scale


def test_neurons_and_positions_are_swept_and_planned_exactly() -> None:
    model, task = tiny("gpt2"), pairs(3)
    neurons = ablate(model, task, "L1.mlp_post", "neuron", ablation="zero")
    assert [k["neuron"] for k in neurons.keys] == list(range(model.geometry.d_mlp))
    plain = ablate(model, task, "L1.mlp_post", "neuron", ablation="zero", options=Options(plain=True))
    assert float((neurons.values - plain.values).abs().max()) <= 1e-5 * float(plain.clean.std())
    both = ablate(model, task, "L0.z", "head+position", ablation="zero", metric="kl")
    want = torch.stack([
        get_metric("kl")(model.run(task.clean, edits=[edits.zero("L0.z", head=k["head"], pos=k["pos"])]).logits, task,
                         "clean", model.run(task.clean).logits)
        for k in both.keys
    ])  # fmt: skip
    assert len(both.keys) == 4 * 6
    assert torch.allclose(both.values, want, atol=1e-5)


def test_baseline_and_values_are_of_the_model_with_the_users_functions() -> None:
    """A function on the model holds in every run of the sweep, edited or not."""
    model, task = tiny("gpt2"), pairs(4)
    without = ablate(model, task, "z", "head", ablation="zero")
    with model.hooks(("L0.mlp_out", lambda x, ctx: x * 0.5)):
        within = ablate(model, task, "z", "head", ablation="zero")
        want = get_metric("logit_diff")(model.run(task.clean).logits, task, "clean")
        rows = by_hand(
            model, task, "clean", within.keys, lambda k: [edits.zero(f"L{k['layer']}.z", head=k["head"])]
        )  # fmt: skip
    assert torch.equal(within.baseline, want)
    assert torch.equal(within.values, rows)
    assert not torch.allclose(within.baseline, without.baseline, atol=1e-3)
    assert within.plan is not None
    assert set(within.plan.explain()["why"]) == {"functions of the user are on the model"}


def test_unknown_kind_names_what_exists() -> None:
    from interp.interventions.ablation import means_prompts

    with pytest.raises(UserError, match="unknown prompts to average over 'all'"):
        means_prompts(m_task(2), "all")
