"""Rule 5, random edits: they move the logits, do what the definitions say, and reach nothing else.

At every site three edits are made: of the whole site, of its first unit (head, kv head, neuron), and of one
position. Everything is captured in each run, so that what an edit reaches is seen and not supposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.edits import function
from interp.hooks.sites import SITES
from interp.hooks.values import Geometry
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
        _one_unit(bench, address)
        _one_position(bench, address)


def _edited(bench: Bench, address: Address, **parts: Any) -> tuple[dict[Address, Tensor], Tensor]:
    if parts and "pos" not in parts:

        def noisy(x: Tensor, ctx: object) -> Tensor:
            noise = bench.noise(address, bench.acts[address])
            axis = SITES[address.site].axis({"neuron": "d_mlp"}.get(unit := next(iter(parts)), unit))
            return x + noise.narrow(axis, 0, 1)

        edit = function(str(address), noisy, **parts)
    else:
        edit = function(str(address), bench.randomised, **parts)
    run = bench.model.run(bench.clean, edits=[edit], capture=bench.names)
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
    changed = [a for a in beside if not torch.equal(acts[a], bench.acts[a])]
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


def _one_unit(bench: Bench, address: Address) -> None:
    model = bench.model
    g = model.geometry
    quiet = untouched(address.site, g, model.family.norm_heads)
    if not quiet:
        return
    axes = SITES[address.site].axes
    unit = next(u for u in ("head", "kv_head", "d_mlp") if u in axes)
    acts, _ = _edited(bench, address, **{"neuron" if unit == "d_mlp" else unit: 0})
    changed = []
    for q in quiet:
        if q.site not in model.sites():
            continue
        here = Address(q.site, address.layer)
        axis = SITES[q.site].axis(q.axis)
        n = acts[here].shape[axis]
        now, before = (t.narrow(axis, min(q.first, n), max(0, n - q.first)) for t in (acts[here], bench.acts[here]))
        if not torch.equal(now, before):
            changed.append(str(here))
    own = difference(acts[address], bench.acts[address])
    ok = not changed and own > 0
    bench.out.add(
        RULE, address, f"{unit} 0 edited leaves the other {unit}s alone", ok,
        reason=f"changed: {', '.join(changed)}" if changed else None if own else "the edit did nothing",
    )  # fmt: skip


def _one_position(bench: Bench, address: Address) -> None:
    """An edit at one real index: the columns before it stay, in a causal model, at every site."""
    site = SITES[address.site]
    token = "query" if "query" in site.axes else "pos"
    place = int(bench.clean.lengths.min()) - 1
    acts, _ = _edited(bench, address, pos=place)
    column = torch.arange(bench.clean.width, device=bench.clean.device)[None]
    at = bench.clean.column(place)[:, None]
    changed = []
    for other, now in acts.items():
        if other == address:
            keep = column != at
        elif bench.model.geometry.causal:
            keep = column < at
        else:
            continue
        axes = SITES[other.site].axes
        axis = axes.index("query" if "query" in axes else "pos")
        before = bench.acts[other]
        if not torch.equal(now.movedim(axis, 1)[keep], before.movedim(axis, 1)[keep]):
            changed.append(str(other))
    own = difference(acts[address], bench.acts[address])
    ok = not changed and own > 0
    what = "earlier positions" if bench.model.geometry.causal else f"the site's other {token} columns"
    bench.out.add(
        RULE, address, f"one position edited leaves {what} alone", ok,
        reason=f"changed: {', '.join(changed[:5])}" if changed else None if own else "the edit did nothing",
    )  # fmt: skip
