"""Terms of the logit difference: what each writer of the residual stream puts into it, at one column.

The direction comes pulled back to the writer (`pulled.py`); a term is a dot product with what was written.

    components   embedding, positions, each layer's attention and MLP
    heads        attention split by head: z_h · W_O,h d
    neurons      the MLPs split by neuron too: post_i · (W_out d)_i

By source, a head's term is split by the token it reads: pattern[query, key] · (v[key] · W_O,h d). Biases are
rows of their own: the attention and MLP rows leave them out. The value bias is part of z, as in the model,
so it reaches the head rows through the pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.pulled import Pulled, pick, precise, scale_sites
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.models.linear import linear
from interp.models.net import Net
from interp.registry import UserError

Granularity = Literal["components", "heads", "neurons"]
Sources = Literal["none", "position", "label"]

OTHER = "other"
"""Source tokens that carry none of the labels, together."""


@dataclass(frozen=True)
class Component:
    """One term's writer, in the words of the result tables."""

    site: str
    layer: int | None = None
    head: int | None = None
    neuron: int | None = None
    pos: int | None = None
    """Real index of the token that a head reads, where terms are split by source."""
    pos_label: str | None = None
    components: str | None = None
    """`rest` where the row holds what is left of its place beside rows of its own."""

    @property
    def label(self) -> str:
        """A short name: `embed`, `L1.H3`, `L1.H3<-S2`, `L0.mlp_out`, `L0.N17`."""
        unit = f"H{self.head}" if self.head is not None else f"N{self.neuron}" if self.neuron is not None else self.site
        name = unit if self.layer is None else f"L{self.layer}.{unit}"
        source = self.pos_label if self.pos_label is not None else self.pos
        return name + ("" if source is None else f"<-{source}") + (f" ({self.components})" if self.components else "")

    def key(self) -> dict[str, Any]:
        """The columns of a result table that are this component's."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Detail:
    """How finely terms are split."""

    granularity: Granularity | str
    sources: Sources | str = "none"
    longest: int = 0
    """Real tokens of the longest prompt: how many rows a split by position has."""
    labels: tuple[str, ...] = ()


Pieces = Iterator[tuple[list[Component], Float[Tensor, "prompt component"]]]


def needed_sites(net: Net, detail: Detail) -> list[str]:
    """Addresses whose values the terms and the frozen scales need."""
    g = net.geometry
    pre = "_pre" if g.post_norm else ""
    attn = [f"attn_out{pre}"] if detail.granularity == "components" else ["z"]
    if detail.sources != "none":
        attn = ["pattern", "v"]
    mlp = [] if not g.mlp else ["mlp_post"] if detail.granularity == "neurons" else [f"mlp_out{pre}"]
    inside = [f"L{i}.{site}" for i in range(g.layers) for site in (*attn, *mlp)]
    return list(dict.fromkeys(["embed", *(["pos_embed"] if g.pos_embed else []), *inside, *scale_sites(net)]))


def all_terms(
    net: Net,
    acts: Mapping[str, Tensor],
    pulled: Pulled,
    bias: Tensor,
    columns: Tensor,
    prompts: Prompts,
    detail: Detail,
) -> Pieces:
    """Every term, piece by piece: the components of a piece and their numbers per prompt, in logits."""
    g = net.geometry
    for site in ("embed", "pos_embed") if g.pos_embed else ("embed",):
        written = pick(acts[site], columns)
        yield [Component(site)], (written * pulled.final.to(written.device)).sum(-1, keepdim=True)
    for layer in range(g.layers):
        yield _attention(net, layer, acts, pulled, columns, prompts, detail)
        yield from _bias("attn_bias", layer, pulled.attn_bias[layer])
        if g.mlp:
            yield _mlp(net, layer, acts, pulled, columns, detail)
            yield from _bias("mlp_bias", layer, pulled.mlp_bias[layer])
    yield from _bias("final_norm_bias", None, pulled.final_bias)
    if getattr(net.unembed, "bias", None) is not None:
        yield from _bias("unembed_bias", None, bias)


def _bias(site: str, layer: int | None, term: Float[Tensor, " prompt"] | None) -> Pieces:
    if term is not None:
        yield [Component(site, layer)], term[:, None]


def _attention(
    net: Net,
    layer: int,
    acts: Mapping[str, Tensor],
    pulled: Pulled,
    columns: Tensor,
    prompts: Prompts,
    detail: Detail,
) -> tuple[list[Component], Tensor]:
    way = pulled.attn[layer]
    if detail.granularity == "components":
        term = _whole(net.geometry, f"L{layer}.attn_out", acts, way, columns, net.layers[layer].out)
        return [Component("attn_out", layer)], term
    heads = range(net.geometry.heads)
    read = rearrange(way @ precise(linear(net.layers[layer].out)).T, "prompt (head d_head) -> prompt head d_head",
                     head=len(heads))  # fmt: skip
    if detail.sources == "none":
        z = pick(acts[f"L{layer}.z"], columns)
        return [Component("head_out", layer, h) for h in heads], (z * read).sum(-1)
    by_key = _by_key(acts[f"L{layer}.pattern"], acts[f"L{layer}.v"], read, columns, net.geometry.group)
    if detail.sources == "position":
        split = _real(by_key, prompts, detail.longest)
        at = [Component("head_out", pos=p) for p in range(detail.longest)]
    else:
        split = _labelled(by_key, prompts, detail.labels)
        at = [Component("head_out", pos_label=name) for name in (*detail.labels, OTHER)]
    components = [replace(one, layer=layer, head=h) for h in heads for one in at]
    return components, rearrange(split, "prompt head source -> prompt (head source)")


def _whole(
    g: Geometry, site: str, acts: Mapping[str, Tensor], way: Tensor, columns: Tensor, out: torch.nn.Module | None
) -> Float[Tensor, "prompt 1"]:
    """The term of a sublayer's whole output without its bias, as it is before any post-norm."""
    written = pick(acts[f"{site}_pre" if g.post_norm else site], columns)
    bias = getattr(out, "bias", None)
    return ((written if bias is None else written - precise(bias)) * way).sum(-1, keepdim=True)


