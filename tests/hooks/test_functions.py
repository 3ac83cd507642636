"""A researcher's own functions on sites, forwards and backwards, and gradients at edited sites."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from interp.hooks.context import EditContext
from interp.hooks.edits import add, patch, scale, zero
from interp.models.model import Model
from interp.registry import UserError
from tests.tiny import tiny
from tests.unchecked import unchecked

TOKENS = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 3] - logits[:, -1, 7]


def finite(model: Model, address: str, index: tuple[int, ...], edits: list[object], step: float = 1e-4) -> float:
    """∂(summed metric)/∂(one number of a site), by central differences in float64."""

    def at(size: float) -> float:
        def bump(x: Tensor, ctx: EditContext) -> Tensor:
            x[index] += size
            return x

        with model.hooks((address, bump)):
            return float(metric(model.run(TOKENS, edits=edits).logits).sum())  # type: ignore[arg-type]

    return (at(step) - at(-step)) / (2 * step)


def test_functions_act_in_every_run_inside_and_none_outside() -> None:
    model = tiny("gpt2")
    before = model.run(TOKENS).logits
    with model.hooks(("L0.z", lambda x, ctx: x * 0)) as same:
        assert same is model
        inside = model.run(TOKENS).logits
        with model.hooks(("L1.z", lambda x, ctx: x * 0)):
            both = model.run(TOKENS).logits
        assert torch.equal(model.run(TOKENS).logits, inside)
    assert torch.equal(inside, model.run(TOKENS, edits=[zero("L0.z")]).logits)
    assert torch.equal(both, model.run(TOKENS, edits=[zero("z")]).logits)
    assert torch.equal(model.run(TOKENS).logits, before)


def test_a_function_sees_where_it_is() -> None:
    model, seen = tiny("llama"), []

    def look(x: Tensor, ctx: EditContext) -> None:
        seen.append((str(ctx.address), ctx.site.axes, tuple(x.shape), len(ctx.prompts), ctx.geometry.kv_heads))

    with model.hooks(("v", look)):
        model.run(TOKENS)
    axes = ("batch", "pos", "kv_head", "d_head")
    assert seen == [(f"L{i}.v", axes, (2, 6, 2, 8), 2, 2) for i in range(2)]


def test_a_function_of_another_shape_is_refused() -> None:
    model = tiny("gpt2")
    with model.hooks(("L0.z", lambda x, ctx: x[:1])), pytest.raises(UserError, match=r"returned \(1, 6, 4, 8\)"):
        model.run(TOKENS)
    sideways = ("L0.z", lambda x, ctx: x, "sideways")
    with unchecked(), pytest.raises(UserError, match="direction is 'forward' or 'backward', got 'sideways'"):
        model.hooks(sideways).__enter__()  # type: ignore[arg-type]


def test_backward_functions_see_and_change_gradients() -> None:
    model, seen = tiny("gpt2"), {}

    def look(grad: Tensor, ctx: EditContext) -> None:
        seen[str(ctx.address)] = grad.clone()

    with model.hooks(("z", look, "backward")):
        run = model.run(TOKENS, metric=metric, grads=["z", "embed"])
    for address, grad in seen.items():
        assert torch.equal(grad, run.grads[address])
    assert set(seen) == {"L0.z", "L1.z"}
    with model.hooks(("L0.resid_mid", lambda g, ctx: g * 2, "backward")):
        twice = model.run(TOKENS, metric=metric, grads=["embed"])
    assert torch.allclose(twice.grads["embed"], 2 * run.grads["embed"], rtol=1e-5, atol=1e-6)
    assert torch.equal(twice.logits, run.logits)


@pytest.mark.parametrize("site", ["pos_embed", "L0.q_input", "L0.mlp_in", "L1.head_out", "L1.ln1_scale"])
def test_backward_functions_fire_at_every_kind_of_site(site: str) -> None:
    model, seen = tiny("gpt2"), []
    model.module.requires_grad_(False)
    with model.hooks((site, lambda g, ctx: seen.append(g.clone()), "backward")):
        model.run(TOKENS, metric=metric)
    want = model.run(TOKENS, metric=metric, grads=[site]).grads[site]
    assert len(seen) == 1
    assert torch.allclose(seen[0], want, atol=1e-6)


def test_backward_functions_need_a_metric() -> None:
    model = tiny("gpt2")
    with model.hooks(("z", lambda g, ctx: g, "backward")), pytest.raises(UserError, match="gradients need a metric"):
        model.run(TOKENS)


@pytest.mark.parametrize("where", ["L1.z", "L1.head_out", "L0.mlp_in", "L1.q_input", "L1.ln1_scale", "L0.resid_mid"])
@pytest.mark.parametrize("edited", ["L0.head_out", "L1.q_input", "L0.mlp_in", "L1.ln1_scale", "L0.scores", "L1.z"])
def test_gradients_in_edited_runs_are_those_of_the_edited_run(where: str, edited: str) -> None:
    """An edit is part of the function that is differentiated."""
    model = tiny("gpt2")
    model.module.double()
    edits = [scale(edited, 1.7)]
    run = model.run(TOKENS, edits=edits, metric=metric, grads=[where, "embed"])
    for address in (where, "embed"):
        flat = run.grads[address].abs().flatten().argmax()
        index = tuple(int(i) for i in torch.unravel_index(flat, run.grads[address].shape))
        slope = finite(model, address, index, list(edits)) if address == "embed" or where != edited else None
        if slope is not None:
            assert float(run.grads[address][index]) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_gradients_at_a_patched_site_are_taken_there() -> None:
    model = tiny("llama")
    donor = model.run([[21, 22, 23, 24, 25, 26], [27, 28, 29, 30, 31, 32]], capture=["L1.resid_pre"])
    run = model.run(TOKENS, edits=[patch("L1.resid_pre", donor)], metric=metric, grads=["L1.resid_pre", "embed"])
    theirs = model.run(donor.prompts, metric=metric, grads=["L1.resid_pre"])
    assert torch.equal(run.grads["L1.resid_pre"], theirs.grads["L1.resid_pre"])
    assert bool((run.grads["embed"] == 0).all())  # the patch cut all that came before


def test_gradients_come_with_their_metric() -> None:
    model = tiny("gpt2")
    run = model.run(TOKENS, metric=metric, grads="L1.z", capture="L0.z")
    assert torch.equal(run.metric, metric(run.logits))  # type: ignore[arg-type]
    assert list(run.acts) == ["L0.z"]
    assert list(run.grads) == ["L1.z"]
    with pytest.raises(UserError, match="gradients need a metric"):
        model.run(TOKENS, grads="z")


def test_prompts_do_not_share_gradients() -> None:
    model = tiny("gpt2")
    both = model.run(TOKENS, metric=metric, grads="embed").grads["embed"]
    for i in range(2):
        one = model.run([TOKENS[i]], metric=metric, grads="embed").grads["embed"]
        assert torch.allclose(both[i], one[0], atol=1e-5)


def test_generate_keeps_the_edits_in_force() -> None:
    model = tiny("llama")
    vector = 30 * model.module.lm_head.weight[17].detach()  # type: ignore[union-attr,index]
    new = model.generate([[1, 2, 3], [4, 5]], 3, edits=[add("ln_final", vector)])
    assert new == [[17, 17, 17], [17, 17, 17]]
    plain = model.generate([[1, 2, 3], [4, 5]], 3)
    row = [1, 2, 3]
    for token in plain[0]:
        assert token == int(model.run([row]).logits[0, -1].argmax())
        row.append(token)
    assert model.generate([[4, 5]], 3) == plain[1:]
    drawn = [model.generate([[1, 2, 3]], 5, temperature=2.0, seed=s) for s in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
