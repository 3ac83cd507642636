"""The forward function against three independent ones: Hugging Face, TransformerLens, and plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from interp.hooks.edits import function
from interp.hooks.prompts import Prompts
from interp.models.model import Model
from interp.models.native import Native
from tests.tiny import HF_KINDS, NATIVE_KINDS, VOCAB, hf, native, tiny

LENGTH = 12  # three times Gemma-2's window of 4


def tokens(rows: int = 3, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(side: str) -> Tensor:
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    for row, missing in enumerate((0, 3, 7)):
        if missing:
            mask[row, slice(None, missing) if side == "left" else slice(-missing, None)] = False
    return mask


# -- Hugging Face -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HF_KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_hugging_faces_bit_by_bit(kind: str, dtype: torch.dtype) -> None:
    model, module = tiny(kind), hf(kind).to(dtype)
    model.module.to(dtype)
    with torch.no_grad():
        theirs = module(tokens()).logits
    ours = model.run(tokens()).logits
    assert ours.dtype == dtype
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", HF_KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_logits_are_hugging_faces_bit_by_bit(kind: str, side: str) -> None:
    mask = padded(side)
    model, module = tiny(kind), hf(kind)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0) * mask
    with torch.no_grad():
        theirs = module(tokens(), attention_mask=mask.long(), position_ids=positions).logits
    assert torch.equal(model.run(tokens(), mask).logits[mask], theirs[mask])


@pytest.mark.parametrize("kind", HF_KINDS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.1), (torch.float16, 0.01)])
def test_half_precision_stays_near_float32(kind: str, dtype: torch.dtype, most: float) -> None:
    model = tiny(kind)
    exact = model.run(tokens()).logits
    model.module.to(dtype)
    run = model.run(tokens(), capture=["pattern", "resid_post"])
    assert run["L0.pattern"].dtype == run["L1.resid_post"].dtype == dtype
    assert bool(run.logits.isfinite().all())
    assert float((run.logits.float() - exact).abs().max()) < most * float(exact.abs().max())


@pytest.mark.parametrize(
    ("kind", "over"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"n_inner": 40, "activation_function": "relu"}),
        ("llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 1, "head_dim": 12}),
        ("llama", {"tie_word_embeddings": True}),
        ("neox", {"rotary_pct": 1.0, "attention_bias": False}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"query_pre_attn_scalar": 100, "attn_logit_softcapping": 2.0}),
    ],
)
def test_configurations_are_obeyed(kind: str, over: dict[str, Any]) -> None:
    with torch.no_grad():
        theirs = hf(kind, **over)(tokens()).logits
    assert torch.equal(tiny(kind, **over).run(tokens()).logits, theirs)


def test_the_tiny_models_use_what_they_test() -> None:
    """A soft-cap, a window, grouped heads and positions that changed nothing would test nothing."""
    base = tiny("gemma2").run(tokens()).logits
    for over in ({"final_logit_softcapping": None}, {"attn_logit_softcapping": 1.0}, {"sliding_window": 9}):
        assert not torch.allclose(tiny("gemma2", **over).run(tokens()).logits, base, atol=1e-3)
    short = tokens()[:, 1:]
    for kind in HF_KINDS:
        moved = tiny(kind).run(tokens()).logits[:, 1:] - tiny(kind).run(short).logits
        assert float(moved.abs().max()) > 1e-2


# -- TransformerLens -----------------------------------------------------------------------------------------------

BRIDGES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "neox": "GPTNeoXForCausalLM",
           "gemma2": "Gemma2ForCausalLM"}  # fmt: skip


def bridge(kind: str) -> Any:
    """TransformerLens' bridge on a module of its own, never the one under test."""
    builder = pytest.importorskip("transformer_lens.model_bridge.sources._bridge_builder")
    module = copy.deepcopy(hf(kind))
    made = builder.build_bridge_from_module(
        module, architecture=BRIDGES[kind], hf_config=module.config, model_name=kind, device="cpu"
    )
    return made.eval()


