"""Published quirks of each family: logits are Hugging Face's, to the bit; what is not run says why in one line."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.hooks.prompts import Prompts
from interp.models.tiny import KINDS, resized
from interp.registry import UserError
from tests.tiny import HF_KINDS, VOCAB, hf, tiny


def tokens(rows: int = 3, length: int = 12) -> Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(0))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8)
LONG = {
    **rope("longrope", short_factor=[1.3] * 4, long_factor=[4.0] * 4, original_max_position_embeddings=12),
    "original_max_position_embeddings": 12,
}
DYNAMIC = rope("dynamic", factor=4.0, original_max_position_embeddings=12)
BY_LAYER = {
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
    }
}

YARN = rope("yarn", factor=4.0, original_max_position_embeddings=8)
SCALINGS = {
    "linear": rope("linear", factor=4.0), "llama3": LLAMA3, "yarn": YARN, "dynamic": DYNAMIC,
    "proportional": rope("proportional", partial_rotary_factor=0.5),
}  # fmt: skip
ROTARY = [kind for kind in HF_KINDS if tiny(kind).geometry.rotary]
UNSCALED = {
    "phi3": list(SCALINGS), "mixtral": ["yarn", "dynamic"], "neox": ["dynamic"], "neox_sequential": ["dynamic"],
    "stablelm": ["dynamic", "proportional"], "stablelm_parallel": ["dynamic", "proportional"],
}  # fmt: skip
"""Scalings that transformers itself cannot compute for a family (at heads of 8)."""

QUIRKS: list[tuple[str, dict[str, Any]]] = [
    # rotary scalings and partial rotary
    ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=8, attention_factor=1.5)),
    ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=8, mscale=1.0, mscale_all_dim=0.8)),
    ("llama", rope("default", partial_rotary_factor=0.5)),
    ("phi3", LONG),
    ("phi3", rope("default", partial_rotary_factor=0.5)),
    ("stablelm", rope("default", partial_rotary_factor=1.0)),
    ("gptj", {"rotary_dim": 8}),
    ("gemma3", BY_LAYER),
    # windows
    ("phi3", {"sliding_window": 4}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"use_sliding_window": False, "layer_types": None}),
    ("qwen2", {"layer_types": None, "max_window_layers": 1}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 4}),
    # layer types that transformers does not read
    *(
        (kind, {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4})
        for kind in ("mistral", "mixtral", "phi3", "llama")
    ),
    ("qwen3_moe", {"layer_types": ["full_attention"] * 2, "use_sliding_window": True, "sliding_window": 4}),
    ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
    ("mixtral", {"sliding_window": 4}),
    # tied and untied embeddings
    ("llama", {"tie_word_embeddings": True}),
    ("gpt2", {"tie_word_embeddings": False}),
    ("gemma", {"tie_word_embeddings": False}),
    ("cohere", {"tie_word_embeddings": False}),
    ("granite", {"tie_word_embeddings": True}),
    ("opt_post", {"tie_word_embeddings": False}),
    # biases or none
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", {"attention_bias": True}),
    ("granite", {"attention_bias": True}),
    ("cohere", {"attention_bias": True}),
    ("olmo2", {"attention_bias": True}),
    ("opt", {"enable_bias": False}),
    ("opt", {"layer_norm_elementwise_affine": False}),
    ("falcon", {"bias": True}),
    ("neox", {"attention_bias": False}),
    ("stablelm", {"use_qkv_bias": False}),
    ("qwen2_moe", {"qkv_bias": False}),
    ("granite", {"mlp_bias": True}),
    # a width of heads that transformers does not read
    *((kind, {"head_dim": 4}) for kind in ("gpt_neo", "opt", "opt_post", "bloom", "gptj", "neox")),
    ("stablelm", {"head_dim": 4}),
    # heads
    ("falcon", {"num_attention_heads": 8}),
    *(
        (
            "falcon",
            {"new_decoder_architecture": False, "multi_query": many, "parallel_attn": parallel, "num_kv_heads": 4},
        )
        for many in (True, False)
        for parallel in (True, False)
    ),
    ("falcon_new", {"num_ln_in_parallel_attn": 2}),
    ("bloom", {"n_head": 1}),
    ("olmo2", {"num_key_value_heads": 4}),
    ("falcon_new", {"num_ln_in_parallel_attn": 1}),
    ("falcon_new", {"num_kv_heads": 4}),
    ("bloom", {"n_head": 6, "hidden_size": 48}),
    ("qwen3", {"num_key_value_heads": 1}),
    # caps, scales and activations
    ("gemma3", {"final_logit_softcapping": 30.0}),
    ("gemma3", {"query_pre_attn_scalar": 100}),
    ("granite", {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}),
    ("opt", {"activation_function": "gelu"}),
    ("gptj", {"n_inner": 40}),
    ("gpt2", {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"add_cross_attention": True}),
    ("gemma3", {"attn_logit_softcapping": 2.0}),
    ("opt", {"_remove_final_layer_norm": True}),
    ("opt_post", {"word_embed_proj_dim": 32}),
    ("opt", {"word_embed_proj_dim": 24}),
    ("stablelm", {"qk_layernorm": True}),
    ("stablelm_parallel", {"qk_layernorm": False}),
    # routing
    ("mixtral", {"num_experts_per_tok": 1}),
    ("qwen2_moe", {"norm_topk_prob": True}),
    ("qwen3_moe", {"norm_topk_prob": False}),
]


def same_as_hugging_faces(kind: str, over: dict[str, Any], dtype: torch.dtype) -> None:
    """To the bit, with and without padding; `over` is copied, since configurations keep and change what they get."""
    module, model = (make(kind, **copy.deepcopy(over)) for make in (hf, tiny))
    module.to(dtype), model.module.to(dtype)
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, :3] = mask[2, :7] = False
    with torch.no_grad():
        plain = module(tokens()).logits
        theirs = module(tokens(), attention_mask=mask.long(), position_ids=Prompts.of(tokens(), mask).positions).logits
    assert torch.equal(model.run(tokens()).logits, plain)
    padded = model.run(tokens(), mask).logits[mask]
    if model.geometry.experts:  # beside padding, experts multiply other tokens than the checkpoint's own pass does
        assert (padded - theirs[mask]).abs().max() <= 8 * torch.finfo(dtype).eps * theirs.abs().max()
    else:
        assert torch.equal(padded, theirs[mask])


def name(x: object) -> str:
    return ",".join(x) if isinstance(x, dict) else str(x).removeprefix("torch.")


@pytest.mark.parametrize(("kind", "over"), QUIRKS, ids=name)
def test_logits_are_hugging_faces(kind: str, over: dict[str, Any]) -> None:
    same_as_hugging_faces(kind, over, torch.float32)


@pytest.mark.parametrize("kind", ROTARY)
def test_every_rotary_scaling_of_every_family(kind: str) -> None:
    for scaling in SCALINGS:
        if scaling not in UNSCALED.get(kind, ()):
            over = SCALINGS[scaling]
            if kind == "gemma3":
                over = {"rope_parameters": {t: dict(over["rope_parameters"]) for t in BY_LAYER["rope_parameters"]}}
            same_as_hugging_faces(kind, over, torch.float32)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name)
@pytest.mark.parametrize(("kind", "over"), [*QUIRKS, *((kind, {}) for kind in HF_KINDS)], ids=name)
def test_logits_are_hugging_faces_in_half_precision(kind: str, over: dict[str, Any], dtype: torch.dtype) -> None:
    same_as_hugging_faces(kind, over, dtype)


@pytest.mark.parametrize(("kind", "over"), [("llama", LLAMA3), ("phi3", {"sliding_window": 4}), ("gemma3", BY_LAYER),
                                            ("granite", {"residual_multiplier": 1.0}), ("cohere", {"logit_scale": 1.0}),
                                            ("mixtral", {"num_experts_per_tok": 1})])  # fmt: skip
def test_the_quirk_is_felt(kind: str, over: dict[str, Any]) -> None:
    plain, other = tiny(kind).run(tokens()).logits, tiny(kind, **over).run(tokens()).logits
    assert not torch.allclose(plain, other, atol=1e-3)


@pytest.mark.parametrize("kind", HF_KINDS)
def test_the_smallest_sizes(kind: str) -> None:
    """One layer, one head, one prompt, one token."""
    for over in (resized(kind, layers=1), resized(kind, heads=1)):
        module = hf(kind, **over)
        with torch.no_grad():
            theirs = module(tokens()).logits
        assert torch.equal(tiny(kind, **over).run(tokens()).logits, theirs)
    model = tiny(kind)
    for few in (tokens(1), tokens(3, 1), tokens(1, 1)):
        assert torch.equal(model.run(few).logits, model.run(few, plain_module=True).logits)


@pytest.mark.parametrize(
    ("kind", "over", "why"),
    [
        ("falcon", {"alibi": True}, "adds the position bias twice"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "starts at the norms' outputs"),
        ("bloom", {"slow_but_exact": True, "pretraining_tp": 2}, "leaves out the biases"),
        ("gemma3", {"use_bidirectional_attention": True}, "is not causal"),
        ("qwen2_moe", {"mlp_only_layers": [0]}, "some of its layers have plain MLPs"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "some of its layers have plain MLPs"),
        ("qwen2_moe", {"num_experts": 0}, "some of its layers have plain MLPs"),
        ("gpt_neo", {"window_size": 0}, "in a window of 0 nothing is read"),
        ("stablelm", {"num_attention_heads": 8}, "1 of a head's 4 coordinates are turned by position"),
        ("llama", {"head_dim": 1}, "1 of a head's 1 coordinates"),
    ],
)
def test_what_is_not_run_says_so(kind: str, over: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"does not run this checkpoint: .*{why}"):
        tiny(kind, **over)


@pytest.mark.parametrize(("kind", "over"), [("llama", DYNAMIC), ("phi3", LONG)])
def test_angles_that_depend_on_the_batch_are_refused(kind: str, over: dict[str, Any]) -> None:
    model = tiny(kind, **over)
    model.run(tokens(2, 12))
    with pytest.raises(UserError, match=r"a prompt of 13 tokens is longer than 12: .*depend on the batch"):
        model.run(Prompts.of([[1, 2], list(range(13))]))


def test_hugging_face_adds_falcons_bias_twice() -> None:
    """The reason given for refusing it: eager and sdpa attention of transformers differ."""
    from transformers import AutoConfig, AutoModelForCausalLM

    eager = hf("falcon", alibi=True)
    config = AutoConfig.for_model("falcon", **{**HF_KINDS["falcon"][1], "alibi": True})
    sdpa = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    sdpa.load_state_dict(eager.state_dict())
    with torch.no_grad():
        one, two = eager(tokens()).logits, sdpa(tokens()).logits
    assert not torch.allclose(one, two, atol=1e-2)


UNGROUPED = {"num_key_value_heads": 4}


@pytest.mark.parametrize(
    ("kind", "over"),
    [
        *((kind, {}) for kind in HF_KINDS),
        *((kind, UNGROUPED) for kind in HF_KINDS if "num_key_value_heads" in KINDS[kind][1]),
    ],
    ids=name,
)
def test_many_sizes(kind: str, over: dict[str, Any]) -> None:
    """What lies otherwise in memory than in a family's own attention is multiplied otherwise, at some sizes."""
    model = tiny(kind, **over)
    for rows, length in ((1, 9), (2, 9), (3, 7), (3, 9), (5, 15), (2, 12)):
        few = tokens(rows, length)
        assert torch.equal(model.run(few).logits, model.run(few, plain_module=True).logits), (rows, length)
