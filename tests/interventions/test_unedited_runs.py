"""Unedited runs kept from sweep to sweep: the same numbers, run once, and never those of another model or task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import interp
from interp.hooks.prompts import Prompts
from interp.interventions import pair as pairs
from interp.interventions import unedited
from interp.interventions.effects import Effects
from interp.interventions.plan import Options
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Answers, Task
from tests.interventions.pairs import random_task
from tests.tiny import tiny

SWEEPS: dict[str, dict[str, Any]] = {
    "heads": {"sites": "z", "by": "head"},
    "positions": {"sites": "resid_pre", "by": "position"},
    "another metric": {"sites": "z", "by": "head", "metric": "kl"},
    "the same again": {"sites": "z", "by": "head"},
    "by label": {"sites": ["attn_out", "mlp_out"], "by": "label"},
    "the other way": {"sites": "q", "by": "head", "direction": "noise"},
    "windows": {"sites": "mlp_out", "by": "layer", "window": 2},
    "neurons": {"sites": "L1.mlp_post", "by": "neuron"},
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "zero": {"ablation": "zero"}, "mean": {"ablation": "mean"}, "corrupt": {"ablation": "corrupt", "sites": "v"},
}  # fmt: skip


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every unedited pass."""
    ran: list[int] = []

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self_or_model: Any, prompts: Prompts, *given: Any, **named: Any) -> Any:
            ran.append(len(prompts))
            return original(self_or_model, prompts, *given, **named)

        return run

    monkeypatch.setattr(pairs.Pair, "_walk", counted(pairs.Pair._walk))
    monkeypatch.setattr(unedited, "base_run", counted(unedited.base_run))
    return ran


def same(got: Effects, want: Effects) -> None:
    """The metric of every row, and of both sides."""
    for name in ("values", "baseline", "clean", "corrupt"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert [dict(k) for k in got.keys] == [dict(k) for k in want.keys]


def unaligned(model: Model) -> Task:
    """Pairs whose sides differ in length: they are patched by label, and run one after the other."""
    short, long = random_task(model, (6, 7)), random_task(model, (8, 7))
    return Task.of("unaligned", short.clean, long.corrupt, short.right, short.wrong)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize("of", ["together", "padded", "apart"])
def test_sweeps_give_the_same(kind: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(kind)
    task = random_task(model, (9, 7, 8) if of == "padded" else (8, 8), side="left")
    if of == "apart":
        monkeypatch.setattr(pairs, "TOGETHER", 1)
    runs = interp.UneditedRuns(model, task)
    for how in SWEEPS.values():
        same(interp.patch(model, task, **how, runs=runs), interp.patch(model, task, **how, options=Options(plain=True)))
    for how in ABLATIONS.values():
        same(interp.ablate(model, task, **how, runs=runs), interp.ablate(model, task, **how))


def test_pairs_of_unequal_length() -> None:
    model = tiny("gpt2")
    task = unaligned(model)
    runs = interp.UneditedRuns(model, task)
    for sites in ("z", "resid_pre"):
        kept = interp.patch(model, task, sites, "label", runs=runs)
        same(kept, interp.patch(model, task, sites, "label", options=Options(plain=True)))
    with pytest.raises(UserError, match="equal lengths"):
        interp.patch(model, task, "z", "head", runs=runs)


def test_they_are_run_once(passes: list[int]) -> None:
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    runs = interp.UneditedRuns(model, task)
    first = interp.patch(model, task, "z", "head", runs=runs)
    assert first.plan is not None
    assert passes == [4], "both sides in one"
    for metric in ("logit_diff", "kl", "cross_entropy"):
        again = interp.patch(model, task, "z", "head", metric, runs=runs)
        assert again.plan is not None
        assert metric != "logit_diff" or again.plan.flops == first.plan.flops
    interp.patch(model, task, "L0.z", "head+position", runs=runs)
    assert passes == [4]
    interp.patch(model, task, ["z", "mlp_out"], "layer", runs=runs)
    assert passes == [4, 4], "another site: once more"
    for sites in ("z", "mlp_out"):
        interp.patch(model, task, sites, "layer", runs=runs)
    assert passes == [4, 4]
    for _ in range(2):
        interp.ablate(model, task, "mlp_out", "layer", ablation="zero", runs=runs)
    assert passes == [4, 4, 2], "the clean side alone, once"
    interp.ablate(model, task, "z", "head", ablation="corrupt", runs=interp.UneditedRuns(model, task))
    assert passes == [4, 4, 2, 4]


def test_large_sides_are_run_once(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "TOGETHER", 1)
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    runs = interp.UneditedRuns(model, task)
    for by in ("head", "head", "head+position"):
        interp.patch(model, task, "z", by, runs=runs)
    assert passes == [2, 2]
    for sites in ("mlp_out", "z", "mlp_out"):
        interp.patch(model, task, sites, "layer", runs=runs)
    assert passes == [2, 2, 2, 2]


def test_plain_passes_and_altered_models_do_without(passes: list[int]) -> None:
    """Their promises are of whole passes, to the bit: nothing that was computed otherwise is in them."""
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    runs = interp.UneditedRuns(model, task)
    interp.patch(model, task, "z", "head", runs=runs)
    for options in (Options(plain=True), Options(prefix=False, pack=1)):
        kept, fresh = (interp.patch(model, task, "z", "head", options=options, runs=r) for r in (runs, None))
        assert torch.equal(kept.values, fresh.values)
    with model.hooks(("L0.mlp_out", lambda x, ctx: 2 * x)):
        kept, fresh = (interp.patch(model, task, "z", "head", runs=r) for r in (runs, None))
        assert torch.equal(kept.values, fresh.values)
    unhooked = interp.patch(model, task, "z", "head", runs=runs)
    assert not torch.equal(unhooked.values, kept.values)


def test_others_are_refused() -> None:
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    runs = interp.UneditedRuns(model, task)
    interp.patch(model, task, "z", "head", runs=runs)
    with pytest.raises(UserError, match="another task"):
        interp.patch(model, random_task(model, (8, 8)), "z", "head", runs=runs)
    with pytest.raises(UserError, match="another model"):
        interp.ablate(tiny("gpt2"), task, "z", "head", runs=runs)


@pytest.mark.parametrize("what", ["weight", "dtype", "module", "stray hook"])
def test_a_changed_model_is_refused(what: str) -> None:
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    runs = interp.UneditedRuns(model, task)
    interp.patch(model, task, "z", "head", runs=runs)
    block = model.module.transformer.h[0]
    if what == "weight":
        with torch.no_grad():
            block.ln_1.weight.mul_(2.0)
    elif what == "dtype":
        model.module.double()
    elif what == "module":
        block.mlp.act = torch.nn.GELU()
    else:
        block.register_forward_hook(lambda *_: None)
    message = "carries a hook" if what == "stray hook" else "has been changed"
    with pytest.raises(UserError, match=message):
        interp.patch(model, task, "z", "head", runs=runs)


def test_answers_of_several_tokens() -> None:
    model = tiny("gpt2")
    prompts = [Prompts.of([[5, 6, last, 8], [9, 3, last, 2]]) for last in (7, 11)]
    task = Task.of("long", *prompts, Answers.of([[[1, 2]], [[3, 4]]]), Answers.of([[[5]], [[6, 7]]]))
    runs = interp.UneditedRuns(model, task)
    for by in ("head", "head", "position"):
        kept = interp.patch(model, task, "z" if by == "head" else "resid_mid", by, runs=runs)
        same(kept, interp.patch(model, task, "z" if by == "head" else "resid_mid", by, options=Options(plain=True)))
