"""What adds up to what: residual, heads, biases, logits (faults 3, 8 to 11, 14, 35)."""

from __future__ import annotations

import pytest
import torch

from interp.hooks.edits import add, scale, zero
from interp.models.model import Model
from tests.tiny import HF_KINDS, NATIVE_KINDS, tiny

TOKENS = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]
GEOMETRY = {kind: tiny(kind).geometry for kind in HF_KINDS}
SUMMING = [k for k, g in GEOMETRY.items() if not g.stream_norm]
SEQUENTIAL = [k for k in SUMMING if not GEOMETRY[k].parallel]
PARALLEL = [k for k in SUMMING if GEOMETRY[k].parallel]


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_the_residual_adds_up(kind: str) -> None:
    run = tiny(kind).run(TOKENS, capture=["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"])
    for i in range(2):
        pre, attn, mid, mlp, post = (
            run[f"L{i}.{s}"] for s in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
        )
        assert torch.allclose(pre + attn, mid, atol=1e-5)
        assert torch.allclose(mid + mlp, post, atol=1e-5)
    assert torch.equal(run["L0.resid_post"], run["L1.resid_pre"])


def test_norms_of_the_residual_itself_stand_after_each_sum() -> None:
    model = tiny("opt_post")
    run = model.run(TOKENS, capture=["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"])
    for i, layer in enumerate(model.net.layers):
        pre, attn, mid, mlp, post = (
            run[f"L{i}.{s}"] for s in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
        )
        assert torch.allclose(layer.post1(pre + attn), mid, atol=1e-5)
        assert torch.allclose(layer.post2(mid + mlp), post, atol=1e-5)


@pytest.mark.parametrize("kind", PARALLEL)
def test_a_parallel_block_adds_both_at_once(kind: str) -> None:
    run = tiny(kind).run(TOKENS, capture=["resid_pre", "attn_out", "mlp_out", "resid_post"])
    for i in range(2):
        pre, attn, mlp, post = (run[f"L{i}.{s}"] for s in ("resid_pre", "attn_out", "mlp_out", "resid_post"))
        assert torch.allclose(pre + attn + mlp, post, atol=1e-5)
        assert float(attn.abs().max()) > 0.1
        assert float(mlp.abs().max()) > 0.1


@pytest.mark.parametrize("kind", SUMMING)
@pytest.mark.parametrize("site", ["embed", "attn_out", "mlp_out"])
def test_what_is_captured_is_exactly_what_is_added(kind: str, site: str) -> None:
    """Zeroing an addend takes that addend away, bit by bit where nothing else was added between."""
    model = tiny(kind)
    address = "embed" if site == "embed" else f"L1.{site}"
    base = model.run(TOKENS, capture=[address, "L1.resid_pre", "L1.resid_post"])
    if site == "mlp_out":
        run = model.run(TOKENS, edits=[zero(address)], capture="L1.resid_post")
        assert torch.allclose(run["L1.resid_post"] + base[address], base["L1.resid_post"], atol=1e-5)
    elif site == "attn_out":
        run = model.run(TOKENS, edits=[zero(address), zero("L1.mlp_out")], capture="L1.resid_post")
        assert torch.allclose(run["L1.resid_post"], base["L1.resid_pre"], atol=1e-6)
    else:
        run = model.run(TOKENS, edits=[zero("embed")], capture="L0.resid_pre")
        left = run["L0.resid_pre"]
        if model.geometry.pos_embed:
            first = model.family.position_offset
            table = model.net.pos_embed.weight[first : first + 6]  # type: ignore[union-attr,index]
            assert torch.equal(left, table.expand_as(left))
        else:
            assert bool((left == 0).all())


@pytest.mark.parametrize("kind", HF_KINDS)
def test_scores_of_any_size_keep_the_future_hidden(kind: str) -> None:
    """Queries 10,000 times as large, by weights where a norm does not undo it, else after the norm."""
    model = tiny(kind)
    edits = []
    if kind == "gpt2":
        with torch.no_grad():
            for block in model.module.transformer.h:  # type: ignore[union-attr]
                block.attn.c_attn.weight[:, :32] *= 1e4
    else:
        edits = [scale("q_rot", 1e4)]
    run = model.run(TOKENS, edits=edits, capture=["pattern", "scores"])
    for i in range(2):
        pattern = run[f"L{i}.pattern"]
        assert bool((pattern.triu(1) == 0).all())
        assert torch.allclose(pattern.sum(-1), torch.ones(2, 4, 6), atol=1e-6)
        read = run[f"L{i}.scores"][pattern > 0].abs().max()  # a window hides as much as the future
        assert float(read) > (49 if kind == "gemma2" else 1e2), "its scores are capped at 50"
    assert bool(run.logits.isfinite().all())


