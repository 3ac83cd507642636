"""Published quirks of each family: logits are Hugging Face's, to the bit; what is not run says why in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from interp.hooks.values import Prompts
from interp.models.tiny import resized
from interp.registry import UserError
from tests.tiny import HF_KINDS, VOCAB, hf, tiny


def tokens(rows: int = 3, length: int = 12) -> Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(0))


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

QUIRKS: list[tuple[str, dict[str, Any]]] = [
    # rotary scalings and partial rotary
    ("llama", LLAMA3),
    ("llama", rope("linear", factor=4.0)),
    ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=8)),
    ("llama", DYNAMIC),
    ("phi3", LONG),
    ("phi3", rope("default", partial_rotary_factor=0.5)),
    ("stablelm", rope("default", partial_rotary_factor=1.0)),
    ("gptj", {"rotary_dim": 8}),
    ("gemma3", BY_LAYER),
    # windows
    ("phi3", {"sliding_window": 4}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"use_sliding_window": False, "layer_types": None}),
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
    # heads
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
    ("stablelm", {"qk_layernorm": True}),
    ("stablelm_parallel", {"qk_layernorm": False}),
    # routing
    ("mixtral", {"num_experts_per_tok": 1}),
    ("qwen2_moe", {"norm_topk_prob": True}),
    ("qwen3_moe", {"norm_topk_prob": False}),
]


@pytest.mark.parametrize(("kind", "over"), QUIRKS, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_logits_are_hugging_faces(kind: str, over: dict[str, Any]) -> None:
    module = hf(kind, **over)
    with torch.no_grad():
        theirs = module(tokens()).logits
    ours = tiny(kind, **over).run(tokens()).logits
    if kind == "bloom":
        torch.testing.assert_close(ours, theirs, atol=1e-5 * float(theirs.abs().max()), rtol=0)
    else:
        assert torch.equal(ours, theirs)


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
