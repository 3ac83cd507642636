"""TransformerLens-like weight dictionaries, read as native models.

    embed.W_E [d_vocab, d_model]    pos_embed.W_pos [n_ctx, d_model]    unembed.W_U [d_model, d_out]  b_U [d_out]
    blocks.N.attn.W_Q W_K W_V [head, d_model, d_head]  b_Q b_K b_V [head, d_head]
    blocks.N.attn.W_O [head, d_head, d_model]          b_O [d_model]
    blocks.N.mlp.W_in [d_model, d_mlp]  b_in           W_out [d_mlp, d_model]  b_out
    blocks.N.ln1 ln2 and ln_final: w b [d_model], or nothing where a normalization without gain ("LNPre") is named

beside a config.json of that library's names (`n_layers`, `n_heads`, `attn_only`, `normalization_type` …).

Nothing is folded or centred; numbers are only laid out anew. A bias that no layer has counts as zero. Traits that
native models lack (gated MLPs, RMS norms, soft-caps, local attention …) raise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from einops import rearrange
from pydantic import ValidationError
from torch import Tensor

from interp.models.folder import check_tensors
from interp.models.native import NativeConfig
from interp.registry import UserError

NORMS: Mapping[str | None, str] = {None: "none", "LN": "pre", "LNPre": "pre"}
POSITIONS = {"standard": "learned", "rotary": "rotary", "shortformer": "qk", None: "none"}
ACTS = ("relu", "gelu", "silu")

SIZES = ("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx")

# settings of that library that change the numbers, with the values under which a native model computes the same
OFF = (False, None)
UNSET = (-1, -1.0, None)
SAME: Mapping[str, tuple[Any, ...]] = {
    "attn_scale": UNSET, "attn_scores_soft_cap": UNSET, "output_logits_soft_cap": UNSET, "use_attn_scale": (True,),
    "final_rms": OFF, "gated_mlp": OFF, "num_experts": (None, 0), "parallel_attn_mlp": OFF, "post_embedding_ln": OFF,
    "rotary_adjacent_pairs": OFF, "scale_attn_by_inverse_layer_idx": OFF, "use_local_attn": OFF, "use_qk_norm": OFF,
    "use_normalization_before_and_after": OFF, "rmsnorm_uses_offset": OFF, "use_NTK_by_parts_rope": OFF,
}  # fmt: skip

# causal masks, their fill value and rotary tables: saved by that library, computed here
BUFFERS = re.compile(r"^blocks\.\d+\.attn\.(mask|IGNORE|rotary_sin|rotary_cos)$")
BIASES = ("attn.b_Q", "attn.b_K", "attn.b_V", "attn.b_O", "mlp.b_in", "mlp.b_out")


def native_config(where: str, config: Mapping[str, Any], names: set[str]) -> NativeConfig:
    """The native configuration of such a config.json; `names` of the stored tensors tell which biases there are.

    Raises UserError for traits that native models lack.
    """
    for key in SIZES:
        if not isinstance(config.get(key), int) or config[key] < 1:
            raise UserError(f"{where}: config.json needs a whole number {key}, got {config.get(key)!r}")
    for key, fine in SAME.items():
        if key in config and config[key] not in fine and not _is_usual_scale(key, config):
            raise UserError(f"{where}: native models have no {key}={config[key]!r}; expected {fine[0]!r}")
    mlp = not config.get("attn_only", False)
    d_head = config.get("d_head") or config["d_model"] // config["n_heads"]
    if config.get("rotary_dim") not in (None, d_head):
        raise UserError(
            f"{where}: native models rotate whole heads; got rotary_dim={config['rotary_dim']}, d_head={d_head}"
        )
    try:
        return NativeConfig(
            layers=config["n_layers"],
            heads=config["n_heads"],
            kv_heads=config.get("n_key_value_heads"),
            d_model=config["d_model"],
            d_head=d_head,
            d_vocab=config["d_vocab"],
            d_out=_other(config.get("d_vocab_out"), config["d_vocab"]),
            n_ctx=config["n_ctx"],
            d_mlp=(config.get("d_mlp") or 4 * config["d_model"]) if mlp else 0,
            act=_choice(where, "act_fn", config.get("act_fn"), {a: a for a in ACTS}) if mlp else "gelu",
            norm=_choice(where, "normalization_type", config.get("normalization_type", "LN"), NORMS),  # type: ignore[arg-type]
            positions=_choice(
                where, "positional_embedding_type", config.get("positional_embedding_type", "standard"), POSITIONS
            ),
            causal=config.get("attention_dir", "causal") == "causal",
            rotary_base=float(config.get("rotary_base") or 10_000),
            bias=any(n.endswith(BIASES) for n in names),
            unembed_bias="unembed.b_U" in names,
            eps=float(config.get("eps") or 1e-5),
        )
    except ValidationError as error:
        raise UserError(f"{where}: config.json does not describe a native model: {complaints(error)}") from None


def complaints(error: ValidationError) -> str:
    """What pydantic found wrong, in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())


