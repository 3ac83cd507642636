"""Routed MLPs: Mixtral, Qwen2-MoE, Qwen3-MoE."""

from __future__ import annotations

from typing import Any

from interp.models.family import Config, Family, Routing, layer_window, one_window, register_family
from interp.models.rows.llama import LLAMA, QK_NORMS, gated

_ROUTED: dict[str, Any] = {
    **LLAMA, "mlp_in": None, "mlp_up": None, "act": None, "mlp_out": None, "router": "mlp.gate",
    "experts": "mlp.experts", "window": one_window,
}  # fmt: skip


def _qwen_routing(config: Config) -> Routing:
    return Routing(config.num_experts_per_tok, config.norm_topk_prob)


def _qwen_geometry(config: Config) -> dict[str, Any]:
    return gated(
        config, d_mlp=config.moe_intermediate_size, experts=config.num_experts,
        experts_used=config.num_experts_per_tok,
    )  # fmt: skip


def _dense_layers(config: Config) -> str | None:
    if config.mlp_only_layers or config.decoder_sparse_step != 1 or not config.num_experts:
        why = "some of its layers have plain MLPs (mlp_only_layers, decoder_sparse_step, num_experts)"
        return f"{why}; all must be routed"
    return None


register_family(
    Family(
        "mixtral",
        ("mixtral",),
        **_ROUTED,
        routing=lambda config: Routing(config.num_experts_per_tok, fp32=True),
        geometry=lambda config: gated(
            config, experts=config.num_local_experts, experts_used=config.num_experts_per_tok
        ),
    )
)

register_family(
    Family(
        "qwen2_moe",
        ("qwen2_moe",),
        **{**_ROUTED, "window": layer_window},
        routing=_qwen_routing,
        shared_expert="mlp.shared_expert",
        shared_gate="mlp.shared_expert_gate",
        refuse=_dense_layers,
        geometry=_qwen_geometry,
    )
)

register_family(
    Family(
        "qwen3_moe",
        ("qwen3_moe",),
        **_ROUTED,
        **QK_NORMS,
        routing=_qwen_routing,
        refuse=_dense_layers,
        geometry=lambda config: {**_qwen_geometry(config), "qk_norm": True},
    )
)
