"""Where a replayed pass enters a block, and what it is given there.

For each site: the tensors, taken from the base run, with which everything downstream of the site can be
computed. What lies beside it in the block (the other projections, in a parallel block the other sublayer) is
unchanged by an edit there, so it is given too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from interp.hooks.geometry import Geometry

ATTENTION_ORDER = (
    "resid_pre", "ln1_scale", "ln1", "q_input", "k_input", "v_input", "q", "q_norm", "q_rot", "k", "k_norm", "k_rot",
    "scores", "pattern", "v", "z", "head_out", "attn_out_pre", "attn_out",
)  # fmt: skip
MLP_ORDER = (
    "resid_mid", "ln2_scale", "mlp_in", "ln2", "router", "mlp_pre", "mlp_up", "mlp_post", "mlp_out_pre", "mlp_out",
)  # fmt: skip
ORDER = (*ATTENTION_ORDER, *MLP_ORDER, "resid_post")
FINAL = ("ln_final_scale", "ln_final")
BEFORE_QUERIES = frozenset(
    ("resid_pre", "ln1_scale", "ln1", "q_input", "k_input", "v_input", "k", "k_norm", "k_rot", "v")
)
"""Sites of the last block that are computed at every held column; the rest only where the metric reads."""
_PROJECTIONS = frozenset(("q", "q_norm", "q_rot", "k", "k_norm", "k_rot", "v"))


@dataclass(frozen=True, order=True)
class Entry:
    """The layer a pass enters, and the sites of the base run it is given there.

    Layer −1 is the embedding; `layers` (one past the last) is the final norm.
    """

    layer: int
    given: tuple[str, ...] = ()
    site: str = "resid_pre"
    """The earliest edited site of that layer, for `explain`."""


def entry_of(sites: Iterable[str], layer: int, geometry: Geometry) -> Entry:
    """The latest entry of block `layer` that still passes every one of its edited sites."""
    edited = set(sites)
    first = min(edited, key=ORDER.index)
    if first == "resid_post":
        return Entry(layer + 1, (), "resid_post")
    given = _given(first, edited, geometry)
    return Entry(layer, given, first)


def _given(first: str, edited: set[str], geometry: Geometry) -> tuple[str, ...]:
    if first in MLP_ORDER:
        entered = "attn_out" if geometry.parallel else "resid_mid"
        if first in ("mlp_post", "mlp_out_pre"):
            return (entered, "mlp_post") if not geometry.experts else (entered,)
        return (entered, "mlp_out") if first == "mlp_out" else (entered,)
    if first == "resid_pre":
        return ()
    beside = ("mlp_out",) if geometry.parallel and not edited & set(MLP_ORDER) else ()
    if first in _PROJECTIONS:
        return (*_projections(edited & _PROJECTIONS, edited), *beside)
    if first in ("scores", "pattern"):
        return (first, "v", *beside)
    if first in ("z", "head_out", "attn_out_pre"):
        return ("z", *beside)
    return ("attn_out", *beside) if first == "attn_out" else beside


def _projections(here: set[str], edited: set[str]) -> tuple[str, ...]:
    if here == {"v"}:
        return ("pattern", "v") if "scores" not in edited else ("scores", "v")
    q = "q" if {"q", "q_norm"} & here else "q_rot"
    k = "k" if {"k", "k_norm"} & here else "k_rot"
    return (q, k, "v")
