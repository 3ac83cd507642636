"""Rule 5, random edits: they move the logits, do what the definitions say, and reach nothing else.

At every site two edits are made: of the whole site, and of its first unit (head, kv head, neuron) at one
position. Everything is captured in each run, so that what an edit reaches is seen and not supposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import EditContext
from interp.hooks.edits import function
from interp.hooks.geometry import Geometry
from interp.hooks.sites import SITES
from interp.interventions.audit.bench import Bench, by_address
from interp.interventions.audit.records import difference, size
from interp.interventions.audit.rules import follows

RULE = "5 random edit"
HEADWISE = ("q_input", "q", "q_norm", "q_rot", "scores", "pattern", "z", "head_out")
KVWISE = ("k_input", "k", "k_norm", "k_rot", "v_input", "v")
NEURONWISE = ("mlp_pre", "mlp_up", "mlp_post")
"""Sites whose units do not see one another before the output projection mixes them."""


def random_edits(bench: Bench) -> None:
    """5: at every site of every layer."""
    whole = bench.definitions.whole()
    for address in bench.addresses:
        known = address in bench.definitions.steps
        acts = _whole_site(bench, address)
        if known:
            _recomputed(bench, address, acts, whole)
            _upstream(bench, address, acts)
        else:
            bench.out.add(RULE, address, "its definition", None, reason="this site has no definition to check by")
        _one_part(bench, address)


def _edited(bench: Bench, address: Address, **parts: Any) -> tuple[dict[Address, Tensor], Tensor]:
    """Captures and logits of a run with noise added to a site, or to unit 0 of it."""

    def noisy(x: Tensor, ctx: EditContext) -> Tensor:
        return x + ctx.pick(bench.noise(address, bench.acts[address]))

    run = bench.model.run(bench.clean, edits=[function(str(address), noisy, **parts)], capture=bench.names)
    return by_address(run), bench.logits(run)


def _whole_site(bench: Bench, address: Address) -> dict[Address, Tensor]:
    acts, logits = _edited(bench, address)
    bench.out.moved(RULE, address, "moves the logits", logits, bench.logits(bench.base))
    return acts


def _recomputed(bench: Bench, address: Address, acts: dict[Address, Tensor], whole: dict[Address, Tensor]) -> None:
    """Everything downstream equals the independent re-computation; direct readers also step by step."""
    want = bench.definitions.after(whole, address, acts[address])
    worst, where = 0.0, None
    for site in bench.definitions.downstream(address):
        goal = bench.real(site, want[site])
        gap = difference(bench.real(site, acts[site]), goal) / (size(goal) or 1.0)
        if gap > worst:
            worst, where = gap, site
    ok = worst <= bench.out.relative
    bench.out.add(
        RULE, address, "independent re-computation of all downstream", ok, value=worst, tolerance=bench.out.relative,
        scale=1.0, reason=None if ok else f"first differs most at {where}",
    )  # fmt: skip
    for child in bench.definitions.children(address):
        follows(bench, child, acts, f"its definition, with {address.site} edited")


def _upstream(bench: Bench, address: Address, acts: dict[Address, Tensor]) -> None:
    reached = {address, *bench.definitions.downstream(address)}
    beside = [a for a in bench.definitions.steps if a not in reached]
    changed = [a for a in beside if not bench.alike(acts[a], bench.acts[a])]
    worst = max((difference(acts[a], bench.acts[a]) for a in changed), default=0.0)
    bench.out.add(
        RULE, address, "nothing upstream or beside changes", not changed, value=worst, tolerance=0.0,
        reason=f"changed: {', '.join(map(str, changed[:5]))}" if changed else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Untouched:
    """Units of a site that an edit of another site's unit 0 must leave alone."""

    site: str
    axis: str
    first: int


def untouched(site: str, g: Geometry, norm_heads: str) -> list[Untouched]:
    """Which units stay bitwise the same when unit 0 of `site` is edited."""
    mixed = g.qk_norm and norm_heads == "all"
    if site in HEADWISE:
        if mixed and site in ("q_input", "q"):
            return [Untouched("q", "head", 1)]
        return [Untouched(s, "head", 1) for s in HEADWISE[HEADWISE.index(site) :]]
    if site in KVWISE:
        if mixed and site in ("k_input", "k"):
            return [Untouched("k", "kv_head", 1)]
        chain = KVWISE[KVWISE.index(site) : 4] if site[0] == "k" else KVWISE[KVWISE.index(site) :]
        readers = HEADWISE[4:] if site[0] == "k" else HEADWISE[6:]
        return [*(Untouched(s, "kv_head", 1) for s in chain), *(Untouched(s, "head", g.group) for s in readers)]
    if site in NEURONWISE:
        return [Untouched(s, "d_mlp", 1) for s in dict.fromkeys((site, "mlp_post"))]
    return []


def _one_part(bench: Bench, address: Address) -> None:
    """An edit of unit 0 at one real index, or of all units there where the site has none."""
    axes = SITES[address.site].axes
    unit = next((u for u in ("head", "kv_head", "d_mlp") if u in axes), None)
    place = int(bench.clean.lengths.min()) - 1
    parts = {} if unit is None else {"neuron" if unit == "d_mlp" else unit: 0}
    acts, _ = _edited(bench, address, pos=place, **parts)
    if unit is not None:
        _record(
            bench, address, f"{unit} 0 edited leaves the other {unit}s alone", acts, _other_units(bench, address, acts)
        )
    causal = bench.model.geometry.causal
    what = "earlier positions" if causal else "the site's other positions"
    _record(
        bench, address, f"one position edited leaves {what} alone", acts, _other_positions(bench, address, acts, place)
    )


def _record(bench: Bench, address: Address, check: str, acts: dict[Address, Tensor], changed: list[Address]) -> None:
    own = difference(acts[address], bench.acts[address])
    why = f"changed: {', '.join(map(str, changed[:5]))}" if changed else None if own else "the edit did nothing"
    bench.out.add(RULE, address, check, not changed and own > 0, reason=why)


def _other_units(bench: Bench, address: Address, acts: dict[Address, Tensor]) -> list[Address]:
    """Sites whose other units changed."""
    model, changed = bench.model, []
    for quiet in untouched(address.site, model.geometry, model.family.norm_heads):
        here = Address(quiet.site, address.layer)
        if here not in acts:
            continue
        axis = SITES[quiet.site].axis(quiet.axis)
        rest = max(0, acts[here].shape[axis] - quiet.first)
        now, before = (t.narrow(axis, t.shape[axis] - rest, rest) for t in (acts[here], bench.acts[here]))
        if not bench.alike(now, before):
            changed.append(here)
    return changed


def _other_positions(bench: Bench, address: Address, acts: dict[Address, Tensor], place: int) -> list[Address]:
    """Sites whose earlier columns changed, and the edited site if any other column of it did."""
    column = torch.arange(bench.clean.width, device=bench.clean.device)[None]
    at = bench.clean.column(place)[:, None]
    changed = []
    for other in acts if bench.model.geometry.causal else [address]:
        keep = column != at if other == address else column < at
        axis = SITES[other.site].token_axis
        now, before = (t.movedim(axis, 1)[keep] for t in (acts[other], bench.acts[other]))
        if not bench.alike(now, before):
            changed.append(other)
    return changed
