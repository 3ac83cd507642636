"""Tiny random checkpoints of every family, from a seed and a Hugging Face configuration; nothing is downloaded.

    module("gptj")              the Hugging Face module           KINDS names them: a family, or one form of it
    model("gptj")               an interp Model around it
    save("gptj", folder)        as a folder that `load_model` reads

Two layers, four heads, 50 tokens, 16 positions; eager attention, no dropout, eval mode. 0.15·randn is added to
every parameter, so that biases and gains matter. Every call makes a new module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from interp.models.families import family_of
from interp.models.model import Model
from interp.registry import UserError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

NOISE = 0.15
VOCAB, POSITIONS, WIDTH, LAYERS, HEADS = 50, 16, 32, 2, 4

_NO_SPECIAL: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_DECODER: dict[str, Any] = {
    "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "hidden_size": WIDTH, "intermediate_size": 64,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, **_NO_SPECIAL,
}  # fmt: skip
_GROUPED: dict[str, Any] = {**_DECODER, "num_key_value_heads": 2}
_NEOX: dict[str, Any] = {**_DECODER, "hidden_dropout": 0.0, "attention_dropout": 0.0, "rotary_pct": 0.25}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **_NO_SPECIAL,
}  # fmt: skip
_OPT: dict[str, Any] = {
    "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "hidden_size": WIDTH, "ffn_dim": 64,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "dropout": 0.0, "word_embed_proj_dim": WIDTH,
    **_NO_SPECIAL,
}  # fmt: skip
_FALCON: dict[str, Any] = {  # heads of 16: their scale is a power of 2, as in the published models
    "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "hidden_size": 64, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "ffn_hidden_size": 96, "alibi": False, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, **_NO_SPECIAL,
}  # fmt: skip
_WINDOWS: dict[str, Any] = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS: dict[str, Any] = {
    **_GROUPED, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": False,
}  # fmt: skip

# kind -> (Hugging Face model type, configuration)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt_neo": (
        "gpt_neo",
        {
            "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "hidden_size": WIDTH, "intermediate_size": 64,
            "num_layers": LAYERS, "num_heads": HEADS, "attention_types": [[["local", "global"], 1]], "window_size": 4,
            "embed_dropout": 0.0, "attention_dropout": 0.0, "resid_dropout": 0.0, **_NO_SPECIAL,
        },
    ),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "neox": ("gpt_neox", {**_NEOX, "use_parallel_residual": True}),
    "neox_sequential": ("gpt_neox", {**_NEOX, "use_parallel_residual": False}),
    "opt": ("opt", _OPT),
    "opt_post": ("opt", {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24}),
    "bloom": (
        "bloom",
        {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "hidden_dropout": 0.0,
         "attention_dropout": 0.0, **_NO_SPECIAL},
    ),
    "falcon": ("falcon", {**_FALCON, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}),
    "falcon_new": ("falcon", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_sequential": (
        "falcon",
        {**_FALCON, "multi_query": False, "parallel_attn": False, "new_decoder_architecture": False, "bias": True},
    ),
    "llama": ("llama", _GROUPED),
    "llama_ungrouped": ("llama", {**_DECODER, "num_key_value_heads": HEADS}),
    "mistral": ("mistral", {**_GROUPED, "sliding_window": 4, "head_dim": 8}),
    "qwen2": ("qwen2", {**_GROUPED, **_WINDOWS, "use_sliding_window": True}),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 12}),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 12}),
    "gemma2": ("gemma2", {**_GROUPED, "head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 30.0}),
    "gemma3": ("gemma3_text", {**_GROUPED, **_WINDOWS, "head_dim": 8}),
    "phi3": ("phi3", {**_GROUPED, "sliding_window": None}),
    "olmo2": ("olmo2", _GROUPED),
    "granite": (
        "granite",
        {
            **_GROUPED, "embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3,
            "logits_scaling": 1.7,
        },
    ),
    "stablelm": ("stablelm", {**_GROUPED, "use_qkv_bias": True}),
    "stablelm_parallel": ("stablelm", {**_GROUPED, "use_parallel_residual": True, "qk_layernorm": True}),
    "cohere": ("cohere", {**_GROUPED, "logit_scale": 0.3}),
    "cohere_qk": ("cohere", {**_GROUPED, "logit_scale": 0.3, "use_qk_norm": True}),
    "mixtral": ("mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, "norm_topk_prob": True, "head_dim": 8}),
}  # fmt: skip

# model types without a row, for the bridge -> configuration
ROWLESS: dict[str, dict[str, Any]] = {
    "phi": _DECODER,
    "olmo": _DECODER,
    "olmo3": _GROUPED,
    "olmoe": {**_DECODER, "num_experts": 4, "num_experts_per_tok": 2},
    "cohere2": _GROUPED,
    "glm": {**_GROUPED, "head_dim": 8},
    "smollm3": _GROUPED,
    "starcoder2": _GROUPED,
    "gpt_bigcode": _GPT2,
    "mpt": {"vocab_size": VOCAB, "max_seq_len": POSITIONS, "d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS},
    "apertus": _GROUPED,
    "arcee": _GROUPED,
    "ernie4_5": _GROUPED,
    "exaone4": {**_GROUPED, **_WINDOWS},
    "falcon_mamba": {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 8},
    "glm4": {**_GROUPED, "head_dim": 8},
    "gpt_oss": {**_GROUPED, **_WINDOWS, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {**_GROUPED, "head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 4},
    "mamba": {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 8},
    "ministral3": {**_GROUPED, "head_dim": 8},
    "nemotron": _GROUPED,
    "openai-gpt": _GPT2,
    "rwkv": {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS},
    "seed_oss": {**_GROUPED, "head_dim": 8},
    "xglm": {"vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "d_model": WIDTH, "ffn_dim": 64,
             "num_layers": LAYERS, "attention_heads": HEADS, "dropout": 0.0, "attention_dropout": 0.0},
}  # fmt: skip

LAYER_FIELDS = ("n_layer", "num_layers", "num_hidden_layers")
HEAD_FIELDS = ("n_head", "num_heads", "num_attention_heads")


def module(kind: str, seed: int = 0, **over: Any) -> nn.Module:
    """The Hugging Face module of a kind; `over` replaces fields of its configuration."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if kind not in KINDS:
        raise unknown("tiny checkpoint", kind, list(KINDS))
    model_type, fields = KINDS[kind]
    config = AutoConfig.for_model(model_type, **{**fields, **over})
    return seeded(lambda: AutoModelForCausalLM.from_config(config, attn_implementation="eager"), seed)


