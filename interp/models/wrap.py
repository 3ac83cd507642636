"""`wrap(module, layers=…)`: every site, edit and hook of this package on a plain PyTorch module, left as it is.

    interp.wrap(nn.TransformerEncoder(…))                       vectors [batch, pos, d_model] go in and come out
    interp.wrap(nn.TransformerEncoderLayer(…), causal=True)     one layer, pre- or post-norm
    interp.wrap(nn.MultiheadAttention(…))                       attention alone, read by itself
    interp.wrap(mine, layers="blocks", row=layer_row(…), embed="embed", unembed="head", causal=True)

Steps: find the layers; take the row that says where their parts lie (built in for torch's own layers, `layer_row`
for a user's); read sizes off the weights; bind a family row to a small container that holds the same layer
objects. The module's own forward is not called, so PyTorch's fused fast paths, which skip the places that sites
name, are never taken; numbers equal the module's in eval mode up to rounding (`WrappedModel.difference`).

Limits: dropout is off, as in eval mode, whatever mode the module is in; attention of a layer to another sequence
(decoders), `bias_k`, `bias_v`, `add_zero_attn` and masks other than causal and padding are refused or unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.hooks.prompts import Prompts
from interp.models.family import Family
from interp.models.model import Model
from interp.models.net import Net, find
from interp.registry import UserError

Place = str | Callable[[Tensor], Tensor] | None


@dataclass(frozen=True)
class WrapConfig:
    """Sizes of a wrapped stack, read off its weights."""

    sizes: dict[str, Any]

    def geometry(self) -> dict[str, Any]:
        """Fields of `Geometry`."""
        return self.sizes


def layer_row(name: str = "wrapped", **parts: Any) -> Family:
    """The family row of one's own layer: where its parts lie, as dotted paths inside the layer.

    Parts: `attn` (module), `qkv` (paths; one for an `nn.MultiheadAttention`, with `packing="in_proj"`), `out`, `ln1`,
    `ln2` (read through), `post1`, `post2` (applied to the residual after each addition), `mlp_in`, `mlp_out`,
    `act` (path or function), `mlp_up`, `scale`, … as in `interp.models.family.Family`.

    >>> row = layer_row(attn="attn", qkv=("attn",), packing="in_proj", out="attn.out_proj", ln1="norm1")
    >>> row.ln1, row.packing
    ('norm1', 'in_proj')
    """
    known = {
        "layers": "layers", "embed": "embed", "pos_embed": "pos_embed", "final": "final", "unembed": "unembed",
        "softmax_fp32": False, "geometry": lambda config: config.geometry(),
    }  # fmt: skip
    fields = set(Family.__dataclass_fields__)
    strange = sorted(set(parts) - fields)
    if strange:
        from interp.registry import unknown

        raise unknown("part of a layer", strange[0], sorted(fields - set(known) - {"name", "model_types"}))
    missing = [p for p in ("attn", "qkv", "out") if p not in parts]
    if missing:
        raise UserError(f"a layer's row must say where its {', '.join(missing)} lie{'s' * (len(missing) == 1)}")
    return Family(name, (), **{**known, **parts})


_MHA: dict[str, Any] = {
    "attn": "self_attn", "qkv": ("self_attn",), "packing": "in_proj", "out": "self_attn.out_proj",
    "mlp_in": "linear1", "act": "activation", "mlp_out": "linear2",
}  # fmt: skip


def torch_row(layer: nn.Module) -> Family:
    """The row of a layer of torch's own; UserError for others."""
    if isinstance(layer, nn.TransformerEncoderLayer):
        if layer.norm_first:
            return layer_row("torch_encoder_pre", **_MHA, ln1="norm1", ln2="norm2")
        return layer_row("torch_encoder_post", **_MHA, post1="norm1", post2="norm2")
    if isinstance(layer, nn.MultiheadAttention):
        return layer_row("torch_attention", attn="", qkv=("",), packing="in_proj", out="out_proj")
    raise UserError(
        f"wrap knows nn.TransformerEncoderLayer and nn.MultiheadAttention by itself; for {type(layer).__name__} say "
        "where its parts lie: row=interp.models.wrap.layer_row(attn=…, qkv=…, out=…, ln1=…, mlp_in=…, …)"
    )