HOOKS = {
    "embed": "hook_embed", "resid_pre": "blocks.{}.hook_resid_pre", "resid_post": "blocks.{}.hook_resid_post",
    "q": "blocks.{}.attn.hook_q", "k": "blocks.{}.attn.hook_k", "v": "blocks.{}.attn.hook_v",
    "z": "blocks.{}.attn.hook_z", "pattern": "blocks.{}.attn.hook_pattern", "attn_out": "blocks.{}.hook_attn_out",
    "mlp_out": "blocks.{}.hook_mlp_out", "mlp_pre": "blocks.{}.mlp.hook_pre", "mlp_post": "blocks.{}.mlp.hook_post",
}  # fmt: skip


@pytest.mark.parametrize("kind", BRIDGES)
def test_captures_are_transformer_lens_s(kind: str) -> None:
    model, theirs = tiny(kind), bridge(kind)
    with torch.no_grad():
        logits, cache = theirs.run_with_cache(tokens())
    run = model.run(tokens(), capture=list(HOOKS))
    assert torch.allclose(run.logits, logits, atol=1e-5)
    compared = set()
    for address, value in run.acts.items():
        layer, _, site = address.rpartition(".")
        name = HOOKS[site].format(layer.removeprefix("L"))
        if name not in cache:
            continue
        other = cache[name]
        if other.shape != value.shape and other.numel() == value.numel():
            other = other.reshape(value.shape)
        assert other.shape == value.shape, (address, other.shape)
        assert torch.allclose(value, other, atol=1e-5 * float(value.abs().max())), address
        compared.add(site)
    assert compared >= {"embed", "resid_pre", "resid_post", "q", "k", "v", "z", "pattern", "attn_out", "mlp_out"}


@pytest.mark.parametrize("kind", BRIDGES)
@pytest.mark.parametrize("site", ["z", "resid_pre", "mlp_out"])
def test_edits_are_transformer_lens_s(kind: str, site: str) -> None:
    model, theirs = tiny(kind), bridge(kind)

    def bent(x: Tensor, hook: Any) -> Tensor:
        return x * x.abs()  # not a multiple: a post-norm would undo that

    logits = theirs.run_with_hooks(tokens(), fwd_hooks=[(HOOKS[site].format(1), bent)])
    run = model.run(tokens(), edits=[function(f"L1.{site}", lambda x, ctx: x * x.abs())])
    assert torch.allclose(run.logits, logits.detach(), atol=1e-5)
    assert not torch.allclose(run.logits, model.run(tokens()).logits, atol=1e-2)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_resid_mid_is_excepted_because_theirs_misses_the_skip_path(kind: str) -> None:
    """Swapping two rows at a cut swaps the logits: ours does, their hook_resid_mid does not."""
    model, theirs = tiny(kind), bridge(kind)
    order = torch.tensor([1, 0, 2])
    base = model.run(tokens()).logits
    ours = model.run(tokens(), edits=[function("L0.resid_mid", lambda x, ctx: x[order])]).logits
    assert torch.equal(ours, base[order])
    logits = theirs.run_with_hooks(tokens(), fwd_hooks=[("blocks.0.hook_resid_mid", lambda x, hook: x[order])]).detach()
    assert float((logits - base[order]).abs().max()) > 0.1


# -- plain PyTorch -------------------------------------------------------------------------------------------------


def plain_native(module: Native, ids: Tensor) -> Tensor:
    """The native model of an unpadded batch, written from its configuration with torch's own attention."""
    c, n = module.config, ids.shape[1]
    x = module.embed.weight[ids]
    place = module.pos_embed.weight[:n] if c.positions in ("learned", "qk") else None
    if c.positions == "learned":
        x = x + place
    kv_heads = c.kv_heads or c.heads

    def split(t: Tensor, heads: int) -> Tensor:
        return t.unflatten(-1, (heads, c.head_width)).transpose(1, 2)

    def turn(t: Tensor) -> Tensor:
        half = c.head_width // 2
        rates = c.rotary_base ** (-torch.arange(half) / half)
        angle = torch.arange(n)[:, None] * rates
        a, b = t[..., :half], t[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def norm(layer: Any, t: Tensor) -> Tensor:
        return F.layer_norm(t, (c.d_model,), layer.weight, layer.bias, c.eps)

    def linear(layer: Any, t: Tensor) -> Tensor:
        out = t @ layer.weight.T
        return out if layer.bias is None else out + layer.bias

    for block in module.layers:
        read: Tensor = norm(block.ln1, x) if c.norm == "pre" else x
        place_read = read + place if c.positions == "qk" else read
        q, k, v = (
            split(linear(layer, t), heads)
            for layer, t, heads in ((block.attn.q, place_read, c.heads), (block.attn.k, place_read, kv_heads),
                                    (block.attn.v, read, kv_heads))
        )  # fmt: skip
        if c.positions == "rotary":
            q, k = turn(q), turn(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=c.causal, enable_gqa=kv_heads != c.heads)
        out = linear(block.attn.o, mixed.transpose(1, 2).flatten(2))
        x = x + out if c.skip else out
        x = norm(block.post1, x) if c.norm == "post" else x
        if c.d_mlp:
            read = norm(block.ln2, x) if c.norm == "pre" else x
            act = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}[c.act]
            out = linear(block.mlp.proj, act(linear(block.mlp.fc, read)))
            x = x + out if c.skip else out
            x = norm(block.post2, x) if c.norm == "post" else x
    if c.has_final_norm:
        x = norm(module.final, x)
    return linear(module.unembed, x)