def rowless(model_type: str, seed: int = 0) -> nn.Module:
    """The Hugging Face module of a family without a row."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **ROWLESS[model_type])
    return seeded(lambda: AutoModelForCausalLM.from_config(config, attn_implementation="eager"), seed)


def model(kind: str, seed: int = 0, **over: Any) -> Model:
    """An interp Model of a kind."""
    made = module(kind, seed, **over)
    config: Any = made.config
    family = family_of(config.model_type)
    if family is None:
        raise UserError(f"no family row for {config.model_type}")
    return Model(made, family, config, name=f"tiny-{kind}")


def save(kind: str, folder: Path, seed: int = 0, **over: Any) -> Path:
    """Write a kind as a checkpoint folder without a tokenizer."""
    from interp.models.hf_folder import quiet

    made: Any = module(kind, seed, **over)
    with quiet():
        made.save_pretrained(folder)
    return folder


def resized(kind: str, *, layers: int | None = None, heads: int | None = None) -> dict[str, Any]:
    """Fields that change a kind's number of layers or heads (one head: one kv head, one kind of layer)."""
    fields = KINDS[kind][1]
    over: dict[str, Any] = {}
    if layers is not None:
        over[next(f for f in LAYER_FIELDS if f in fields)] = layers
        if "layer_types" in fields:
            over["layer_types"] = (fields["layer_types"] * layers)[:layers]
        if "attention_types" in fields:
            over["attention_types"] = [[["local"], layers]]
    if heads is not None:
        over[next(f for f in HEAD_FIELDS if f in fields)] = heads
        for name in ("num_key_value_heads", "num_kv_heads"):
            if name in fields:
                over[name] = min(heads, fields[name])
    return over


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What `make` makes, in eval mode, with noise on every parameter; the global generator is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make().eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(NOISE * torch.randn_like(parameter))
    return made
