"""What a family row says, and the registry of rows.

A row says where a checkpoint's leaf modules lie and how its tensors are packed and scaled. The one forward
function in `block.py` reads nothing else. Paths are dotted; those of a block start at the block; `a|b` is the
first of the two that the checkpoint has. Rows hold no tensors and import no torch, so that they can be listed
at once. The rows themselves lie in `rows/`.
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
narrower under grouped queries); one module with each kv head's queries, key and value together; the packed
parameters of `nn.MultiheadAttention`, whose own forward is not called."""

NormHeads = Literal["each", "own", "listed", "all"]
"""What q and k norms see: one head at a time, with one gain for all; with a gain for each head; by a list of
modules, one for each head; or all heads at once."""


@dataclass(frozen=True)
class Routing:
    """How a router's logits become weights of experts: softmax over all, the largest `top_k` kept."""

    top_k: int
    normalise: bool = True
    """The kept weights are divided by their sum."""
    fp32: bool = False
    """The kept weights stay float32 whatever the model's dtype."""


def steady_length(config: Config) -> int | None:
    """Up to how many tokens rotary angles depend on positions alone; None where they always do.

    Beyond it, dynamic and long-context scalings change the angles of a whole batch by its longest prompt.
    """
    given = getattr(config, "rope_parameters", None) or {}
    nested = any(isinstance(value, dict) for value in given.values())
    lengths = [
        rope.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        or config.max_position_embeddings
        for rope in (given.values() if nested else [given])
        if isinstance(rope, dict) and rope.get("rope_type") in ("dynamic", "longrope")
    ]
    return min(map(int, lengths)) if lengths else None


@dataclass(frozen=True)
class Family:
    """Where the parts of one architecture lie and how they are put together.

    >>> FAMILIES["qwen3"].q_norm, FAMILIES["gptj"].rotary_pairs
    ('self_attn.q_norm', 'neighbours')
    """

    name: str
    model_types: tuple[str, ...]
    layers: str
    embed: str | tuple[str, ...]
    """Several: applied one after the other, those that the checkpoint has."""
    final: str | None
    unembed: str | tuple[str, ...]
    attn: str
    qkv: tuple[str, ...]
    out: str
    geometry: Callable[[Config], dict[str, Any]]
    """Fields of `Geometry` read off the configuration."""
    refuse: Callable[[Config], str | None] = field(default=lambda config: None)
    """Why a configuration of this type is not run, where it is not."""
    exact: bool = False
    """Logits are bit-identical to Hugging Face's eager attention on a CPU in float32."""
    pos_embed: str | None = None
    pos_keyword: str | None = None
    """Argument by which the position table takes position ids, where not the first; it adds the offset itself."""
    position_offset: int = 0
    """Rows of the position table before position 0."""
    rotary: str | None = None
    """Module that gives cos and sin for position ids."""
    rotary_kind: Callable[[Config, int], str | None] = field(default=lambda config, layer: None)
    """What the rotary module is asked for besides, by layer."""
    rotary_angles: Callable[[Any], Any] = field(default=lambda out: out)
    """The rotary module's output to (cos, sin), each as wide as what is turned."""
    rotary_pairs: Literal["halves", "neighbours"] = "halves"
    rotary_fp32: bool = False
    """Queries and keys are turned in float32 whatever the model's dtype."""
    steady_length: Callable[[Config], int | None] = field(default=steady_length)
    """Prompts longer than this are refused."""
    alibi: bool = False
    """Scores carry a bias: each head's slope times the key's position."""
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
    norm_heads: NormHeads = "each"
    mlp_in: str | None = None
    """The MLP's first linear map, or the gate's where gated."""
    mlp_up: str | None = None
    gate_up: str | None = None
    """One linear map that gives gate | up side by side, in the place of the two."""
    act: str | Callable[[Any], Any] | None = None
    """Where the activation lies, or the function itself."""
    mlp_out: str | None = None
    router: str | None = None
    """Routed MLPs: the module whose first output is the router's logits."""
    experts: str | None = None
    """The module that takes tokens, chosen experts and their weights."""
    routing: Callable[[Config], Routing] | None = None
    shared_expert: str | None = None
    """An MLP that every token passes besides, times the sigmoid of `shared_gate`."""
    shared_gate: str | None = None
    scale: Callable[[Config, int, int], float] = field(default=lambda config, layer, d_head: d_head**-0.5)
    """Multiplier of q·k, by layer."""
    scale_in_product: Callable[[Config], bool] = field(default=lambda config: False)
    """The product itself is asked for the multiplier: CPUs differ in which factor they give it to."""
    scale_queries: bool = False
    """The multiplier is applied to the queries before the product."""
    scale_divides: bool = False
    """Products are divided by the multiplier's inverse."""
    keys_lie: Literal["token", "head"] | None = None
    """How keys lie in memory as the scores' product reads them, where a family's own attention has them otherwise than
    here: all heads of a token together, or all tokens of a head. (None: as they are computed, shared ones repeated head
    by head.) Some CPUs' products round another way for it."""
    scores_fp32: Callable[[Config], bool] = field(default=lambda config: False)
    """Scores and softmax in float32 whatever the model's dtype."""
    attn_cap: Callable[[Config], float | None] = field(default=lambda config: None)
    logit_cap: Callable[[Config], float | None] = field(default=lambda config: None)
    window: Callable[[Config, int], int | None] = field(default=lambda config, layer: None)
    """Sliding window of a layer: a query sees this many tokens, itself included."""
    softmax_fp32: bool = True
    """Softmax in float32 whatever the model's dtype."""
    stream_first: bool = False
    """Parallel blocks add attention and then the MLP to the residual; else the two first, then the residual."""
    embed_times: Callable[[Config], float] = field(default=lambda config: 1.0)
    out_times: Callable[[Config], float] = field(default=lambda config: 1.0)
    """Multiplier of what attention and MLP add to the residual."""
    logits_times: Callable[[Config], float] = field(default=lambda config: 1.0)
    logits_over: Callable[[Config], float] = field(default=lambda config: 1.0)
    """Divisor of the logits."""