@pytest.mark.parametrize("variant", NATIVE_KINDS)
def test_native_is_what_its_configuration_says(variant: str) -> None:
    module = native(variant)
    with torch.no_grad():
        want = plain_native(module, tokens())
        own = module(tokens())
    got = tiny(f"native:{variant}").run(tokens()).logits
    assert torch.allclose(got, want, atol=1e-5 * float(want.abs().max()))
    assert torch.equal(own, got)


@pytest.mark.parametrize("variant", NATIVE_KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_native_padding_does_not_leak(variant: str, side: str) -> None:
    module, mask = native(variant), padded(side)
    run = tiny(f"native:{variant}").run(tokens(), mask)
    for row in range(3):
        with torch.no_grad():
            want = plain_native(module, tokens()[row][mask[row]][None])[0]
        assert torch.allclose(run.logits[row][mask[row]], want, atol=1e-5 * float(want.abs().max()))


def test_native_variants_differ() -> None:
    """Each trait is felt: no two variants with the same parameters give the same logits."""
    seen = {v: tiny(f"native:{v}").run(tokens()).logits for v in ("pre", "no_skip", "bidirectional", "qk")}
    for a in seen:
        for b in seen:
            assert a == b or not torch.allclose(seen[a], seen[b], atol=1e-2)


def test_qk_positions_reach_queries_and_keys_only() -> None:
    model = tiny("native:qk")
    same = torch.full((1, LENGTH), 7)  # one token everywhere: only positions tell columns apart
    run = model.run(same, capture=["resid_pre", "q", "v"])
    assert torch.equal(run["L0.resid_pre"][:, :1].expand_as(run["L0.resid_pre"]), run["L0.resid_pre"])
    assert torch.allclose(run["L0.v"][:, :1].expand_as(run["L0.v"]), run["L0.v"], atol=1e-6)
    assert not torch.allclose(run["L0.q"][:, :1].expand_as(run["L0.q"]), run["L0.q"], atol=1e-2)


def test_native_trains() -> None:
    """Its forward carries gradients to every parameter."""
    module = native("pre")
    F.cross_entropy(module(tokens())[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten()).backward()
    assert all(
        p.grad is not None and float(p.grad.abs().sum()) > 0 for n, p in module.named_parameters() if "k.bias" not in n
    )


def test_prompts_carry_absolute_positions() -> None:
    """A row's first real token is position 0 wherever its column is."""
    model = tiny("gpt2")
    left = Prompts.of([[1, 2, 3, 4], [5, 6]], pad_side="left")
    run = model.run(left, capture="pos_embed")
    weight = model.module.transformer.wpe.weight  # type: ignore[union-attr]
    assert torch.equal(run["pos_embed"][1, 2:], weight[:2])  # type: ignore[index]


def test_a_module_swapped_in_is_the_one_that_runs() -> None:
    model: Model = tiny("gpt2")
    before = model.run(tokens()).logits
    block = model.module.transformer.h[1]  # type: ignore[union-attr,index]
    block.mlp.act = torch.nn.ReLU()  # type: ignore[union-attr]
    assert not torch.allclose(model.run(tokens()).logits, before, atol=1e-3)
