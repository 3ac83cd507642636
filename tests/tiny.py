"""Tiny models for tests: those of `interp.models.tiny` under short names, and native variants.

    tiny("gpt2")             an interp Model          kinds: gpt2 llama neox … native:<variant>
    hf("gpt2")               the Hugging Face module behind it

HF_KINDS are all kinds of Hugging Face checkpoints.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from interp.graph import Graph
from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.models.native import Native, NativeConfig
from interp.models.tiny import HEADS, LAYERS, POSITIONS, VOCAB, WIDTH, model, module, seeded
from interp.models.tiny import KINDS as HF_KINDS
from interp.registry import UserError

FIRST = ("gpt2", "llama", "neox", "neox_sequential", "gemma2")
"""The fixtures of the list of faults; every test of a method runs on these."""
FURTHER = tuple(pytest.param(kind, marks=pytest.mark.long) for kind in HF_KINDS if kind not in FIRST)
"""The other Hugging Face kinds, for tests of a method: in the long tier."""
SUMMING_FURTHER = tuple(param for param in FURTHER if param.values[0] != "opt_post")
"""Those whose residual stream is a sum of what its writers wrote."""

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

KINDS: tuple[str, ...] = (*FIRST, *(f"native:{variant}" for variant in NATIVE_KINDS))
"""What every test of a method runs on; with FURTHER, every kind that `tiny` makes."""


def tiny(kind: str, seed: int = 0, **over: Any) -> Model:
    """An interp Model of a tiny random checkpoint; `over` replaces fields of its configuration."""
    if kind.startswith("native:"):
        own = native(kind.removeprefix("native:"), seed, **over)
        return Model(own, FAMILIES["native"], own.config, name=f"tiny-{kind}")
    return model(kind, seed, **over)


def hf(kind: str, seed: int = 0, **over: Any) -> nn.Module:
    """The Hugging Face module of a kind, as `tiny` wraps it."""
    return module(kind, seed, **over)


def native(variant: str, seed: int = 0, **over: Any) -> Native:
    """The native module of a variant."""
    config = NativeConfig(**{**_NATIVE, **NATIVE_KINDS[variant], **over})
    made = seeded(lambda: Native(config), seed)
    assert isinstance(made, Native)
    return made


def refuses_ungrouped(model: Model) -> bool:
    """Whether a model has no ungrouped graph; where it has none, one clear line says so."""
    if model.geometry.group == 1 or model.geometry.qk_norm_apart:
        return False
    with pytest.raises(UserError, match="norms the keys of a layer's kv heads with regard to one another"):
        Graph(model.geometry, ungrouped=True)
    return True