class Called(nn.Module):
    """A user's function as a module, so that it can stand where a module is expected."""

    def __init__(self, fn: Callable[[Tensor], Tensor], like: Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.like = nn.Parameter(torch.empty(0, dtype=like.dtype, device=like.device), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


class Inputs(nn.Module):
    """The embedding of a stack that reads vectors: a token is the number of a vector that was given."""

    reads_tokens = False

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.like = nn.Parameter(torch.empty(0, dtype=like.dtype, device=like.device), requires_grad=False)
        self.given: list[Tensor] = []
        self.count = 0

    def keep(self, x: Float[Tensor, "batch pos d_model"]) -> Tensor:
        """Remember vectors; their numbers `[batch, pos]`."""
        flat = x.detach().reshape(-1, x.shape[-1]).to(self.like)
        tokens = torch.arange(self.count, self.count + len(flat), device=self.like.device)
        self.given = [torch.cat([*self.given, flat])]
        self.count += len(flat)
        return tokens.view(x.shape[:2])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.given[0][tokens]


class Container(nn.Module):
    """The user's own layer objects under the names that a family row uses; copies nothing."""

    def __init__(self, layers: Sequence[nn.Module], **parts: nn.Module | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for name, part in parts.items():
            if part is not None:
                self.add_module(name, part)


class WrappedModel(Model):
    """A user's module with sites. `run` takes token ids where it has an embedding, else vectors or `inputs(x)`."""

    def __init__(
        self, outer: nn.Module, container: Container, row: Family, config: WrapConfig, plain: Callable[..., Tensor]
    ) -> None:
        super().__init__(container, row, config, name=type(outer).__name__)
        self.outer, self._plain = outer, plain

    @property
    def takes_vectors(self) -> bool:
        return isinstance(self.module.embed, Inputs)

    @property
    def _weight(self) -> Tensor:
        container: Any = self.module
        return next(container.layers.parameters())  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        """Where the first layer's weights lie."""
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    def inputs(self, x: Float[Tensor, "batch pos d_model"], mask: Bool[Tensor, "batch pos"] | None = None) -> Prompts:
        """Prompts that stand for these vectors, to run, average or patch with; the model keeps the vectors."""
        embed = self.module.embed
        if not isinstance(embed, Inputs):
            raise UserError(f"{self.name} has an embedding: give token ids, not vectors")
        if x.shape[-1] != self.geometry.d_model:
            raise UserError(f"{self.name} reads vectors of width {self.geometry.d_model}, got {tuple(x.shape)}")
        return Prompts.of(embed.keep(x), mask)

    def prompts(self, x: Any, mask: Tensor | None = None, *, bos: bool = False) -> Prompts:
        """Prompts of this model from prompts, vectors, or token ids where it has an embedding."""
        if isinstance(x, Tensor) and x.is_floating_point():
            return self.inputs(x[None] if x.ndim == 2 else x, mask)
        if self.takes_vectors and not isinstance(x, Prompts):
            raise UserError(f"{self.name} reads vectors [batch, pos, {self.geometry.d_model}], got {type(x).__name__}")
        return super().prompts(x, mask, bos=bos)

    def _check(self, prompts: Prompts) -> None:
        embed = self.module.embed
        if not isinstance(embed, Inputs):
            super()._check(prompts)
        elif int(prompts.tokens.max()) >= embed.count:
            raise UserError(f"these prompts are not of {self.name}: make them with its inputs(x)")

    def _plain_logits(self, prompts: Prompts) -> Tensor:
        container: Any = self.module
        x = container.embed(prompts.tokens) if self.takes_vectors else prompts.tokens
        training = self.outer.training
        self.outer.eval()
        try:
            with torch.no_grad():
                return self._plain(x, prompts.mask if prompts.padded else None)
        finally:
            _restore(self.outer, training)

    def difference(self, x: Any, mask: Tensor | None = None) -> float:
        """Largest absolute difference between a run without edits and the module's own output, on real tokens."""
        prompts = self.prompts(x, mask)
        ours, theirs = self.run(prompts).logits, self._plain_logits(prompts)
        if theirs.shape != ours.shape:
            raise UserError(
                f"{self.name} returns {tuple(theirs.shape)}, the wrapped run {tuple(ours.shape)}: embed= and unembed= "
                "do not yet say all that the module does, or its mask is another"
            )
        return float((ours - theirs)[prompts.mask].abs().max())

    def _refuse_container_hooks(self, net: Net | None = None) -> None:
        (net or self.net).refuse_stray_hooks(self.outer)


def _restore(module: nn.Module, training: bool) -> None:
    if training:
        module.train()


def wrap(
    module: nn.Module,
    layers: str | Sequence[nn.Module] | None = None,
    *,
    row: Family | None = None,
    heads: int | None = None,
    causal: bool = False,
    embed: Place = None,
    pos_embed: str | None = None,
    final: str | None = None,
    unembed: Place = None,
    plain: Callable[..., Tensor] | None = None,
    n_ctx: int = 1_000_000,
) -> WrappedModel:
    """A model of this package over the layers of a plain module, which is not altered.

    Args:
        layers: dotted path to the list of layers, or the layers; None for torch's own encoder, layer or attention.
        row: where a layer's parts lie (`layer_row`); torch's own layers need none.
        heads: query heads; read off an `nn.MultiheadAttention`, needed for other attention.
        causal: each position reads itself and those before it.
        embed: path or function from token ids to vectors; None where the module reads vectors.
        pos_embed: path of a position table (`nn.Embedding`) that is added to the embedding.
        final, unembed: path of the norm after the last layer; path or function to the output.
        plain: how to call the module itself, `(x, mask) -> output`; `mask` is None or True on real tokens.

    Raises UserError for a module of unknown layers, a row that does not fit, and attention with extra keys.

    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> wrap(layer).run(torch.randn(2, 5, 32), capture="pattern")["L0.pattern"].shape
    torch.Size([2, 4, 5, 5])
    """
    stack, final_module = _layers(module, layers)
    family = row or torch_row(stack[0])
    for layer in stack:
        _check_attention(layer, family)
    final_found = _at(module, final) if final else final_module
    like = next(stack[0].parameters())
    entry: nn.Module = Inputs(like) if embed is None else _part(module, embed, like)
    exit_: nn.Module | None = None if unembed is None else _part(module, unembed, like)
    positions = None if pos_embed is None else _at(module, pos_embed)
    container = Container(stack, embed=entry, pos_embed=positions, final=final_found, unembed=exit_)
    container.train(module.training)
    sizes = _sizes(stack[0], family, heads)
    sizes |= {
        "layers": len(stack), "d_vocab": _outputs(exit_, entry, sizes["d_model"]), "n_ctx": n_ctx, "causal": causal,
        "pos_embed": positions is not None, "final_norm": final_found is not None, "unembed": exit_ is not None,
        "skip": not isinstance(stack[0], nn.MultiheadAttention),
    }  # fmt: skip
    call = plain or (lambda x, mask: _call(module, x, mask, causal))
    return WrappedModel(module, container, family, WrapConfig(sizes), call)


def _layers(module: nn.Module, layers: str | Sequence[nn.Module] | None) -> tuple[list[nn.Module], nn.Module | None]:
    if layers is None:
        if isinstance(module, nn.TransformerEncoder):
            return list(module.layers), module.norm
        return [module], None
    found: Any = _at(module, layers) if isinstance(layers, str) else layers
    if isinstance(found, nn.TransformerEncoder):
        return list(found.layers), found.norm
    try:
        stack = list(found)
    except TypeError:
        stack = [found]
    if not stack or not all(isinstance(layer, nn.Module) for layer in stack):
        raise UserError(f"layers={layers!r} names no layers of {type(module).__name__}")
    return stack, None


def _at(module: nn.Module, path: str) -> nn.Module:
    found = find(module, path)
    if found is None:
        from interp.registry import unknown

        raise unknown(f"part of {type(module).__name__}", path, [n for n, _ in module.named_modules() if n])
    return found  # type: ignore[no-any-return]


def _part(module: nn.Module, place: str | Callable[[Tensor], Tensor], like: Tensor) -> nn.Module:
    if isinstance(place, str):
        return _at(module, place)
    return place if isinstance(place, nn.Module) else Called(place, like)


def _check_attention(layer: nn.Module, family: Family) -> None:
    if family.packing != "in_proj":
        return
    mha = find(layer, family.qkv[0])
    if not isinstance(mha, nn.MultiheadAttention):
        raise UserError(f"packing='in_proj' is for nn.MultiheadAttention, {family.qkv[0]!r} is {type(mha).__name__}")
    if mha.in_proj_weight is None:
        raise UserError("attention with keys or values of another width (kdim, vdim) is not self-attention")
    if mha.bias_k is not None or mha.add_zero_attn:
        raise UserError("attention with bias_k, bias_v or add_zero_attn reads keys that no position has")


def _sizes(layer: nn.Module, family: Family, heads: int | None) -> dict[str, Any]:
    """Widths and traits of a layer, read off its parts."""
    from interp.models.net import matrix, need

    out = matrix(need(layer, family.out, family))
    mha = find(layer, family.attn)
    if heads is None:
        heads = getattr(mha, "num_heads", None)
    if not isinstance(heads, int):
        raise UserError(f"say how many heads a {type(layer).__name__} has: heads=…")
    if out.shape[0] % heads:
        raise UserError(f"heads={heads} do not divide the {out.shape[0]} inputs of {family.out!r}")
    d_head = out.shape[0] // heads
    kv = heads
    if family.packing == "separate":
        kv = matrix(need(layer, family.qkv[1], family)).shape[1] // d_head
    mlp_in = find(layer, family.mlp_in)
    return {
        "heads": heads, "kv_heads": kv, "d_model": out.shape[1], "d_head": d_head,
        "d_mlp": 0 if mlp_in is None else matrix(mlp_in).shape[1], "mlp": mlp_in is not None,
        "gated": find(layer, family.mlp_up) is not None, "pre_norm": find(layer, family.ln1) is not None,
        "stream_norm": find(layer, family.post1) is not None, "qk_norm": find(layer, family.q_norm) is not None,
    }  # fmt: skip


def _outputs(unembed: nn.Module | None, embed: nn.Module, d_model: int) -> int:
    """Width of the output where it can be told (the vocabulary of a language model)."""
    for part, name in ((unembed, "out_features"), (embed, "num_embeddings")):
        size = getattr(part, name, None)
        if isinstance(size, int):
            return size
    return d_model


def _call(module: nn.Module, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """A module's own forward, masks as torch's own modules take them (True: not to be read)."""
    if not isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer | nn.MultiheadAttention):
        if mask is not None:
            raise UserError(f"say how {type(module).__name__} takes a padding mask: wrap(…, plain=lambda x, mask: …)")
        return module(x)  # type: ignore[no-any-return]
    width = x.shape[1]
    ahead = torch.ones(width, width, dtype=torch.bool, device=x.device).triu(1) if causal else None
    padding = None if mask is None else ~mask
    inner = module.layers[0] if isinstance(module, nn.TransformerEncoder) else module
    attention = inner if isinstance(inner, nn.MultiheadAttention) else inner.self_attn
    x = x if attention.batch_first else x.transpose(0, 1)
    if isinstance(module, nn.MultiheadAttention):
        out = module(x, x, x, attn_mask=ahead, key_padding_mask=padding, need_weights=False)[0]
    elif isinstance(module, nn.TransformerEncoder):
        out = module(x, mask=ahead, src_key_padding_mask=padding)
    else:
        out = module(x, src_mask=ahead, src_key_padding_mask=padding)
    return out if attention.batch_first else out.transpose(0, 1)  # type: ignore[no-any-return]