def _mlp(
    net: Net, layer: int, acts: Mapping[str, Tensor], pulled: Pulled, columns: Tensor, detail: Detail
) -> tuple[list[Component], Tensor]:
    way, out = pulled.mlp[layer], net.layers[layer].mlp_out
    if detail.granularity != "neurons":
        return [Component("mlp_out", layer)], _whole(net.geometry, f"L{layer}.mlp_out", acts, way, columns, out)
    assert out is not None
    post = pick(acts[f"L{layer}.mlp_post"], columns)
    terms = post * (way @ precise(linear(out)).T)
    return [Component("mlp_post", layer, neuron=i) for i in range(terms.shape[1])], terms


def _by_key(
    pattern: Float[Tensor, "prompt head query key"],
    v: Float[Tensor, "prompt key kv_head d_head"],
    read: Float[Tensor, "prompt head d_head"],
    columns: Int[Tensor, " prompt"],
    group: int,
) -> Float[Tensor, "prompt head key"]:
    """A head's term split by the token it reads; query head h reads kv head h // group."""
    rows = torch.arange(len(columns), device=pattern.device)
    weight = precise(pattern[rows, :, columns.clamp(min=0).to(pattern.device)])
    grouped = rearrange(read, "prompt (kv_head group) d_head -> prompt kv_head group d_head", group=group)
    value = einsum(precise(v), grouped, "prompt key kv d, prompt kv group d -> prompt kv group key")
    return weight * rearrange(value, "prompt kv group key -> prompt (kv group) key")


def _real(by_key: Tensor, prompts: Prompts, longest: int) -> Float[Tensor, "prompt head source"]:
    """Keys as real indices, from 0 to the longest prompt's last; NaN where a prompt has no such token."""
    index = torch.arange(longest, device=by_key.device)[None] + prompts.starts[:, None].to(by_key.device)
    inside = index < (prompts.starts + prompts.mask.sum(1))[:, None].to(by_key.device)
    at = index.clamp(max=by_key.shape[-1] - 1)[:, None].expand(-1, by_key.shape[1], -1)
    return torch.where(inside[:, None], by_key.gather(2, at), torch.nan)


def _labelled(by_key: Tensor, prompts: Prompts, labels: tuple[str, ...]) -> Float[Tensor, "prompt head source"]:
    """Keys by label, and all others together; NaN where a prompt lacks the label."""
    columns = torch.stack([prompts.column(name) for name in labels], 1).to(by_key.device)
    at = columns.clamp(min=0)[:, None].expand(-1, by_key.shape[1], -1)
    held = torch.where(columns[:, None] >= 0, by_key.gather(2, at), torch.nan)
    rest = by_key.sum(2, keepdim=True) - held.nansum(2, keepdim=True)
    return torch.cat([held, rest], 2)


def check_labels(prompts: Prompts, labels: tuple[str, ...]) -> None:
    """UserError where there is no label, or two labels of a prompt name one token (their terms would not sum)."""
    if not labels:
        raise UserError("a split by source label needs prompts that carry labels; by position needs none")
    for i, one in enumerate(labels):
        for other in labels[i + 1 :]:
            same = (prompts.labels[one] == prompts.labels[other]) & (prompts.labels[one] >= 0)
            if bool(same.any()):
                raise UserError(
                    f"labels {one!r} and {other!r} name the same token of prompt {int(same.int().argmax())}, so a "
                    "split by label would count it twice; name other labels with labels=, or split by position"
                )
