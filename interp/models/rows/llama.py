"""Llama and what follows its layout: Mistral, Qwen2, Qwen3, Phi-3, OLMo-2, Granite, StableLM, Cohere."""

from __future__ import annotations

from typing import Any

from interp.models.family import Config, Family, decoder, layer_window, one_window, register_family, split_width

LLAMA: dict[str, Any] = {
    "layers": "model.layers",
    "embed": "model.embed_tokens",
    "final": "model.norm",
    "unembed": "lm_head",
    "rotary": "model.rotary_emb",
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn": "self_attn",
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": "self_attn.o_proj",
    "mlp_in": "mlp.gate_proj",
    "mlp_up": "mlp.up_proj",
    "act": "mlp.act_fn",
    "mlp_out": "mlp.down_proj",
    "exact": True,
}
QK_NORMS: dict[str, Any] = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}


def gated(config: Config, **more: Any) -> dict[str, Any]:
    """The usual geometry with a gated MLP and rotary positions."""
    return decoder(config, **{"gated": True, "rotary": True, **more})


register_family(Family("llama", ("llama",), **LLAMA, geometry=gated))
register_family(Family("mistral", ("mistral",), **LLAMA, geometry=gated, window=one_window))
register_family(Family("qwen2", ("qwen2",), **LLAMA, geometry=gated, window=layer_window))
register_family(
    Family(
        "qwen3",
        ("qwen3",),
        **LLAMA,
        **QK_NORMS,
        window=layer_window,
        geometry=lambda config: gated(config, qk_norm=True),
    )
)

register_family(
    Family(
        "phi3",
        ("phi3",),
        **{**LLAMA, "qkv": ("self_attn.qkv_proj",), "act": "mlp.activation_fn", "mlp_in": None, "mlp_up": None},
        packing="thirds",
        keys_lie="head",
        gate_up="mlp.gate_up_proj",
        window=one_window,
        geometry=gated,
    )
)

register_family(
    Family(
        "olmo2",
        ("olmo2",),
        **{
            **LLAMA,
            "ln1": None,
            "ln2": None,
            "post1": "post_attention_layernorm",
            "post2": "post_feedforward_layernorm",
        },
        **QK_NORMS,
        norm_heads="all",
        rotary_fp32=True,
        geometry=lambda config: gated(config, pre_norm=False, post_norm=True, qk_norm=True, qk_norm_apart=False),
    )
)

register_family(
    Family(
        "granite",
        ("granite",),
        **LLAMA,
        scale=lambda config, layer, d_head: config.attention_multiplier,
        embed_times=lambda config: config.embedding_multiplier,
        out_times=lambda config: config.residual_multiplier,
        logits_over=lambda config: config.logits_scaling,
        geometry=gated,
    )
)

register_family(
    Family(
        "stablelm",
        ("stablelm",),
        **{**LLAMA, "ln2": "post_attention_layernorm|input_layernorm"},
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        norm_heads="listed",
        keys_lie="head",
        stream_first=True,
        geometry=lambda config: gated(
            config,
            parallel=config.use_parallel_residual,
            qk_norm=config.qk_layernorm,
            qk_norm_apart=False,
            **split_width(config),
        ),
    )
)

register_family(
    Family(
        "cohere",
        ("cohere",),
        **{**LLAMA, "ln2": "input_layernorm"},
        **QK_NORMS,
        norm_heads="own",
        rotary_pairs="neighbours",
        rotary_fp32=True,
        stream_first=True,
        logits_times=lambda config: config.logit_scale,
        geometry=lambda config: gated(config, parallel=True, qk_norm=config.use_qk_norm, qk_norm_apart=False),
    )
)
