"""Path expansion: terms sum to the logits, losses telescope, and a bigram model's zero-layer term is its table."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import tiny

from interp.hooks.prompts import Prompts
from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.models.native import Native, NativeConfig
from interp.registry import UserError
from interp.weights.circuits import ov_circuits
from interp.weights.paths import by_order, path_expansion

PROMPTS = Prompts.of([[1, 2, 3, 4, 5], [7, 8, 9]], pad_side="left")


@pytest.mark.parametrize("kind", ["native:attn_only", "native:attn_only_none"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_terms_sum_to_the_logits(kind: str, layers: int) -> None:
    model = tiny(kind, layers=layers, heads=2)
    paths, orders = path_expansion(model, PROMPTS, "path"), path_expansion(model, PROMPTS)
    assert paths.gap < 1e-5
    assert orders.gap < 1e-5
    assert len(paths.terms) == 3**layers + 1
    assert list(orders.terms) == ["bias", *["one", "two", "three"][:layers], "zero"]
    for name, term in by_order(paths).items():
        torch.testing.assert_close(term[PROMPTS.mask], orders.terms[name][PROMPTS.mask], rtol=1e-4, atol=1e-5)


def test_losses_telescope_to_the_models_own() -> None:
    model = tiny("native:attn_only", unembed_bias=True)
    found = path_expansion(model, PROMPTS)
    losses = found.losses(["zero", "bias", "two", "one"])
    assert losses["start"].tolist() == pytest.approx([math.log(50)] * 2)
    log_p = model.run(PROMPTS).logits.log_softmax(-1)
    own = torch.stack([-log_p[0, range(4), [2, 3, 4, 5]].mean(), -log_p[1, range(2, 4), [8, 9]].mean()])
    torch.testing.assert_close(losses["one"], own, rtol=1e-5, atol=1e-5)
    steps = [losses[b] - losses[a] for a, b in zip(list(losses), list(losses)[1:], strict=False)]
    torch.testing.assert_close(losses["start"] + torch.stack(steps).sum(0), losses["one"])
    with pytest.raises(UserError, match="each term once"):
        found.losses(["zero", "one"])


def test_a_two_layer_path_is_the_virtual_head() -> None:
    """Without norms or biases, a path through two heads is pattern₁ · pattern₀ · x · W_OV¹ W_OV² · W_U."""
    model = tiny("native:attn_only_none", bias=False)
    tokens = torch.arange(1, 7)[None]
    found = path_expansion(model, Prompts.of(tokens), "path")
    run = model.run(tokens, capture=["pattern", "L0.resid_pre"])
    ov = ov_circuits(model)
    a0, a1 = run["L0.pattern"][0, 1], run["L1.pattern"][0, 3]
    written = a1 @ a0 @ run["L0.resid_pre"][0] @ (ov[0, 1] @ ov[1, 3]).dense()
    torch.testing.assert_close(
        found.terms["a0.h1>a1.h3"][0], written @ model.module.unembed.weight.T, rtol=1e-4, atol=1e-4
    )


def bigram_model(table: torch.Tensor) -> Model:
    """One layer, one head that writes nothing; token t is e_t and W_U is the table of log-probabilities."""
    v = len(table)
    config = NativeConfig(layers=1, heads=1, d_model=v, d_vocab=v, n_ctx=32, norm="none", positions="none", d_head=v)
    module = Native(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.embed.weight.copy_(torch.eye(v))
        module.unembed.weight.copy_(table.log().T)
    return Model(module.eval(), FAMILIES["native"], config, name="bigram")


def test_analytic_one_layer_bigram() -> None:
    """The zero-layer term is the log of the transition table, so its loss is the chain's mean surprise, by hand.

    A head that writes e_s for the attended tokens (uniform over the past, all weights 0 but value and output) then
    adds the mean of the past rows of the table: a one-layer term known in closed form.
    """
    table = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.25, 0.5, 0.25]])
    model = bigram_model(table)
    tokens = torch.tensor([[0, 1, 2, 1, 0, 0]])
    found = path_expansion(model, Prompts.of(tokens))
    surprise = -sum(math.log(float(table[a, b])) for a, b in [(0, 1), (1, 2), (2, 1), (1, 0), (0, 0)]) / 5
    assert float(found.losses(["bias", "zero", "one"])["zero"]) == pytest.approx(surprise, abs=1e-6)
    torch.testing.assert_close(found.terms["zero"][0].softmax(-1), table[tokens[0]])
    assert float(found.terms["one"].abs().max()) == 0
    with torch.no_grad():
        attn = model.module.layers[0].attn
        attn.v.weight.copy_(torch.eye(3))
        attn.o.weight.copy_(torch.eye(3))
    changed = path_expansion(model, Prompts.of(tokens))
    past = torch.stack([table.log()[tokens[0, : i + 1]].mean(0) for i in range(6)])
    torch.testing.assert_close(changed.terms["one"][0], past)
    torch.testing.assert_close(changed.terms["zero"], found.terms["zero"])


def test_errors() -> None:
    with pytest.raises(UserError, match="has MLPs"):
        path_expansion(tiny("gpt2"), PROMPTS)
    with pytest.raises(UserError, match="norms its residual stream"):
        path_expansion(tiny("native:attn_only_post"), PROMPTS)
    with pytest.raises(UserError, match="by 'order' or by 'path'"):
        path_expansion(tiny("native:attn_only"), PROMPTS, "head")
    with pytest.raises(UserError, match="15625 paths"):
        path_expansion(tiny("native:attn_only", layers=6), PROMPTS, "path")
