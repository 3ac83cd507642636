"""Both sides of a pair, in one pass or one after the other: what two runs give, and the same bits before the first
difference."""

from __future__ import annotations

import pytest
import torch

from interp.hooks.prompts import Prompts
from interp.hooks.sites import resolve_all, sites_of
from interp.interventions import pair as pairs
from interp.interventions import sweep
from interp.interventions.base import base_run
from interp.interventions.pair import Pair, runs_together
from interp.interventions.patching import PatchDirection, patch
from interp.interventions.plan import Options
from interp.models import products
from interp.tasks.values import Task
from tests.interventions.pairs import random_task
from tests.tiny import tiny

SITES = ["z", "pattern", "resid_pre", "mlp_out"]


@pytest.fixture(params=["in one", "apart"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Each test with both sides in one pass, and with the donor from its first other column on; which that is."""
    if request.param == "in one":
        return 0
    monkeypatch.setattr(pairs, "AGAIN", (0, 0.0))
    return 3


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "neox", "gpt_neo"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("sites", [SITES, ["z", "q"], [*SITES, "head_out", "k_input", "ln_final"]])
def test_equals_two_runs(kind: str, side: str, sites: list[str], start: int) -> None:
    model = tiny(kind)
    task = random_task(model, side=side)
    places = resolve_all(sites, model.geometry)
    pair = Pair(model, task.corrupt, task.clean, places, places, model.net)
    assert pair.start == start
    assert pair.ends_early == (sites == ["z", "q"])
    mine, theirs = pair.sides()
    for got, prompts in ((mine, task.corrupt), (theirs, task.clean)):
        alone = base_run(model, prompts, places)
        assert set(got.run.acts) >= set(alone.run.acts)
        mask = prompts.mask[..., None]
        torch.testing.assert_close(got.final * mask, alone.final * mask, rtol=1e-5, atol=1e-5)
        for address, value in alone.run.acts.items():
            real = prompts.mask.view(*prompts.mask.shape, *(1,) * (value.ndim - 2))
            real = real.transpose(1, 2) if "pattern" in address else real
            torch.testing.assert_close(got.run[address] * real, value * real, rtol=1e-5, atol=1e-5)
    differ = task.clean.column("D")
    for row, column in enumerate(differ.tolist()):
        z, other = (one.run["L0.z"][row] for one in (mine, theirs))
        assert torch.equal(z[:column], other[:column])
        assert not torch.equal(z[column:], other[column:])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "native:none"])
@pytest.mark.parametrize("own_products", [True, False])
def test_what_is_kept_is_not_written_to(kind: str, own_products: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum in place may not land in memory that is kept: without a norm, ln2 is the residual itself."""
    if own_products:
        monkeypatch.setattr(products, "_operator", lambda: None)
    model = tiny(kind)
    task = random_task(model, (8, 8))
    for site in sites_of(model.geometry):
        places = resolve_all([site.name], model.geometry)
        if site.name.startswith("logits"):
            continue
        both = zip(
            Pair(model, task.corrupt, task.clean, places, places, model.net).sides(),
            (task.corrupt, task.clean),
            strict=True,
        )
        for got, prompts in both:
            alone = base_run(model, prompts, places)
            for address, value in alone.run.acts.items():
                torch.testing.assert_close(got.run[address], value, rtol=1e-5, atol=1e-5)


def test_sides_that_are_the_same(start: int) -> None:
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    task = Task.of("same", task.clean, task.clean, task.right, task.wrong)
    effects = patch(model, task, "z", "head", options=Options(exact=True))
    assert effects.plan is not None
    assert effects.plan.base.pair is not None
    assert effects.plan.base.pair.start == (7 if start else 0)
    assert len(effects.plan.idle) == len(effects.values)
    assert torch.equal(effects.clean, effects.corrupt)
    assert bool((effects.values == effects.clean).all())


def test_large_and_unlike_sides_run_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    task, other = random_task(model, (8, 8)), random_task(model, (8, 7))
    assert runs_together(task.clean, task.corrupt)
    assert not runs_together(task.clean, other.corrupt)
    together = patch(model, task, "z", "head")
    monkeypatch.setattr(pairs, "TOGETHER", 31)
    assert not runs_together(task.clean, task.corrupt)
    apart, plain = patch(model, task, "z", "head"), patch(model, task, "z", "head", options=Options(plain=True))
    for one in (together, apart):
        torch.testing.assert_close(one.values, plain.values, rtol=1e-5, atol=1e-5)
        assert one.plan is not None
        assert {first for p in one.plan.passes for first in p.firsts} == {3}


def test_windows_start_from_the_same_run() -> None:
    """Joint edits of several layers are replayed from the base run that the donor belongs to."""
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    replayed, plain = (
        patch(model, task, "z", "head", window=2, options=options) for options in (Options(), Options(plain=True))
    )
    torch.testing.assert_close(replayed.values, plain.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", ["logit_diff", "kl", "cross_entropy"])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("sites", ["z", "mlp_out"])
def test_each_side_is_run_once(
    sites: str, metric: str, direction: PatchDirection, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base run, donor, and what a metric reads of them or compares with, come from the same passes."""
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    plain = patch(model, task, sites, "layer", metric, direction=direction, options=Options(plain=True))
    walk, walks = Pair._walk, []

    def counted(pair: Pair, prompts: Prompts, first_column: int, first: int) -> tuple[torch.Tensor, ...]:
        walks.append((len(prompts), first_column))
        return walk(pair, prompts, first_column, first)

    monkeypatch.setattr(Pair, "_walk", counted)
    monkeypatch.setattr(sweep, "base_run", None)
    replayed = patch(model, task, sites, "layer", metric, direction=direction)
    for got, want in (
        (replayed.values, plain.values),
        (replayed.clean, plain.clean),
        (replayed.corrupt, plain.corrupt),
    ):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert walks == ([(2, 0), (2, start)] if start else [(4, 0)])
