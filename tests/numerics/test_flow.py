"""Flow: parts of the gradient against autograd with paths cut, norms and angles by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import tiny

from interp.hooks.prompts import Prompts
from interp.numerics.flow import PARTS, gradient_flow, residual_flow

PROMPTS = Prompts.of([[1, 2, 3, 4, 5], [7, 8, 9]])


@pytest.mark.parametrize(
    "kind",
    ["gpt2", "llama", "neox", "gemma2", "native:attn_only", "native:post", "native:attn_only_post", "native:no_skip"],
)
def test_parts_sum_and_shares_sum_to_one(kind: str) -> None:
    found = gradient_flow(tiny(kind), PROMPTS)
    assert found.gap < 1e-5
    total = sum(found.shares[p] for p in PARTS)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-4, atol=1e-4)  # type: ignore[arg-type]
    assert found.norm.shape == (2, 2)


@pytest.mark.parametrize("kind", ["native:pre", "native:post"])
def test_the_skip_part_is_autograd_with_the_sublayers_held(kind: str) -> None:
    """Holding attention's and the MLP's outputs of block 0 as constants leaves the skip path alone."""
    model = tiny(kind)
    block = model.module.layers[0]
    run = model.run(PROMPTS, capture=["L0.resid_pre", "L0.attn_out", "L0.mlp_out"],
                    grads=["L0.resid_post", "L0.resid_pre"],
                    metric=lambda logits: logits[:, :3, 5].sum(1))  # fmt: skip
    x = run["L0.resid_pre"].clone().requires_grad_(True)
    post1, post2 = (getattr(block, n, torch.nn.Identity()) for n in ("post1", "post2"))
    out = post2(post1(x + run["L0.attn_out"]) + run["L0.mlp_out"])
    out.backward(run.grads["L0.resid_post"])
    found = gradient_flow(model, PROMPTS, lambda logits, prompts: logits[:, :3, 5].sum(1))
    torch.testing.assert_close(found.parts["skip"][:, 0], x.grad.flatten(1).norm(dim=1), rtol=1e-4, atol=1e-6)
    total = run.grads["L0.resid_pre"]
    share = (x.grad * total).sum((1, 2)) / total.square().sum((1, 2))
    torch.testing.assert_close(found.shares["skip"][:, 0], share, rtol=1e-4, atol=1e-5)


def test_parallel_attention_part_is_that_of_attention_alone() -> None:
    model = tiny("neox")
    found = gradient_flow(model, PROMPTS)
    with model.hooks(("mlp_out", lambda x, ctx: x.detach())):
        held = gradient_flow(model, PROMPTS)
    # with MLPs held in the last block only its attention and skip parts remain, and they are unchanged
    torch.testing.assert_close(held.parts["attn"][:, 1], found.parts["attn"][:, 1], rtol=1e-4, atol=1e-6)
    assert float(held.parts["mlp"][:, 1].max()) < 1e-5


def test_without_skip_paths_everything_comes_through_attention() -> None:
    found = gradient_flow(tiny("native:no_skip"), PROMPTS)
    assert float(found.parts["skip"].abs().max()) == 0
    torch.testing.assert_close(found.shares["attn"], torch.ones_like(found.shares["attn"]))


def test_residual_norms_and_angles() -> None:
    """Heads and MLPs off leave the residual as it is; an update at right angles of equal size turns it by 45°."""
    model = tiny("native:attn_only_none")
    with torch.no_grad():
        for block in model.module.layers:
            block.attn.o.weight.zero_()
            block.attn.o.bias.zero_()
        model.module.pos_embed.weight.zero_()
        model.module.embed.weight.zero_()
        model.module.embed.weight[:, 0] = 3.0
        model.module.layers[1].attn.o.bias[1] = 3.0
    found = residual_flow(model, PROMPTS)
    torch.testing.assert_close(found.norm, torch.full((2, 2), 3.0, dtype=torch.float64))
    torch.testing.assert_close(found.attn_norm, torch.tensor([[0.0, 3.0]] * 2, dtype=torch.float64))
    torch.testing.assert_close(found.angle, torch.tensor([[0.0, 45.0]] * 2, dtype=torch.float64), atol=1e-5, rtol=0)
    assert math.isclose(float(found.mlp_norm.abs().max()), 0.0)
