"""The site registry: every named place in the forward pass, as data.

A site is added by one row here and one `tap` in `interp/models/block.py` (`attention.py`, `mlp.py`, or `forward.py`
outside the blocks). `site_audit` then holds it to the contract. *Derived* sites are not on the path the numbers take;
editing one applies the difference the edit makes to what is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interp.hooks.addresses import Address
from interp.registry import Registry, UserError, nearest, unknown
from interp.shapes import AXES

if TYPE_CHECKING:
    from interp.hooks.geometry import Geometry


def _always(_: Geometry) -> bool:
    return True


@dataclass(frozen=True)
class Site:
    """One named place: its axes, what it holds, and which models have it."""

    name: str
    axes: tuple[str, ...]
    meaning: str
    in_block: bool = True
    derived: bool = False
    cut: bool = False
    """Everything downstream is determined by the sites of this cut."""
    has: Callable[[Geometry], bool] = _always

    def __post_init__(self) -> None:
        strange = [a for a in self.axes if a not in AXES]
        if strange:
            raise UserError(f"site {self.name}: unknown axes {strange}; the words are {', '.join(AXES)}")

    @property
    def token_axis(self) -> int:
        """Index of the axis whose entries are the tokens that compute them: the queries of a pattern."""
        return self.axis("query" if "query" in self.axes else "pos")

    def axis(self, word: str) -> int:
        """Index of an axis; UserError where the site has none of that name."""
        if word not in self.axes:
            raise UserError(f"site {self.name} has no {word} axis; its axes are {' '.join(self.axes)}")
        return self.axes.index(word)

    def shape(self, geometry: Geometry) -> tuple[int | str, ...]:
        """Sizes where the model fixes them, words where the prompts do."""
        sizes = {
            "head": geometry.heads, "kv_head": geometry.kv_heads, "d_model": geometry.d_model,
            "d_head": geometry.d_head, "d_mlp": geometry.d_mlp, "expert": geometry.experts,
            "d_vocab": geometry.d_vocab, "1": 1,
        }  # fmt: skip
        return tuple(sizes.get(a, a) for a in self.axes)


class SiteList(dict[str, Site]):
    """The sites of one model, by name; shows itself as a table in a notebook."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({site.name: site for site in sites_of(geometry)})
        self.geometry = geometry

    def _repr_html_(self) -> str:
        from interp.plots.show import card

        rows = [
            {
                "site": s.name, "shape": " × ".join(map(str, s.shape(self.geometry))), "meaning": s.meaning,
                "address": f"L0.{s.name} … L{self.geometry.layers - 1}.{s.name}" if s.in_block else s.name,
                "derived": "derived" if s.derived else "",
            }
            for s in self.values()
        ]  # fmt: skip
        return card("Sites", {"sites": len(self)}, rows, most=len(rows))


SITES: Registry[Site] = Registry("site", group="interp.sites", of=Site)


def register_site(site: Site) -> Site:
    """Add a site row. A tap of that name must exist in the forward pass of the families that have it.

    >>> register_site(Site("my_gate", ("batch", "pos", "d_model"), "what my block multiplies by")).name in SITES
    True
    >>> _ = SITES._rows.pop("my_gate")  # this example's own
    """
    return SITES.add(site.name, site)


def _rows(names: str, axes: str, meaning: str, **traits: object) -> None:
    for name in names.split():
        register_site(Site(name, tuple(axes.split()), meaning, **traits))  # type: ignore[arg-type]


_STREAM, _Q, _KV = "batch pos d_model", "batch pos head d_head", "batch pos kv_head d_head"

