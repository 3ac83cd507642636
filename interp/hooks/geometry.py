"""`Geometry`: the shape of a model, as sites and edits need to know it."""

from __future__ import annotations

from dataclasses import dataclass

from interp.registry import UserError


@dataclass(frozen=True)
class Geometry:
    """The shape of a model: sizes, and which parts it has. Plain data, no tensors.

    >>> g = Geometry(layers=2, heads=4, kv_heads=2, d_model=32, d_head=8, d_mlp=64, d_vocab=50, n_ctx=16)
    >>> g.group  # query heads that share a key and a value
    2
    """

    layers: int
    heads: int
    kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    n_ctx: int
    parallel: bool = False
    """Attention and MLP both read resid_pre, both are added at once."""
    mlp: bool = True
    gated: bool = False
    experts: int = 0
    experts_used: int = 0
    """Experts that a token passes, of those."""
    pos_embed: bool = False
    """Learned positions added to the residual stream."""
    rotary: bool = False
    qk_positions: bool = False
    """Learned positions are added to what queries and keys read, and nowhere else."""
    pre_norm: bool = True
    """The weights read the residual through ln1 and ln2."""
    post_norm: bool = False
    """Sublayer outputs pass a norm of their own before they are added."""
    stream_norm: bool = False
    """The residual itself is normed after each addition (the original, post-LayerNorm transformer)."""
    final_norm: bool = True
    qk_norm: bool = False
    qk_norm_apart: bool = True
    """A head's query or key is normed without regard to the other heads, by the gain of all."""
    causal: bool = True
    skip: bool = True
    """Sublayer outputs are added to the residual; without it they replace it."""
    logit_cap: bool = False
    unembed: bool = True

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UserError(f"{self.heads} heads cannot share {self.kv_heads} kv heads evenly")

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.heads // self.kv_heads
