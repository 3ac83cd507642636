"""Tiny models for tests: the four fixtures M1 to M4, sequential GPT-NeoX, and native variants.

    tiny("gpt2")             an interp Model          kinds: gpt2 llama neox neox_sequential gemma2 native:<variant>
    hf("gpt2")               the Hugging Face module behind it

Random weights from `seed`, eager attention, no dropout, eval mode; 0.15·randn added to every parameter, so that
biases and gains matter. Every call makes a new module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from interp.models.families import FAMILIES, family_of
from interp.models.model import Model
from interp.models.native import Native, NativeConfig

NOISE = 0.15
VOCAB, POSITIONS, WIDTH, LAYERS, HEADS = 50, 16, 32, 2, 4

_DECODER: dict[str, Any] = {
    "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "hidden_size": WIDTH, "intermediate_size": 64,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
}  # fmt: skip
_NEOX: dict[str, Any] = {**_DECODER, "hidden_dropout": 0.0, "attention_dropout": 0.0, "rotary_pct": 0.25}

# kind -> (Hugging Face model type, configuration)
HF_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "gpt2",
        {
            "vocab_size": VOCAB, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "bos_token_id": None, "eos_token_id": None,
        },
    ),
    "llama": ("llama", {**_DECODER, "num_key_value_heads": 2}),
    "neox": ("gpt_neox", {**_NEOX, "use_parallel_residual": True}),
    "neox_sequential": ("gpt_neox", {**_NEOX, "use_parallel_residual": False}),
    "gemma2": (
        "gemma2",
        {
            **_DECODER, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 30.0,
        },
    ),
}  # fmt: skip

_NATIVE: dict[str, Any] = {
    "d_vocab": VOCAB, "n_ctx": POSITIONS, "d_model": WIDTH, "layers": LAYERS, "heads": HEADS, "d_mlp": 64,
}  # fmt: skip

# variant -> what differs from: MLPs, causal, pre-norm, skip paths, learned positions
NATIVE_KINDS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm": "post"},
    "none": {"norm": "none"},
    "attn_only": {"d_mlp": 0},
    "attn_only_none": {"d_mlp": 0, "norm": "none"},
    "attn_only_post": {"d_mlp": 0, "norm": "post"},
    "bidirectional": {"causal": False},
    "bidirectional_post": {"causal": False, "norm": "post", "act": "relu"},
    "no_skip": {"skip": False},
    "rotary": {"positions": "rotary", "kv_heads": 2},
    "qk": {"positions": "qk"},
    "no_positions": {"positions": "none", "act": "silu"},
    "no_bias": {"bias": False},
}

KINDS: tuple[str, ...] = (*HF_KINDS, *(f"native:{variant}" for variant in NATIVE_KINDS))
"""Every kind that `tiny` makes."""


def tiny(kind: str, seed: int = 0, **over: Any) -> Model:
    """An interp Model of a tiny random checkpoint; `over` replaces fields of its configuration."""
    if kind.startswith("native:"):
        module: nn.Module = native(kind.removeprefix("native:"), seed, **over)
        return Model(module, FAMILIES["native"], module.config, name=f"tiny-{kind}")
    module = hf(kind, seed, **over)
    config: Any = module.config
    family = family_of(config.model_type)
    assert family is not None, f"no family row for {config.model_type}"
    return Model(module, family, config, name=f"tiny-{kind}")


def hf(kind: str, seed: int = 0, **over: Any) -> nn.Module:
    """The Hugging Face module of a kind, as `tiny` wraps it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, fields = HF_KINDS[kind]
    config = AutoConfig.for_model(model_type, **{**fields, **over})
    return _random(lambda: AutoModelForCausalLM.from_config(config, attn_implementation="eager"), seed)


def native(variant: str, seed: int = 0, **over: Any) -> Native:
    """The native module of a variant."""
    config = NativeConfig(**{**_NATIVE, **NATIVE_KINDS[variant], **over})
    module = _random(lambda: Native(config), seed)
    assert isinstance(module, Native)
    return module


def _random(make: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module: nn.Module = make().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(NOISE * torch.randn_like(parameter))
    return module
