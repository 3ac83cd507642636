"""Numerics: a NaN injected at any site is found there; statistics by hand; clipping, skipped steps, drift."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny import FURTHER, KINDS, tiny
from torch import Tensor, nn

from interp.hooks.prompts import Prompts
from interp.hooks.sites import resolve, sites_of
from interp.models.wrap import wrap
from interp.numerics.replay import birth, next_token_loss, replay, site_numbers
from interp.numerics.sites import numbers
from interp.numerics.watch import watch
from interp.registry import UserError

TOKENS = torch.randint(1, 50, (3, 6), generator=torch.Generator().manual_seed(0))


def poison(value: float) -> Any:
    """A function that puts one bad number where attention may read it."""

    def fn(x: Tensor, ctx: Any) -> Tensor:
        bad = x.clone()
        bad[(0,) + (0,) * (x.ndim - 1)] = value
        return bad

    return fn


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param("gpt2", math.nan, marks=pytest.mark.slow),
        ("native:attn_only", math.inf),
        pytest.param("llama", math.nan, marks=pytest.mark.slow),
        pytest.param("gemma2", math.nan, marks=pytest.mark.slow),
        pytest.param("native:bidirectional_post", math.inf, marks=pytest.mark.slow),
    ],
)
def test_injected_at_any_site_found_there_forward(kind: str, value: float) -> None:
    model = tiny(kind)
    prompts = Prompts.of(TOKENS)
    for site in sites_of(model.geometry):
        address = str(resolve(site.name, model.geometry)[-1])
        with model.hooks((address, poison(value))):
            found = birth(model, prompts)
        assert (found.found, found.address, found.direction) == (True, address, "forward"), site.name
        assert found.kind == ("nan" if math.isnan(value) else "inf")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["native:pre", "llama"])
def test_injected_at_any_site_found_there_backward(kind: str) -> None:
    """A gradient that turns NaN at a site: the forward pass is finite, and that site comes first in backward order."""
    model = tiny(kind)
    prompts = Prompts.of(TOKENS)
    for site in sites_of(model.geometry):
        address = str(resolve(site.name, model.geometry)[0])
        with model.hooks((address, lambda g, ctx: torch.full_like(g, math.nan), "backward")):
            found = birth(model, prompts)
        assert (found.address, found.direction, found.kind) == (address, "backward", "nan"), site.name


def test_a_bad_weight_in_a_training_loop() -> None:
    """A NaN in one head's W_V: the step is named, and the site is that layer's v, not the loss."""
    model = tiny("gpt2")
    seen = watch(model, every=2)
    for step in range(4):
        if step == 3:
            with torch.no_grad():
                model.module.transformer.h[1].attn.c_attn.weight[0, -1] = math.nan
        loss = model.module(TOKENS, labels=TOKENS).loss
        model.module.zero_grad()
        loss.backward()
        found = seen.step(TOKENS, loss=loss)
        assert (found is None) == (step < 3)
    assert (found.step, found.address, found.direction) == (3, "L1.v", "forward")
    assert {step for step, _ in seen.sites} == {0, 2}
    assert model.module.transformer.h[0].attn.c_attn.weight.grad is not None
    frame = seen.table()
    assert frame[frame["metric"] == "birth"][["step", "site", "layer"]].iloc[0].tolist() == [3, "v", 1]


def test_the_replay_is_the_step() -> None:
    """Gradients at sites are autograd's own, by the chain to a parameter: ∂loss/∂W_U = ln_finalᵀ · ∂loss/∂logits."""
    model = tiny("native:pre", unembed_bias=True)
    prompts = Prompts.of(TOKENS)
    run = replay(model, prompts)
    forward, backward = dict(run.forward), dict(run.backward)
    logits = model.module(TOKENS)
    loss = next_token_loss(logits, prompts).sum()
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    ours = torch.einsum("bpv,bpm->vm", backward["logits"], forward["ln_final"])
    torch.testing.assert_close(ours, model.module.unembed.weight.grad, rtol=1e-4, atol=1e-7)
    ours = torch.einsum("bpm,bpk->mk", backward["L0.mlp_out"], forward["L0.mlp_post"])
    torch.testing.assert_close(ours, model.module.layers[0].mlp.proj.weight.grad, rtol=1e-4, atol=1e-7)
    names = [a for a, _ in run.forward]
    assert names.index("L0.ln1") < names.index("L0.q") < names.index("L0.pattern") < names.index("L0.attn_out")
    back = [a for a, _ in run.backward]
    assert back.index("logits") < back.index("L1.mlp_out") < back.index("L0.attn_out")


