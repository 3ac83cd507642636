"""BLOOM and Falcon: fused projections with each kv head's queries, key and value together."""

from __future__ import annotations

from typing import Any

from interp.models.family import Config, Family, decoder, register_family, split_width

_FUSED: dict[str, Any] = {
    "layers": "transformer.h", "final": "transformer.ln_f", "unembed": "lm_head", "attn": "self_attention",
    "qkv": ("self_attention.query_key_value",), "packing": "interleaved", "out": "self_attention.dense",
    "mlp_in": "mlp.dense_h_to_4h", "mlp_out": "mlp.dense_4h_to_h",
}  # fmt: skip


def _bloom_refused(config: Config) -> str | None:
    if config.apply_residual_connection_post_layernorm:
        return "its residual stream starts at the norms' outputs (apply_residual_connection_post_layernorm)"
    if config.slow_but_exact and config.pretraining_tp > 1:
        return "transformers then leaves out the biases of the output products (slow_but_exact, pretraining_tp)"
    return None


register_family(
    Family(
        "bloom",
        ("bloom",),
        **_FUSED,
        exact=True,
        embed=("transformer.word_embeddings", "transformer.word_embeddings_layernorm"),
        alibi=True,
        keys_lie="head",
        ln1="input_layernorm",
        ln2="post_attention_layernorm",
        act="mlp.gelu_impl",
        geometry=lambda config: decoder(
            config,
            kv_heads=config.n_head,
            d_mlp=4 * config.hidden_size,
            n_ctx=getattr(config, "seq_length", 2048),
            **split_width(config),
        ),
        refuse=_bloom_refused,
    )
)


def _kv_heads(config: Config) -> int:
    if config.new_decoder_architecture:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else int(config.num_attention_heads)


register_family(
    Family(
        "falcon",
        ("falcon",),
        **_FUSED,
        exact=True,
        embed="transformer.word_embeddings",
        rotary="transformer.rotary_emb",
        ln1="ln_attn|input_layernorm",
        ln2="ln_mlp|post_attention_layernorm|input_layernorm",
        act="mlp.act",
        softmax_fp32=False,
        scale_divides=True,
        keys_lie="token",
        geometry=lambda config: decoder(
            config, kv_heads=_kv_heads(config), d_mlp=config.ffn_hidden_size, rotary=True,
            parallel=config.new_decoder_architecture or config.parallel_attn, **split_width(config),
        ),
        refuse=lambda config: (
            "with alibi=True transformers' eager attention adds the position bias twice, its sdpa once"
            if config.alibi
            else None
        ),
    )
)  # fmt: skip
