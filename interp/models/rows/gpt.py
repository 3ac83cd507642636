"""GPT-2 and its kin: GPT-Neo, GPT-J, GPT-NeoX, OPT."""

from __future__ import annotations

from typing import Any

from interp.models.family import Config, Family, decoder, register_family, split_width

_GPT: dict[str, Any] = {
    "layers": "transformer.h", "embed": "transformer.wte", "final": "transformer.ln_f", "unembed": "lm_head",
    "ln1": "ln_1", "exact": True,
}  # fmt: skip

register_family(
    Family(
        "gpt2",
        ("gpt2",),
        **_GPT,
        pos_embed="transformer.wpe",
        ln2="ln_2",
        attn="attn",
        qkv=("attn.c_attn",),
        packing="thirds",
        out="attn.c_proj",
        mlp_in="mlp.c_fc",
        act="mlp.act",
        mlp_out="mlp.c_proj",
        softmax_fp32=False,
        scores_fp32=lambda config: config.reorder_and_upcast_attn,
        scale_in_product=lambda config: config.reorder_and_upcast_attn,
        scale=lambda config, layer, d_head: (
            (d_head**-0.5 if config.scale_attn_weights else 1.0)
            / (layer + 1 if config.scale_attn_by_inverse_layer_idx else 1)
        ),
        geometry=lambda config: {
            "layers": config.n_layer,
            "heads": config.n_head,
            "kv_heads": config.n_head,
            "d_model": config.n_embd,
            "d_head": config.n_embd // config.n_head,
            "d_mlp": config.n_inner or 4 * config.n_embd,
            "d_vocab": config.vocab_size,
            "n_ctx": config.n_positions,
            "pos_embed": True,
        },
    )
)

register_family(
    Family(
        "gpt_neo",
        ("gpt_neo",),
        **_GPT,
        pos_embed="transformer.wpe",
        ln2="ln_2",
        attn="attn.attention",
        qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
        out="attn.attention.out_proj",
        mlp_in="mlp.c_fc",
        act="mlp.act",
        mlp_out="mlp.c_proj",
        scores_fp32=lambda config: True,
        scale=lambda config, layer, d_head: 1.0,
        window=lambda config, layer: config.window_size if config.attention_layers[layer] == "local" else None,
        geometry=lambda config: decoder(config, d_mlp=config.intermediate_size or 4 * config.hidden_size,
                                        pos_embed=True, **split_width(config)),
    )
)  # fmt: skip


def _sines_first(out: Any) -> tuple[Any, Any]:
    """GPT-J's rotary module gives sines, then cosines, one for each pair of neighbours."""
    sin, cos = out
    return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)


register_family(
    Family(
        "gptj",
        ("gptj",),
        **_GPT,
        ln2="ln_1",
        rotary="transformer.rotary_emb",
        rotary_angles=_sines_first,
        rotary_pairs="neighbours",
        attn="attn",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        out="attn.out_proj",
        mlp_in="mlp.fc_in",
        act="mlp.act",
        mlp_out="mlp.fc_out",
        scores_fp32=lambda config: True,
        geometry=lambda config: decoder(config, d_mlp=config.n_inner or 4 * config.n_embd, n_ctx=config.n_positions,
                                        rotary=True, parallel=True, **split_width(config)),
    )
)  # fmt: skip

register_family(
    Family(
        "gpt_neox",
        ("gpt_neox",),
        exact=True,
        keys_lie="head",
        layers="gpt_neox.layers",
        embed="gpt_neox.embed_in",
        final="gpt_neox.final_layer_norm",
        unembed="lm_head",
        rotary="gpt_neox.rotary_emb",
        ln1="input_layernorm",
        ln2="post_attention_layernorm",
        attn="attention",
        qkv=("attention.query_key_value",),
        packing="interleaved",
        out="attention.dense",
        mlp_in="mlp.dense_h_to_4h",
        act="mlp.act",
        mlp_out="mlp.dense_4h_to_h",
        geometry=lambda config: decoder(
            config, rotary=True, parallel=config.use_parallel_residual, **split_width(config)
        ),
    )
)


def _opt_geometry(config: Config) -> dict[str, Any]:
    before = config.do_layer_norm_before  # false in the 350m checkpoint alone: it norms the residual itself
    return decoder(
        config, d_mlp=config.ffn_dim, pos_embed=True, pre_norm=before, stream_norm=not before,
        final_norm=before and not config._remove_final_layer_norm, **split_width(config),
    )  # fmt: skip


register_family(
    Family(
        "opt",
        ("opt",),
        exact=True,
        layers="model.decoder.layers",
        embed=("model.decoder.embed_tokens", "model.decoder.project_in"),
        pos_embed="model.decoder.embed_positions",
        pos_keyword="position_ids",
        position_offset=2,
        final="model.decoder.final_layer_norm",
        unembed=("model.decoder.project_out", "lm_head"),
        ln1="self_attn_layer_norm",
        ln2="final_layer_norm",
        post1="self_attn_layer_norm",
        post2="final_layer_norm",
        attn="self_attn",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out="self_attn.out_proj",
        mlp_in="fc1",
        act="activation_fn",
        mlp_out="fc2",
        scale_queries=True,
        geometry=_opt_geometry,
    )
)
