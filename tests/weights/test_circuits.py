"""QK and OV circuits against their definitions, on every packing; full circuits; top entries; rotary offsets."""

from __future__ import annotations

import pytest
import torch
from tiny import HF_KINDS, tiny

from interp.models.weights import embedding, unembedding
from interp.registry import UserError
from interp.weights.circuits import full_circuit, ov_circuits, qk_circuits
from interp.weights.factored import Factored


def test_grouped_queries_without_and_with_the_gain() -> None:
    """Llama, 4 heads on 2 kv heads: W_Q[h]·W_K[h//2]ᵀ and W_V[h//2]·W_O[h], then diag(g) on the reading sides."""
    model = tiny("llama")
    qk, ov = qk_circuits(model, fold_norm=False), ov_circuits(model, fold_norm=False)
    folded_qk, folded_ov = qk_circuits(model), ov_circuits(model)
    assert qk.shape == ov.shape == (2, 4, 32, 32)
    for layer, block in enumerate(model.module.model.layers):
        a, g = block.self_attn, torch.diag(block.input_layernorm.weight)
        for h in range(4):
            q = a.q_proj.weight[h * 8 : h * 8 + 8].T
            k, v = (m.weight[h // 2 * 8 : h // 2 * 8 + 8].T for m in (a.k_proj, a.v_proj))
            o = a.o_proj.weight[:, h * 8 : h * 8 + 8].T
            torch.testing.assert_close(qk[layer, h].dense(), q @ k.T)
            torch.testing.assert_close(ov[layer, h].dense(), v @ o)
            torch.testing.assert_close(folded_qk[layer, h].dense(), g @ q @ k.T @ g)
            torch.testing.assert_close(folded_ov[layer, h].dense(), g @ v @ o)


# where queries and keys are normed or scores capped, they are no bilinear form
BILINEAR = [k for k in HF_KINDS if not tiny(k).geometry.qk_norm and k != "gemma2"]


@pytest.mark.parametrize("kind", [*BILINEAR, "native:rotary", "native:attn_only"])
@pytest.mark.parametrize("delta", [0, 3])
def test_the_bilinear_form_gives_the_scores(kind: str, delta: int) -> None:
    """Scores captured at (i, i − Δ), with the biases off, are scale · x_i W_QK x_jᵀ for the normed residual x."""
    model = tiny(kind)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    if delta and not model.geometry.rotary:
        with pytest.raises(UserError, match="no rotary positions"):
            qk_circuits(model, delta=delta)
        delta_used = 0
    else:
        delta_used = delta
    run = model.run(torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(1)), capture=["ln1", "scores"])
    circuits = qk_circuits(model, fold_norm=False, delta=delta_used)
    for layer in range(2):
        x, scale = run[f"L{layer}.ln1"], model.net.layers[layer].scale
        for i in range(delta, 7):
            for head in range(4):
                predicted = scale * (x[:, i] @ circuits[layer, head].dense() * x[:, i - delta]).sum(-1)
                if model.family.alibi:
                    predicted = predicted + 2.0 ** (-2 * (head + 1)) * (i - delta)
                torch.testing.assert_close(
                    predicted, run[f"L{layer}.scores"][:, head, i, i - delta], rtol=1e-4, atol=1e-4
                )


def test_the_gain_and_the_centring_are_the_norm_up_to_its_denominator() -> None:
    """OV of the residual itself, gain and centring folded, is OV of what the weights receive, times the denominator."""
    model = tiny("gpt2")
    for block in model.module.transformer.h:
        torch.nn.init.zeros_(block.ln_1.bias)
    run = model.run(torch.arange(6)[None], capture=["resid_pre", "ln1", "ln1_scale"])
    folded, plain = ov_circuits(model, centre=True), ov_circuits(model, fold_norm=False)
    for layer in range(2):
        ours = run[f"L{layer}.resid_pre"] @ folded[layer, 1].dense()
        theirs = run[f"L{layer}.ln1"] @ plain[layer, 1].dense() * run[f"L{layer}.ln1_scale"]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_full_circuits_and_streamed_top_entries() -> None:
    model = tiny("gpt2")
    e, (u, _) = embedding(model.net), unembedding(model.net)
    g, f = model.module.transformer.h[1].ln_1.weight, model.module.transformer.ln_f.weight
    qk, ov = full_circuit(model, "qk", 1, 2), full_circuit(model, "ov", 1, 2)
    dense = e @ (g[:, None] * (qk_circuits(model, fold_norm=False)[1, 2].dense() * g)) @ e.T
    torch.testing.assert_close(qk.dense(), dense, rtol=1e-4, atol=1e-4)
    written = e @ (g[:, None] * ov_circuits(model, fold_norm=False)[1, 2].dense()) @ (f[:, None] * u)
    torch.testing.assert_close(ov.dense(), written, rtol=1e-4, atol=1e-4)
    for largest in (True, False):
        value, row, column = qk.top(7, largest=largest, block=6)
        expected = qk.dense().flatten().topk(7, largest=largest).values
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(qk.dense()[row, column], value)


def test_factored_algebra_equals_dense_algebra() -> None:
    rng = torch.Generator().manual_seed(0)
    one, two = (
        Factored(
            torch.randn(3, 10, 4, generator=rng, dtype=torch.float64),
            torch.randn(3, 4, 10, generator=rng, dtype=torch.float64),
        )
        for _ in range(2)
    )
    torch.testing.assert_close((one @ two).dense(), one.dense() @ two.dense())
    torch.testing.assert_close(one.mT.dense(), one.dense().mT)
    torch.testing.assert_close(one.norm(), one.dense().norm(dim=(-2, -1)))
    torch.testing.assert_close(one.singular_values(), torch.linalg.svdvals(one.dense())[..., :4])
    u, s, vh = one.svd()
    torch.testing.assert_close(u @ torch.diag_embed(s) @ vh, one.dense())
    ours = one.eigenvalues().abs().sort(-1).values
    torch.testing.assert_close(ours, torch.linalg.eigvals(one.dense()).abs().sort(-1).values[..., -4:])


def test_errors() -> None:
    model = tiny("llama")
    with pytest.raises(UserError, match="'qk' or 'ov'"):
        full_circuit(model, "kq", 0, 0)
    with pytest.raises(UserError, match="at or before"):
        qk_circuits(model, delta=-1)
    with pytest.raises(UserError, match="one matrix"):
        qk_circuits(model).top(3)