def test_statistics_by_hand() -> None:
    found = numbers("L0.v", "forward", torch.tensor([[0.0, 3.0], [-4.0, 0.0]]))
    assert (found.low, found.high, found.largest, found.rms, found.zeros) == (-4.0, 3.0, 4.0, 2.5, 0.5)
    assert found.margin_fp16 == pytest.approx(math.log2(65504 / 4))
    assert found.margin_bf16 == pytest.approx(math.log2(3.3895313892515355e38 / 4))
    masked = numbers("L0.scores", "forward", torch.tensor([1.0, torch.finfo(torch.float32).min]))
    assert (masked.low, masked.largest) == (1.0, 1.0)
    half = numbers("L0.v", "forward", torch.tensor([1.5], dtype=torch.float16), torch.tensor([1.0]))
    assert half.drift == 0.5
    assert math.isinf(numbers("L0.v", "forward", torch.zeros(2)).margin_fp16)


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_every_site_of_every_family_has_numbers(kind: str) -> None:
    model = tiny(kind)
    found = site_numbers(model, Prompts.of(TOKENS))
    seen = {(n.address, n.direction) for n in found}
    for site in sites_of(model.geometry):
        for address in resolve(site.name, model.geometry):
            if not site.derived:
                assert (str(address), "forward") in seen
    assert all(n.nan == n.inf == 0 for n in found)
    assert ("logits", "backward") in seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_drift_in_half_precision(dtype: torch.dtype) -> None:
    found = site_numbers(tiny("gpt2"), Prompts.of(TOKENS), dtype=dtype, drift=True)
    by = {(n.address, n.direction): n for n in found}
    eps = torch.finfo(dtype).eps
    assert by["embed", "forward"].drift == 0
    assert 0.01 * eps < by["logits", "forward"].drift < 10 * eps  # type: ignore[operator]


def test_clipping_and_skipped_steps() -> None:
    """A GradScaler whose scale makes fp16 gradients overflow skips the step; the watch says so."""
    model = tiny("gpt2")
    seen = watch(model, every=100, dtype=torch.float16)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=1000)
    optimiser = torch.optim.SGD(model.module.parameters(), lr=1e-3)
    for _ in range(3):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model.module(TOKENS).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), TOKENS[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        norm = nn.utils.clip_grad_norm_(model.module.parameters(), 1.0)
        found = seen.step(TOKENS, loss=loss, grad_norm=norm, clipped=min(float(norm), 1.0), scaler=scaler)
        assert found is not None
        assert found.direction == "backward"
        scaler.step(optimiser)
        scaler.update()
    seen.close(scaler)
    assert [s.loss_scale for s in seen.steps] == [2.0**30, 2.0**29, 2.0**28]
    assert seen.skipped == 3


def test_watch_a_wrapped_stack_and_errors() -> None:
    stack = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
    )
    seen = watch(wrap(stack), loss=lambda out, prompts: out.square().sum((1, 2)))
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    assert seen.step(x, loss=1.0) is None
    assert any(n.address == "L1.pattern" and n.direction == "backward" for _, n in seen.sites)
    with pytest.raises(UserError, match="at least 1"):
        watch(tiny("gpt2"), every=0)
    with pytest.raises(UserError, match="Linear"):
        watch(nn.Linear(2, 2))