def _is_usual_scale(key: str, config: Mapping[str, Any]) -> bool:
    if key != "attn_scale":
        return False
    usual = (config.get("d_head") or config["d_model"] // config["n_heads"]) ** 0.5
    return bool(abs(float(config[key]) - usual) < 1e-6 * usual)


def _other(value: int | None, than: int) -> int | None:
    return None if value in (None, -1, than) else value


def _choice(where: str, key: str, given: Any, choices: Mapping[Any, str]) -> Any:
    if given not in choices:
        raise UserError(f"{where}: native models have no {key}={given!r}; there are: {', '.join(map(str, choices))}")
    return choices[given]


def layout(c: NativeConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes that a dictionary of this configuration must have (norms and biases included)."""
    kv, d, m, dh = c.kv_heads or c.heads, c.d_model, c.d_mlp, c.head_width
    shapes: dict[str, tuple[int, ...]] = {"embed.W_E": (c.d_vocab, d), "unembed.W_U": (d, c.d_out or c.d_vocab)}
    if c.positions in ("learned", "qk"):
        shapes["pos_embed.W_pos"] = (c.n_ctx, d)
    if c.unembed_bias:
        shapes["unembed.b_U"] = (c.d_out or c.d_vocab,)
    for n in range(c.layers):
        block = {
            "attn.W_Q": (c.heads, d, dh), "attn.W_K": (kv, d, dh), "attn.W_V": (kv, d, dh), "attn.b_O": (d,),
            "attn.W_O": (c.heads, dh, d), "attn.b_Q": (c.heads, dh), "attn.b_K": (kv, dh), "attn.b_V": (kv, dh),
        }  # fmt: skip
        block |= {"mlp.W_in": (d, m), "mlp.b_in": (m,), "mlp.W_out": (m, d), "mlp.b_out": (d,)} if m else {}
        if c.norm == "pre":
            block |= {f"{ln}.{part}": (d,) for ln in (("ln1", "ln2") if m else ("ln1",)) for part in "wb"}
        shapes |= {f"blocks.{n}.{name}": shape for name, shape in block.items()}
    if c.has_final_norm:
        shapes |= {"ln_final.w": (d,), "ln_final.b": (d,)}
    return shapes


def check(where: str, c: NativeConfig, config: Mapping[str, Any], found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UserError, in one line, where stored names or shapes do not fit the configuration."""
    given = {n: s for n, s in found.items() if not BUFFERS.match(n)}
    kinds = {re.sub(r"^blocks\.\d+\.", "", n) for n in given}
    absent = {b for b in BIASES if b not in kinds}
    if config.get("normalization_type") == "LNPre":
        absent |= {"ln1.w", "ln1.b", "ln2.w", "ln2.b", "ln_final.w", "ln_final.b"} - kinds
    expected = layout(c)
    optional = frozenset(n for n in expected if re.sub(r"^blocks\.\d+\.", "", n) in absent)
    check_tensors(where, given, expected, optional)


def native_state(c: NativeConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a native model from such a dictionary (checked before); absent biases are zeros, gains ones."""
    any_weight = weights["embed.W_E"]

    def get(name: str) -> Tensor:
        if name in weights:
            return weights[name]
        shape = shapes[name]
        return any_weight.new_ones(shape) if name.endswith(".w") else any_weight.new_zeros(shape)

    shapes = layout(c)
    state = {"embed.weight": get("embed.W_E"), "unembed.weight": get("unembed.W_U").T}
    if c.unembed_bias:
        state["unembed.bias"] = get("unembed.b_U")
    if c.positions in ("learned", "qk"):
        state["pos_embed.weight"] = get("pos_embed.W_pos")
    if c.has_final_norm:
        state |= {"final.weight": get("ln_final.w"), "final.bias": get("ln_final.b")}
    for n in range(c.layers):
        here, there = f"layers.{n}", f"blocks.{n}"
        for q, Q in zip("qkv", "QKV", strict=True):
            w = get(f"{there}.attn.W_{Q}")
            state[f"{here}.attn.{q}.weight"] = rearrange(w, "head d_model d_head -> (head d_head) d_model")
            if c.bias:
                state[f"{here}.attn.{q}.bias"] = get(f"{there}.attn.b_{Q}").flatten()
        w = get(f"{there}.attn.W_O")
        state[f"{here}.attn.o.weight"] = rearrange(w, "head d_head d_model -> d_model (head d_head)")
        if c.bias:
            state[f"{here}.attn.o.bias"] = get(f"{there}.attn.b_O")
        for ln in () if c.norm == "none" else ("ln1", "ln2") if c.d_mlp else ("ln1",):
            state |= {f"{here}.{ln}.weight": get(f"{there}.{ln}.w"), f"{here}.{ln}.bias": get(f"{there}.{ln}.b")}
        for native, lens in (("fc", "in"), ("proj", "out")) if c.d_mlp else ():
            state[f"{here}.mlp.{native}.weight"] = get(f"{there}.mlp.W_{lens}").T
            if c.bias:
                state[f"{here}.mlp.{native}.bias"] = get(f"{there}.mlp.b_{lens}")
    return {name: tensor.contiguous() for name, tensor in state.items()}
