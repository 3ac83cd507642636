"""Both sides of a pair in one pass: what two runs give, and the same bits before the first difference."""

from __future__ import annotations

import pytest
import torch

from interp.hooks.sites import resolve_all
from interp.interventions import pair as pairs
from interp.interventions import sweep
from interp.interventions.base import base_run
from interp.interventions.pair import Pair, runs_together
from interp.interventions.patching import PatchDirection, patch
from interp.interventions.plan import Options, make_plan
from tests.interventions.pairs import random_task
from tests.tiny import tiny

SITES = ["z", "pattern", "resid_pre", "mlp_out"]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "neox"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_equals_two_runs(kind: str, side: str) -> None:
    model = tiny(kind)
    task = random_task(model, side=side)
    places = resolve_all(SITES, model.geometry)
    mine, theirs = Pair(model, task.corrupt, task.clean, places, places, model.net).sides()
    for got, prompts in ((mine, task.corrupt), (theirs, task.clean)):
        alone = base_run(model, prompts, places)
        assert set(got.run.acts) == set(alone.run.acts)
        for address, value in alone.run.acts.items():
            real = prompts.mask.view(*prompts.mask.shape, *(1,) * (value.ndim - 2))
            real = real.transpose(1, 2) if "pattern" in address else real
            torch.testing.assert_close(got.run[address] * real, value * real, rtol=1e-5, atol=1e-5)
    differ = task.clean.column("D")
    for row, column in enumerate(differ.tolist()):
        z, other = (one.run["L0.z"][row] for one in (mine, theirs))
        assert torch.equal(z[:column], other[:column])
        assert not torch.equal(z[column:], other[column:])


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


def test_a_plan_says_which_pass_carries_them() -> None:
    """Of neurons the values are asked first, and scores are no tokens side by side: there the sides run alone."""
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    for sites, by, along in (("z", "head", True), ("mlp_post", "neuron", False), ("scores", "head", False)):
        plan = patch(model, task, sites, by).plan
        assert plan is not None
        assert (plan.carrier is not None) == along
        assert plan.explain()["why"].str.contains("both sides' own runs go along").any() == along
        assert plan.base.pair is not None
        again = make_plan(model, plan.interventions, plan.reader, base=plan.base)
        assert again.carrier is None, "they have been run"


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
def test_no_pass_of_their_own(metric: str, direction: PatchDirection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Base run, donor and what a metric compares with are read in the pass of edits that they go along with."""
    model = tiny("gpt2")
    task = random_task(model, (8, 8))
    plain = patch(model, task, "z", "head", metric, direction=direction, options=Options(plain=True))
    monkeypatch.setattr(pairs, "run_blocks", None)
    monkeypatch.setattr(sweep, "base_run", None)
    replayed = patch(model, task, "z", "head", metric, direction=direction)
    for got, want in (
        (replayed.values, plain.values),
        (replayed.clean, plain.clean),
        (replayed.corrupt, plain.corrupt),
    ):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert replayed.plan is not None
    assert replayed.plan.explain()["why"].tolist() == ["both sides' own runs go along"]
