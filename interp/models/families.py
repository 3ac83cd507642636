"""Families: one row of data for each architecture.

A row says where a checkpoint's leaf modules lie and how its tensors are packed and scaled. The one forward
function in `block.py` reads nothing else. Paths are dotted; those of a block start at the block. Rows hold no
tensors and import no torch, so that they can be listed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from interp.registry import Registry

Config = Any
"""A Hugging Face configuration object, or the native one."""

Packing = Literal["separate", "thirds", "interleaved", "in_proj"]
"""How q, k and v leave their projections: three modules; one module with q | k | v side by side (kv parts
narrower under grouped queries); one module with each head's q, k, v together; the packed parameters of
`nn.MultiheadAttention`, whose own forward is not called."""


@dataclass(frozen=True)
class Family:
    """Where the parts of one architecture lie and how they are put together."""

    name: str
    model_types: tuple[str, ...]
    layers: str
    embed: str
    final: str | None
    unembed: str
    attn: str
    qkv: tuple[str, ...]
    out: str
    geometry: Callable[[Config], dict[str, Any]]
    """Fields of `Geometry` read off the configuration."""
    pos_embed: str | None = None
    rotary: str | None = None
    """Module that gives cos and sin for position ids."""
    rotary_pairs: Literal["halves", "neighbours"] = "halves"
    position_offset: int = 0
    """Rows of the position table before position 0."""
    ln1: str | None = None
    ln2: str | None = None
    post1: str | None = None
    """Norm of attention's output (sandwich norms), or of the residual after it (stream norms)."""
    post2: str | None = None
    norm_gain_offset: float = 0.0
    """Norm gains are stored minus this."""
    packing: Packing = "separate"
    q_norm: str | None = None
    k_norm: str | None = None
    norm_heads: Literal["each", "all"] = "each"
    """Whether q and k norms see one head at a time or all heads at once."""
    mlp_in: str | None = None
    """The MLP's first linear map, or the gate's where gated."""
    mlp_up: str | None = None
    act: str | Callable[[Any], Any] | None = None
    """Where the activation lies, or the function itself."""
    mlp_out: str | None = None
    scale: Callable[[Config, int, int], float] = field(default=lambda config, layer, d_head: d_head**-0.5)
    """Multiplier of q·k, by layer."""
    attn_cap: Callable[[Config], float | None] = field(default=lambda config: None)
    logit_cap: Callable[[Config], float | None] = field(default=lambda config: None)
    window: Callable[[Config, int], int | None] = field(default=lambda config, layer: None)
    """Sliding window of a layer: a query sees this many tokens, itself included."""
    softmax_fp32: bool = True
    """Softmax in float32 whatever the model's dtype."""


FAMILIES: Registry[Family] = Registry("family", group="interp.families", of=Family)


def register_family(row: Family) -> Family:
    """Add a family row; `interp run site_audit --model FOLDER` then checks it."""
    return FAMILIES.add(row.name, row)


def family_of(model_type: str) -> Family | None:
    """The row for a Hugging Face model type, or None."""
    for name in FAMILIES:
        if model_type in FAMILIES[name].model_types:
            return FAMILIES[name]
    return None


def _decoder(config: Config) -> dict[str, Any]:
    """Geometry under the names that most configurations use."""
    heads = config.num_attention_heads
    return {
        "layers": config.num_hidden_layers,
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "d_model": config.hidden_size,
        "d_head": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "d_mlp": config.intermediate_size,
        "d_vocab": config.vocab_size,
        "n_ctx": config.max_position_embeddings,
    }


def _layer_window(config: Config, layer: int) -> int | None:
    """The window where the configuration lists layer types."""
    types = getattr(config, "layer_types", None)
    sliding = types is None or types[layer] == "sliding_attention"
    window = getattr(config, "sliding_window", None)
    return window if sliding else None


register_family(
    Family(
        "gpt2",
        ("gpt2",),
        layers="transformer.h",
        embed="transformer.wte",
        pos_embed="transformer.wpe",
        final="transformer.ln_f",
        unembed="lm_head",
        ln1="ln_1",
        ln2="ln_2",
        attn="attn",
        qkv=("attn.c_attn",),
        packing="thirds",
        out="attn.c_proj",
        mlp_in="mlp.c_fc",
        act="mlp.act",
        mlp_out="mlp.c_proj",
        softmax_fp32=False,
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

_LLAMA: dict[str, Any] = {
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
}

register_family(
    Family("llama", ("llama",), **_LLAMA, geometry=lambda config: {**_decoder(config), "gated": True, "rotary": True})
)

register_family(
    Family(
        "gpt_neox",
        ("gpt_neox",),
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
        geometry=lambda config: {**_decoder(config), "rotary": True, "parallel": config.use_parallel_residual},
    )
)

register_family(
    Family(
        "gemma2",
        ("gemma2",),
        **{
            **_LLAMA,
            "ln2": "pre_feedforward_layernorm",
            "post1": "post_attention_layernorm",
            "post2": "post_feedforward_layernorm",
        },
        norm_gain_offset=1.0,
        scale=lambda config, layer, d_head: config.query_pre_attn_scalar**-0.5,
        attn_cap=lambda config: config.attn_logit_softcapping,
        logit_cap=lambda config: config.final_logit_softcapping,
        window=_layer_window,
        geometry=lambda config: {
            **_decoder(config),
            "gated": True,
            "rotary": True,
            "post_norm": True,
            "logit_cap": config.final_logit_softcapping is not None,
        },
    )
)

register_family(
    Family(
        "native",
        ("native",),
        layers="layers",
        embed="embed",
        pos_embed="pos_embed",
        rotary="rotary",
        final="final",
        unembed="unembed",
        ln1="ln1",
        ln2="ln2",
        post1="post1",
        post2="post2",
        attn="attn",
        qkv=("attn.q", "attn.k", "attn.v"),
        out="attn.o",
        mlp_in="mlp.fc",
        act="mlp.act",
        mlp_out="mlp.proj",
        softmax_fp32=False,
        geometry=lambda config: config.geometry(),
    )
)
