"""What every site is, written out a second time: an independent re-computation in float64.

Each address has one definition, a function of the sites it is made of, from the checkpoint's weights and the
prompts alone. `block` is not called, nothing is captured, no order of operations is shared. Two uses:

- one step: a definition applied to captured values must give the captured value of its site;
- the whole: with one site replaced, everything downstream is computed anew.

The sites a definition reads also say what lies downstream of what. Limits: rotary angles and activation
functions come from the checkpoint's own modules, and a family's multipliers from its row (`checkpoint_logits`
holds them to the checkpoint's own forward pass); a site without a definition here (one a user registered) is
audited without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.prompts import Prompts
from interp.interventions.audit.mixtures import mixture
from interp.models.grid import rotary_angles
from interp.models.model import Model
from interp.models.net import Net, matrix
from interp.models.norms import Norm
from interp.models.weights import HeadWeights, embedding, head_weights, unembedding

Values = Mapping[Address, Tensor]


@dataclass(frozen=True, eq=False)
class Definition:
    """One site as a function of others; `fn` gets their values in the order of `parents`."""

    address: Address
    parents: tuple[Address, ...]
    fn: Callable[..., Tensor]


class Definitions:
    """The definitions of one model's sites over one batch of prompts, in the order of the forward pass."""

    def __init__(self, model: Model, prompts: Prompts) -> None:
        self.net: Net = model.net
        self.prompts = prompts
        self.steps: dict[Address, Definition] = {}
        self._head_weights = lru_cache(maxsize=None)(self._read_heads)
        for step in self._all():
            self.steps[step.address] = step

    def one(self, address: Address, values: Values) -> Tensor:
        """A site from the values of the sites it is made of."""
        step = self.steps[address]
        return step.fn(*(values[p].double() for p in step.parents))

    def whole(self) -> dict[Address, Tensor]:
        """Every site, from the tokens."""
        values: dict[Address, Tensor] = {}
        for address in self.steps:
            values[address] = self.one(address, values)
        return values

    def after(self, base: Values, edited: Address, new: Tensor) -> dict[Address, Tensor]:
        """`base` with one site replaced and all that lies downstream of it computed anew."""
        values = {**base, edited: new.double()}
        for address in self.downstream(edited):
            values[address] = self.one(address, values)
        return values

    def downstream(self, edited: Address) -> list[Address]:
        """Every site that reads the edited one, directly or not, in order; itself left out."""
        reached = {edited}
        for address, step in self.steps.items():
            if reached & set(step.parents):
                reached.add(address)
        return [a for a in self.steps if a in reached and a != edited]

    def children(self, address: Address) -> list[Address]:
        """The sites that read this one directly."""
        return [a for a, step in self.steps.items() if address in step.parents]

    # -- the pass, site by site -------------------------------------------------------------------------------

    def _all(self) -> Iterator[Definition]:
        g = self.net.geometry
        first: tuple[Address, ...] = (Address("embed"),)
        yield Definition(Address("embed"), (), self._embed)
        if g.pos_embed:
            yield Definition(Address("pos_embed"), (), self._pos_embed)
            first = (*first, Address("pos_embed"))
        yield Definition(Address("resid_pre", 0), first, _sum)
        for layer in range(g.layers):
            if layer:
                yield Definition(Address("resid_pre", layer), (Address("resid_post", layer - 1),), _sum)
            yield from self._attention(layer)
            yield from self._mlp(layer)
        last = Address("resid_post", g.layers - 1)
        yield from self._norm("ln_final", None, self.net.final, g.final_norm, last)
        name = "logits_pre_cap" if g.logit_cap else "logits"
        yield Definition(Address(name), (Address("ln_final"),), self._unembed)
        if g.logit_cap:
            cap = self.net.logit_cap
            assert cap is not None
            yield Definition(Address("logits"), (Address(name),), lambda x: cap * torch.tanh(x / cap))

    def _embed(self) -> Float[Tensor, "batch pos d_model"]:
        return embedding(self.net).double()[self.prompts.tokens]

    def _pos_embed(self) -> Float[Tensor, "batch pos d_model"]:
        return self._table()[self.prompts.positions + self.net.family.position_offset]

    def _table(self) -> Float[Tensor, "n d_model"]:
        assert self.net.pos_embed is not None
        weight = self.net.pos_embed.weight
        assert isinstance(weight, Tensor)
        return weight.detach().double()

    def _unembed(self, x: Tensor) -> Tensor:
        weight, bias = unembedding(self.net)
        return x @ weight.double() + bias.double()

    def _norm(
        self, name: str, layer: int | None, norm: Norm, there: bool, reads: Address, own: Address | None = None
    ) -> Iterator[Definition]:
        """A norm and its denominator; `own` is a copy of what it reads whose changes reach this norm alone."""
        extra = () if own is None else (own,)
        if not there or not norm:
            yield Definition(Address(name, layer), (own or reads,), _sum)
            return
        scale = Address(f"{name}_scale", layer)
        yield Definition(scale, (reads,), lambda x: _denominator(norm, x))

        def normed(x: Tensor, s: Tensor, copy: Tensor | None = None) -> Tensor:
            y = _shift(norm, _centre(norm, x) / s)
            return y if copy is None else y + _apply(norm, copy) - _apply(norm, x)

        yield Definition(Address(name, layer), (reads, scale, *extra), normed)

    def _attention(self, layer: int) -> Iterator[Definition]:
        g, part = self.net.geometry, self.net.layers[layer]

        def at(site: str) -> Address:
            return Address(site, layer)

        resid = at("resid_pre")
        yield from self._norm("ln1", layer, part.ln1, g.pre_norm, resid)
        for which in "qkv":
            heads = g.heads if which == "q" else g.kv_heads
            own = at(f"{which}_input")
            yield Definition(own, (resid,), lambda x, n=heads: x[:, :, None].expand(-1, -1, n, -1))
            yield Definition(at(which), (at("ln1"), own, resid), self._project(layer, which))
            read = at(which)
            if g.qk_norm and which != "v":
                yield Definition(at(f"{which}_norm"), (read,), self._head_norm(layer, which))
                read = at(f"{which}_norm")
            if which != "v":
                yield Definition(at(f"{which}_rot"), (read,), lambda x: self._rotate(x, layer))
        yield Definition(at("scores"), (at("q_rot"), at("k_rot")), lambda q, k: self._scores(layer, q, k))
        yield Definition(at("pattern"), (at("scores"),), lambda s: self._softmax(layer, s))
        yield Definition(at("z"), (at("pattern"), at("v")), lambda p, v: self._mix(layer, p, v))
        yield Definition(
            at("head_out"), (at("z"),),
            lambda z: einsum(z, self._head_weights(layer).W_O, "b p head d_head, head d_head m -> b p head m"),
        )  # fmt: skip
        out = at("attn_out_pre") if g.post_norm else at("attn_out")
        yield Definition(out, (at("head_out"),), lambda h: h.sum(2) + self._head_weights(layer).b_O)
        if g.post_norm:
            yield Definition(at("attn_out"), (out,), lambda x: _apply(part.post1, x))
        if not g.mlp:
            yield Definition(at("resid_post"), (resid, at("attn_out")), self._join(part.post1))
        elif not g.parallel:
            yield Definition(at("resid_mid"), (resid, at("attn_out")), self._join(part.post1))

    def _mlp(self, layer: int) -> Iterator[Definition]:
        g, part = self.net.geometry, self.net.layers[layer]
        if not g.mlp:
            return

        def at(site: str) -> Address:
            return Address(site, layer)

        resid = at("resid_pre") if g.parallel else at("resid_mid")
        yield Definition(at("mlp_in"), (resid,), _sum)
        yield from self._norm("ln2", layer, part.ln2, g.pre_norm, resid, at("mlp_in"))
        yield from self._routed(layer) if g.experts else self._hidden(layer)
        if g.parallel:
            yield Definition(at("resid_post"), (resid, at("attn_out"), at("mlp_out")), _sum)
        else:
            yield Definition(at("resid_post"), (resid, at("mlp_out")), self._join(part.post2))

    def _routed(self, layer: int) -> Iterator[Definition]:
        ln2, router, out = (Address(site, layer) for site in ("ln2", "router", "mlp_out"))
        routed = self.net.layers[layer].routed
        assert routed is not None
        yield Definition(router, (ln2,), lambda x: _linear(routed.router, x))
        yield Definition(out, (ln2, router), lambda x, logits: mixture(routed, x, logits))

    def _hidden(self, layer: int) -> Iterator[Definition]:
        g, part = self.net.geometry, self.net.layers[layer]

        def at(site: str) -> Address:
            return Address(site, layer)

        yield Definition(at("mlp_pre"), (at("ln2"),), lambda x: _linear(part.mlp_in, x))
        act = part.act
        assert act is not None
        if g.gated:
            yield Definition(at("mlp_up"), (at("ln2"),), lambda x: _linear(part.mlp_up, x))
            yield Definition(at("mlp_post"), (at("mlp_pre"), at("mlp_up")), lambda x, up: act(x) * up)
        else:
            yield Definition(at("mlp_post"), (at("mlp_pre"),), act)
        out = at("mlp_out_pre") if g.post_norm else at("mlp_out")
        yield Definition(out, (at("mlp_post"),), lambda x: _linear(part.mlp_out, x))
        if g.post_norm:
            yield Definition(at("mlp_out"), (out,), lambda x: _apply(part.post2, x))

    # -- pieces -----------------------------------------------------------------------------------------------

    def _join(self, norm: Norm) -> Callable[[Tensor, Tensor], Tensor]:
        g = self.net.geometry

        def join(resid: Tensor, out: Tensor) -> Tensor:
            total = resid + out if g.skip else out
            return _apply(norm, total) if g.stream_norm else total

        return join

    def _read_heads(self, layer: int) -> HeadWeights:
        w = head_weights(self.net, layer)
        return HeadWeights(*(getattr(w, name).double() for name in HeadWeights.__dataclass_fields__))

    def _project(self, layer: int, which: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        g, norm = self.net.geometry, self.net.layers[layer].ln1
        name = which.upper()

        def read(x: Tensor) -> Tensor:
            return _apply(norm, x) if g.pre_norm else x

        def project(x: Tensor, own: Tensor, resid: Tensor) -> Tensor:
            w = self._head_weights(layer)
            weight: Tensor = getattr(w, f"W_{name}")
            bias: Tensor = getattr(w, f"b_{name}")
            if g.qk_positions and which != "v":
                x = x + self._table()[self.prompts.positions]
            each = x[:, :, None] + read(own) - read(resid)[:, :, None]
            return einsum(each, weight, "b p head m, head m d_head -> b p head d_head") + bias

        return project

    def _head_norm(self, layer: int, which: str) -> Callable[[Tensor], Tensor]:
        norm = Norm(getattr(self.net.layers[layer], f"{which}_norm"), self.net.family.norm_gain_offset)
        if self.net.family.norm_heads != "all":
            return lambda x: _apply(norm, x)
        return lambda x: _apply(norm, x.flatten(2)).view_as(x)

    def _rotate(self, x: Float[Tensor, "batch pos head d_head"], layer: int) -> Float[Tensor, "batch pos head d_head"]:
        """Pairs of coordinates as complex numbers, turned by their angle."""
        kind = self.net.layers[layer].rotary_kind
        angles = rotary_angles(self.net, self.prompts.positions, torch.float32, kind)
        if angles is None:
            return x
        cos, sin = angles
        width = cos.shape[-1]
        halves = self.net.family.rotary_pairs == "halves"
        left, right = (slice(0, width // 2), slice(width // 2, width)) if halves else (
            slice(0, width, 2), slice(1, width, 2))  # fmt: skip
        turn = torch.complex(cos[..., left].double(), sin[..., left].double())[:, :, None]
        turned = torch.complex(x[..., left], x[..., right]) * turn
        out = x.clone()
        out[..., left], out[..., right] = turned.real, turned.imag
        return out

    def allowed(self, layer: int) -> Bool[Tensor, "batch 1 query key"]:
        """Which key each query may read: real tokens, not later ones, and inside the layer's window."""
        place = torch.arange(self.prompts.width, device=self.prompts.device)
        query, key = place[:, None], place[None]
        ok = torch.ones_like(query * key, dtype=torch.bool)
        if self.net.geometry.causal:
            ok = key <= query
            window = self.net.layers[layer].window
            if window is not None:
                ok = ok & (query - key < window)
        real = self.prompts.mask
        return (ok[None] & real[:, :, None] & real[:, None])[:, None]

    def _scores(self, layer: int, q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
        part, group = self.net.layers[layer], self.net.geometry.group
        keys = k[:, :, [h // group for h in range(q.shape[2])]]
        raw = part.scale * einsum(q, keys, "b query head d_head, b key head d_head -> b head query key")
        if self.net.family.alibi:
            raw = raw + self._alibi()[:, None, None] * self.prompts.positions[:, None, None]
        if part.cap is not None:
            raw = part.cap * torch.tanh(raw / part.cap)
        return raw.masked_fill(~self.allowed(layer), float(torch.finfo(self.net.dtype).min))

    def _alibi(self) -> Float[Tensor, " head"]:
        """Slopes 2^(−8k/n), k = 1 … n; for head counts between powers of 2, every other one of the next power's."""
        heads = self.net.geometry.heads
        n = max(p for p in (2**i for i in range(16)) if p <= heads)
        powers = [-8 * k / n for k in range(1, n + 1)] + [-8 * k / (2 * n) for k in range(1, 2 * n, 2)]
        return 2.0 ** torch.tensor(powers[:heads], dtype=torch.float64, device=self.prompts.device)

    def _softmax(self, layer: int, scores: Tensor) -> Tensor:
        weight = scores.masked_fill(~self.allowed(layer), -torch.inf)
        weight = (weight - weight.amax(-1, keepdim=True).clamp(min=-1e300)).exp()
        return weight / weight.sum(-1, keepdim=True).clamp(min=1e-300)

    def _mix(self, layer: int, pattern: Tensor, v: Tensor) -> Float[Tensor, "batch pos head d_head"]:
        group = self.net.geometry.group
        values = v[:, :, [h // group for h in range(pattern.shape[1])]]
        read = pattern * self.allowed(layer)
        return einsum(read, values, "b head query key, b key head d_head -> b query head d_head")


def _sum(*parts: Tensor) -> Tensor:
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


def _centre(norm: Norm, x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True) if norm.centred else x


def _denominator(norm: Norm, x: Tensor) -> Tensor:
    return (_centre(norm, x).square().mean(-1, keepdim=True) + norm.eps).sqrt()


def _shift(norm: Norm, unit: Tensor) -> Tensor:
    gain, bias = norm.gain, norm.bias
    out = unit * (gain.detach().double() if isinstance(gain, Tensor) else gain)
    return out if bias is None else out + bias.detach().double()


def _apply(norm: Norm, x: Tensor) -> Tensor:
    return _shift(norm, _centre(norm, x) / _denominator(norm, x)) if norm else x


def _linear(module: torch.nn.Module | None, x: Tensor) -> Tensor:
    assert module is not None
    out = x @ matrix(module).detach().double()
    bias = getattr(module, "bias", None)
    return out if bias is None else out + bias.detach().double()