_rows("embed", _STREAM, "token embedding, scaled as the family does", in_block=False, cut=True)
_rows("pos_embed", _STREAM, "learned position embedding", in_block=False, cut=True, has=lambda g: g.pos_embed)
_rows("resid_pre", _STREAM, "residual entering the block", cut=True)
_rows(
    "resid_mid",
    _STREAM,
    "residual between attention and MLP",
    cut=True,
    has=lambda g: g.mlp and not g.parallel,
)
_rows("resid_post", _STREAM, "residual leaving the block", cut=True)
_rows("attn_out", _STREAM, "exactly what attention adds to the residual")
_rows("mlp_out", _STREAM, "exactly what the MLP adds to the residual", has=lambda g: g.mlp)
_rows("attn_out_pre", _STREAM, "attention's output before its post-norm", has=lambda g: g.post_norm)
_rows("mlp_out_pre", _STREAM, "the MLP's output before its post-norm", has=lambda g: g.mlp and g.post_norm)
_rows("ln1", _STREAM, "what the attention weights receive")
_rows("ln2", _STREAM, "what the MLP weights receive", has=lambda g: g.mlp)
_rows("ln_final", _STREAM, "what the unembedding receives", in_block=False, cut=True)
_rows("mlp_in", _STREAM, "the residual as the MLP reads it, before ln2", derived=True, has=lambda g: g.mlp)
_rows("ln1_scale", "batch pos 1", "denominator of ln1", derived=True, has=lambda g: g.pre_norm)
_rows("ln2_scale", "batch pos 1", "denominator of ln2", derived=True, has=lambda g: g.mlp and g.pre_norm)
_rows("ln_final_scale", "batch pos 1", "denominator of the final norm", in_block=False, derived=True,
      has=lambda g: g.final_norm)  # fmt: skip
_rows("q", _Q, "query projection's output")
_rows("q_norm", _Q, "queries after their norm", has=lambda g: g.qk_norm)
_rows("q_rot", _Q, "queries as they meet the keys")
_rows("k", _KV, "key projection's output")
_rows("k_norm", _KV, "keys after their norm", has=lambda g: g.qk_norm)
_rows("k_rot", _KV, "keys as they meet the queries")
_rows("v", _KV, "value projection's output")
_rows("q_input", "batch pos head d_model", "the residual as each head's query reads it", derived=True)
_rows("k_input v_input", "batch pos kv_head d_model", "the residual as each kv head reads it", derived=True)
_rows("scores", "batch head query key", "the softmax's argument: cap, bias and mask included")
_rows("pattern", "batch head query key", "attention probabilities")
_rows("z", _Q, "each head's mixed values, before the output projection")
_rows("head_out", "batch pos head d_model", "each head's output through its slice of W_O", derived=True)
_rows("mlp_pre", "batch pos d_mlp", "the activation's input", has=lambda g: g.mlp and not g.experts)
_rows(
    "mlp_up",
    "batch pos d_mlp",
    "what the activation multiplies",
    has=lambda g: g.mlp and g.gated and not g.experts,
)
_rows(
    "mlp_post",
    "batch pos d_mlp",
    "what the MLP's output weights receive",
    has=lambda g: g.mlp and not g.experts,
)
_rows("router", "batch pos expert", "router logits of a mixture of experts", has=lambda g: g.experts > 0)
_rows(
    "logits_pre_cap",
    "batch pos d_vocab",
    "logits before the soft-cap",
    in_block=False,
    has=lambda g: g.logit_cap,
)
_rows("logits", "batch pos d_vocab", "next-token logits", in_block=False)


def sites_of(geometry: Geometry) -> list[Site]:
    """The sites a model of this geometry has, in registry order of the forward pass where known."""
    return [site for name in SITES if (site := SITES[name]).has(geometry)]


def resolve(address: str | Address, geometry: Geometry) -> list[Address]:
    """Concrete addresses of this model: a block site without a layer means every layer.

    UserError for a misspelt site (with the nearest names), a site the family lacks (with what exists), a
    layer outside the model, or a layer on a site outside the blocks.
    """
    parsed = Address.parse(address)
    site = _lookup(parsed.site, geometry)
    if not site.in_block:
        if parsed.layer is not None:
            raise UserError(f"site {site.name} lies outside the blocks and has no layer; write {site.name!r}")
        return [parsed]
    if parsed.layer is None:
        return [Address(site.name, layer) for layer in range(geometry.layers)]
    return [parsed.resolve(geometry.layers)]


def resolve_all(addresses: Iterable[str | Address] | str, geometry: Geometry) -> list[Address]:
    """Concrete addresses of several, without repeats, in order."""
    many = [addresses] if isinstance(addresses, str | Address) else addresses
    return list(dict.fromkeys(a for address in many for a in resolve(address, geometry)))


def _lookup(name: str, geometry: Geometry) -> Site:
    if name in SITES and SITES[name].has(geometry):
        return SITES[name]
    exist = [s.name for s in sites_of(geometry)]
    if name not in SITES:
        raise unknown("site", name, exist)
    near = [n for n in nearest(name, exist) if n != name]
    hint = f"; nearest: {', '.join(near)}" if near else ""
    raise UserError(f"this model has no site {name!r} ({SITES[name].meaning}){hint}. It has: {', '.join(exist)}")