@pytest.mark.parametrize("kind", [*HF_KINDS, *(f"native:{v}" for v in NATIVE_KINDS)])
def test_the_last_residual_gives_the_logits(kind: str) -> None:
    model = tiny(kind)
    run = model.run(
        TOKENS, capture=["L-1.resid_post", "ln_final", "ln_final_scale" if model.geometry.final_norm else "embed"]
    )
    final = model.net.final(run["L-1.resid_post"])
    assert torch.equal(final, run["ln_final"])
    unembed = model.net.unembed
    assert unembed is not None
    raw = final @ unembed.weight.T + (0 if unembed.bias is None else unembed.bias)  # type: ignore[union-attr,operator]
    want = 30 * torch.tanh(raw / 30) if kind == "gemma2" else raw
    assert torch.allclose(run.logits, want.detach(), atol=1e-5)


def test_the_soft_cap_lies_between_its_two_sites() -> None:
    run = tiny("gemma2").run(TOKENS, capture=["logits", "logits_pre_cap"])
    assert torch.allclose(run["logits"], 30 * torch.tanh(run["logits_pre_cap"] / 30), atol=1e-6)
    assert torch.equal(run["logits"], run.logits)
    assert float((run["logits"] - run["logits_pre_cap"]).abs().max()) > 1e-3


def written(model: Model) -> str:
    """Where the heads' sum stands: before the post-norm, where there is one."""
    return "L1.attn_out_pre" if model.geometry.post_norm else "L1.attn_out"


def heads_and_bias(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    run = model.run(TOKENS, capture=["L1.head_out", written(model)])
    return run["L1.head_out"].sum(2), run[written(model)]


@pytest.mark.parametrize("kind", HF_KINDS)
def test_heads_and_bias_make_attention(kind: str) -> None:
    model = tiny(kind)
    w = model.weights(1)
    total, out = heads_and_bias(model)
    assert torch.allclose(total + w.b_O, out, atol=1e-5)
    assert float(w.b_O.abs().max()) > 0.05 or getattr(model.net.layers[1].out, "bias", None) is None


@pytest.mark.parametrize("kind", HF_KINDS)
def test_a_shift_of_all_values_moves_the_sum_once(kind: str) -> None:
    """As a shift of the value bias does, where there is one; query heads that share values move by the same."""
    model = tiny(kind)
    g, out = model.geometry, written(model)
    delta = torch.randn(g.kv_heads, g.d_head, generator=torch.Generator().manual_seed(0))
    shifts = [add("L1.v", delta[h], kv_head=h) for h in range(g.kv_heads)]
    base, run = (model.run(TOKENS, edits=edits, capture=[out, "L1.head_out"]) for edits in ([], shifts))
    each = torch.einsum("hd,hdm->hm", delta.repeat_interleave(g.group, 0), model.weights(1).W_O)
    for moved, want in ((run[out] - base[out], each.sum(0)), (run["L1.head_out"] - base["L1.head_out"], each)):
        assert torch.allclose(moved, want.expand_as(moved), atol=1e-5)  # rows of the pattern sum to 1


def test_a_shift_of_the_value_bias_moves_the_sum_once() -> None:
    model = tiny("gpt2")
    before, _ = heads_and_bias(model)
    delta = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.module.transformer.h[1].attn.c_attn.bias[64:] += delta.flatten()  # type: ignore[union-attr,index]
    after, _ = heads_and_bias(model)
    moved = torch.einsum("hd,hdm->m", delta, model.weights(1).W_O)
    assert torch.allclose(after - before, moved.expand_as(after), atol=1e-5)  # rows of the pattern sum to 1


@pytest.mark.parametrize("kind", HF_KINDS)
def test_zeroed_heads_leave_the_bias(kind: str) -> None:
    model = tiny(kind)
    out = written(model)
    run = model.run(TOKENS, edits=[zero("L1.z")], capture=out)
    bias = model.weights(1).b_O
    assert torch.allclose(run[out], bias.expand_as(run[out]), atol=1e-6)
    by_head = model.run(TOKENS, edits=[zero("L1.head_out")], capture=out)
    assert torch.allclose(by_head[out], run[out], atol=1e-5)


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_a_vector_added_in_the_middle_reaches_the_end_with_the_mlps_change(kind: str) -> None:
    model = tiny(kind)
    vector = torch.randn(model.geometry.d_model, generator=torch.Generator().manual_seed(0))
    sites = ["L0.resid_mid", "L0.mlp_out", "L0.resid_post"]
    base = model.run(TOKENS, capture=sites)
    run = model.run(TOKENS, edits=[add("L0.resid_mid", vector)], capture=sites)
    moved = {s: run[s] - base[s] for s in sites}
    assert torch.allclose(moved["L0.resid_mid"], vector.expand(2, 6, -1), atol=1e-5)
    assert torch.allclose(moved["L0.resid_post"], vector + moved["L0.mlp_out"], atol=1e-5)
    assert float(moved["L0.mlp_out"].abs().max()) > 1e-2
