"""A small transformer of our own, for models that no Hugging Face architecture describes.

With or without MLPs; causal or bidirectional; pre-, post- or no norm; skip paths on or off; learned, rotary or
query/key-only positions. Its parts are plain leaf modules; its forward pass is the one in `forward.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from interp.hooks.prompts import Prompts

Act = Literal["relu", "gelu", "silu"]


class NativeConfig(BaseModel):
    """Sizes and traits of a native model; saved as its `config.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_type: Literal["native"] = "native"
    layers: int
    heads: int
    d_model: int
    d_vocab: int
    n_ctx: int
    kv_heads: int | None = None
    d_head: int | None = None
    d_mlp: int = 0
    """0 means attention only."""
    d_out: int | None = None
    """Width of the output where it is not the vocabulary."""
    act: Act = "gelu"
    causal: bool = True
    norm: Literal["pre", "post", "none"] = "pre"
    final_norm: bool | None = None
    """By default a final norm goes with pre-norm."""
    skip: bool = True
    positions: Literal["learned", "rotary", "qk", "none"] = "learned"
    rotary_base: float = 10_000.0
    bias: bool = True
    unembed_bias: bool = False
    eps: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.heads

    def geometry(self) -> dict[str, Any]:
        """Fields of `Geometry`."""
        return {
            "layers": self.layers, "heads": self.heads, "kv_heads": self.kv_heads or self.heads,
            "d_model": self.d_model, "d_head": self.head_width, "d_mlp": self.d_mlp, "d_vocab": self.d_vocab,
            "n_ctx": self.n_ctx, "mlp": self.d_mlp > 0, "pos_embed": self.positions == "learned",
            "rotary": self.positions == "rotary", "qk_positions": self.positions == "qk",
            "pre_norm": self.norm == "pre", "stream_norm": self.norm == "post", "final_norm": self.has_final_norm,
            "causal": self.causal, "skip": self.skip,
        }  # fmt: skip

    @property
    def has_final_norm(self) -> bool:
        return self.norm == "pre" if self.final_norm is None else self.final_norm


class Rotary(nn.Module):
    """Cosines and sines by position, `(x, positions) -> cos, sin` of shape `[rows, pos, d_head]`."""

    def __init__(self, d_head: int, base: float) -> None:
        super().__init__()
        self.d_head, self.base = d_head, base

    def forward(self, x: Tensor, positions: Int[Tensor, "rows pos"]) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.d_head, 2, device=positions.device, dtype=torch.float32) / self.d_head
        angle = positions[..., None].float() * self.base**-half
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


class NativeAttention(nn.Module):
    """Four projections; how they are used is the forward function's business."""

    def __init__(self, c: NativeConfig) -> None:
        super().__init__()
        kv = (c.kv_heads or c.heads) * c.head_width
        self.q = nn.Linear(c.d_model, c.heads * c.head_width, bias=c.bias)
        self.k = nn.Linear(c.d_model, kv, bias=c.bias)
        self.v = nn.Linear(c.d_model, kv, bias=c.bias)
        self.o = nn.Linear(c.heads * c.head_width, c.d_model, bias=c.bias)


class NativeMLP(nn.Module):
    """Two linear maps and an activation."""

    def __init__(self, c: NativeConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(c.d_model, c.d_mlp, bias=c.bias)
        self.act = {"relu": nn.ReLU(), "gelu": nn.GELU(), "silu": nn.SiLU()}[c.act]
        self.proj = nn.Linear(c.d_mlp, c.d_model, bias=c.bias)


class NativeBlock(nn.Module):
    """One block's parts; norms are present as the configuration says."""

    def __init__(self, c: NativeConfig) -> None:
        super().__init__()
        self.attn = NativeAttention(c)
        if c.norm != "none":
            names = ("ln1", "ln2") if c.norm == "pre" else ("post1", "post2")
            for name in names[: 2 if c.d_mlp else 1]:
                self.add_module(name, nn.LayerNorm(c.d_model, eps=c.eps))
        if c.d_mlp:
            self.mlp = NativeMLP(c)


class Native(nn.Module):
    """The model: `module(tokens, mask) -> logits [batch, pos, d_out]`."""

    def __init__(self, config: NativeConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embed = nn.Embedding(c.d_vocab, c.d_model)
        if c.positions in ("learned", "qk"):
            self.pos_embed = nn.Embedding(c.n_ctx, c.d_model)
        if c.positions == "rotary":
            self.rotary = Rotary(c.head_width, c.rotary_base)
        self.layers = nn.ModuleList([NativeBlock(c) for _ in range(c.layers)])
        if c.has_final_norm:
            self.final = nn.LayerNorm(c.d_model, eps=c.eps)
        self.unembed = nn.Linear(c.d_model, c.d_out or c.d_vocab, bias=c.unembed_bias)

    def forward(
        self, tokens: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"] | None = None
    ) -> Float[Tensor, "batch pos d_out"]:
        """Logits, with gradients to the parameters where autograd is on."""
        from interp.models.families import FAMILIES
        from interp.models.forward import forward
        from interp.models.grid import Grid
        from interp.models.net import bind

        net = bind(self, FAMILIES["native"], self.config)
        return forward(net, tokens, Grid.of(net, Prompts.of(tokens, mask), net.dtype))
