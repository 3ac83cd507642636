"""Gemma 1 to 3. Embeddings are scaled by their own module; gains are stored minus 1."""

from __future__ import annotations

from typing import Any

from interp.models.family import Family, layer_window, register_family
from interp.models.rows.llama import LLAMA, QK_NORMS, gated

_SANDWICH: dict[str, Any] = {
    **LLAMA,
    "ln2": "pre_feedforward_layernorm",
    "post1": "post_attention_layernorm",
    "post2": "post_feedforward_layernorm",
    "norm_gain_offset": 1.0,
    "scale": lambda config, layer, d_head: config.query_pre_attn_scalar**-0.5,
    "logit_cap": lambda config: config.final_logit_softcapping,
    "window": layer_window,
}


def _two_ways(config: Any) -> str | None:
    return "bidirectional attention is not causal" if getattr(config, "use_bidirectional_attention", None) else None


register_family(Family("gemma", ("gemma",), **LLAMA, norm_gain_offset=1.0, refuse=_two_ways, geometry=gated))

register_family(
    Family(
        "gemma2",
        ("gemma2",),
        **_SANDWICH,
        attn_cap=lambda config: config.attn_logit_softcapping,
        refuse=_two_ways,
        geometry=lambda config: gated(config, post_norm=True, logit_cap=config.final_logit_softcapping is not None),
    )
)

register_family(
    Family(
        "gemma3",
        ("gemma3_text",),
        **_SANDWICH,
        **QK_NORMS,
        rotary_kind=lambda config, layer: config.layer_types[layer],
        refuse=_two_ways,
        geometry=lambda config: gated(
            config, post_norm=True, qk_norm=True, logit_cap=config.final_logit_softcapping is not None
        ),
    )
)