FAMILIES: Registry[Family] = Registry("family", group="interp.families", of=Family)


def register_family(row: Family) -> Family:
    """Add a family row; `interp run site_audit --model FOLDER` then checks it.

    >>> from dataclasses import replace
    >>> row = replace(FAMILIES["llama"], name="my_llama", model_types=("my_llama",))
    >>> register_family(row).name, family_of("my_llama") is row
    ('my_llama', True)
    >>> _ = FAMILIES._rows.pop("my_llama")  # this example's own
    """
    return FAMILIES.add(row.name, row)


def family_of(model_type: str) -> Family | None:
    """The row for a Hugging Face model type, or None."""
    for name in FAMILIES:
        if model_type in FAMILIES[name].model_types:
            return FAMILIES[name]
    return None


def decoder(config: Config, **more: Any) -> dict[str, Any]:
    """Geometry under the names that most configurations use; `more` adds fields or replaces them."""
    heads = config.num_attention_heads
    usual = {
        "layers": lambda: config.num_hidden_layers,
        "heads": lambda: heads,
        "kv_heads": lambda: getattr(config, "num_key_value_heads", None) or heads,
        "d_model": lambda: config.hidden_size,
        "d_head": lambda: getattr(config, "head_dim", None) or config.hidden_size // heads,
        "d_mlp": lambda: config.intermediate_size,
        "d_vocab": lambda: config.vocab_size,
        "n_ctx": lambda: config.max_position_embeddings,
    }
    return {**{name: read() for name, read in usual.items() if name not in more}, **more}


def split_width(config: Config) -> dict[str, int]:
    """Heads as wide as the stream divided among them, for checkpoints that read no `head_dim`."""
    return {"d_head": config.hidden_size // config.num_attention_heads}


def rotary_width(config: Config, d_head: int) -> int:
    """How many coordinates of a head are turned by position, as transformers counts them."""
    whole = getattr(config, "rotary_dim", None)
    if whole:
        return int(whole)
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return min(int(d_head * part.get("partial_rotary_factor", 1.0)) for part in parts)


def one_window(config: Config, layer: int) -> int | None:
    """The same window in every layer, whatever layer types the configuration lists."""
    window: int | None = config.sliding_window
    return window


def layer_window(config: Config, layer: int) -> int | None:
    """The window where the configuration lists layer types, in the layers that slide."""
    types = getattr(config, "layer_types", None)
    sliding = types is None or types[layer] == "sliding_attention"
    window = getattr(config, "sliding_window", None)
    return window if sliding else None
