"""The rules of the contract, one function each; each writes its rows through the bench's recorder.

Numbering follows the contract: 1 no-op edits, masked scores and the checkpoint's own logits; 2 cuts and local
closures; 3 row swaps; 4 values agree; 5 random edits; 6 sites the family lacks. Padding stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import EditContext
from interp.hooks.edits import function, patch, zero
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES
from interp.hooks.values import Run
from interp.interventions.audit.bench import Bench, mask_of
from interp.interventions.audit.records import difference, size


def no_op(bench: Bench) -> None:
    """1: capturing, editing to the same value and patching with one's own value change no bit."""
    out, rule = bench.out, "1 no-op"
    out.same(rule, Address("logits"), "everything captured = plain run", bench.full.logits, bench.base.logits)
    for address in bench.addresses:
        edits = {
            "edit that changes nothing = plain run": function(str(address), lambda x, ctx: x),
            "patched with its own value = plain run": patch(str(address), bench.full),
        }
        for check, edit in edits.items():
            run = bench.model.run(bench.clean, edits=[edit])
            out.same(rule, address, check, run.logits, bench.base.logits)


def masked(bench: Bench) -> None:
    """1: what may not be read holds finfo.min and probability 0; edits there do nothing; no NaN anywhere."""
    out, rule = bench.out, "1 masked"
    for address in bench.addresses:
        whole = bench.acts[address]
        if "key" not in SITES[address.site].axes:
            odd = int((~whole.isfinite()).sum())
            out.add(rule, address, "every number is finite", odd == 0, value=float(odd), tolerance=0.0)
            continue
        hidden = ~bench.allowed(address.layer).expand_as(whole)
        if not bool(hidden.any()):
            out.add(rule, address, "masked entries", None, reason="nothing is masked here")
            continue
        least = torch.finfo(whole.dtype).min if address.site == "scores" else 0.0
        check = f"masked entries = {'finfo.min' if address.site == 'scores' else '0'}"
        out.same(rule, address, check, whole[hidden], torch.full_like(whole[hidden], least))

        def raised(x: Tensor, ctx: EditContext, hidden: Tensor = hidden) -> Tensor:
            return torch.where(hidden, 1.0, x)

        run = bench.model.run(bench.clean, edits=[function(str(address), raised)], capture=[str(address)])
        out.same(rule, address, "masked entries edited = plain run", run.logits, bench.base.logits)
        out.same(rule, address, "masked entries edited are captured as they were", run[str(address)], whole)


def checkpoint_logits(bench: Bench) -> None:
    """1: logits of the checkpoint's own forward pass, at real tokens."""
    out, rule, where = bench.out, "1 checkpoint", Address("logits")
    model = bench.model
    if model.family.name == "native":
        out.add(rule, where, "the module's own forward", None, reason="the native module runs this same forward")
        return
    theirs = bench.logits(model.run(bench.clean, plain_module=True))
    eager = getattr(model.config, "_attn_implementation", "eager") == "eager"
    exact = eager and model.family.exact and model.device.type == "cpu" and model.dtype == torch.float32
    # beside padding, experts multiply other tokens than the checkpoint's own pass does
    compare = out.close if not exact else bench.same if bench.clean.padded else out.same
    compare(rule, where, "the module's own forward", bench.logits(bench.base), theirs)


def cuts(bench: Bench) -> None:
    """2: a cut patched whole from the clean run gives the clean logits."""
    model, out = bench.model, bench.out
    for cut in cut_sets(bench):
        run = model.run(bench.corrupt, edits=[patch(str(a), bench.full) for a in cut])
        check = "patched whole from the clean run = clean logits"
        check += f" (with {', '.join(str(a) for a in cut[1:])})" if cut[1:] else ""
        out.same("2 cut", cut[0], check, bench.logits(run), bench.logits(bench.base))


def cut_sets(bench: Bench) -> list[tuple[Address, ...]]:
    """The cuts of this model: each determines all that lies downstream of it."""
    roots = tuple(Address(n) for n in ("embed", "pos_embed") if n in bench.model.sites())
    rest = [(a,) for a in bench.addresses if SITES[a.site].cut and a not in roots]
    return [roots, *rest]


def closures(bench: Bench) -> None:
    """2: what determines a sublayer's output, patched whole from the clean run, gives its clean value."""
    g = bench.model.geometry
    plans: list[tuple[str, tuple[str, ...]]] = [
        ("attn_out", ("q", "k", "v")), ("attn_out", ("pattern", "v")), ("attn_out", ("z",)),
    ]  # fmt: skip
    if g.mlp and not g.experts:
        plans.append(("mlp_out", ("mlp_post",)))
    if g.experts:
        plans.append(("mlp_out", ("ln2", "router")))
    if "resid_mid" in bench.model.sites():
        plans += [("resid_mid", ("resid_pre", "attn_out")), ("resid_post", ("resid_mid", "mlp_out"))]
    else:
        plans.append(("resid_post", ("resid_pre", "attn_out", *(("mlp_out",) if g.mlp else ()))))
    for layer in range(g.layers):
        for target, sources in plans:
            goal = Address(target, layer)
            edits = [patch(f"L{layer}.{s}", bench.full) for s in sources]
            run = bench.model.run(bench.corrupt, edits=edits, capture=[str(goal)])
            check = f"{', '.join(sources)} patched whole = clean value"
            got, want = (bench.real(goal, x) for x in (run[str(goal)], bench.acts[goal]))
            bench.out.same("2 closure", goal, check, got, want)


def row_swap(bench: Bench) -> None:
    """3: two rows swapped at a cut swap their logits."""
    order = torch.arange(len(bench.clean), device=bench.clean.device)
    order[:2] = order[:2].flip(0)
    for cut in cut_sets(bench):
        edits = [function(str(a), lambda x, ctx: x[order]) for a in cut]
        run = bench.model.run(bench.clean, edits=edits)
        check = "rows 0 and 1 swapped = their logits swapped"
        bench.same("3 row swap", cut[0], check, bench.logits(run), bench.base.logits[order][bench.clean.mask])


def values_agree(bench: Bench) -> None:
    """4: each captured value follows from the captured values it is made of."""
    for address in bench.definitions.steps:
        follows(bench, address, bench.acts, "its definition, applied to captured values")


def follows(bench: Bench, address: Address, acts: dict[Address, Tensor], check: str) -> None:
    """One row of rule 4: a captured value against its definition, applied to captured values."""
    want = bench.definitions.one(address, acts)
    bench.out.close("4 values", address, check, bench.real(address, acts[address]), bench.real(address, want))


def lacking(bench: Bench) -> None:
    """6: sites that the model lacks, and names that no model has, raise and list what exists."""
    model, have = bench.model, bench.model.sites()
    first = next(iter(have))
    for name in [n for n in SITES if n not in have] + [first + "x"]:
        ways = {
            "capture raises and lists what exists": lambda n=name: model.run(bench.clean, capture=[n]),
            "edit raises and lists what exists": lambda n=name: model.run(bench.clean, edits=[zero(n)]),
            "hook raises and lists what exists": lambda n=name: _hooked(bench, n),
        }
        for check, call in ways.items():
            bench.out.raises("6 lacking", Address(name), check, call, (name, first))


def _hooked(bench: Bench, name: str) -> None:
    with bench.model.hooks((name, lambda x, ctx: x)):
        pass


def padding(bench: Bench) -> None:
    """Every prompt alone, and batched with others under padding on either side, has the same numbers."""
    rows, width = bench.clean.tokens.shape
    for side in ("left-padded", "right-padded"):
        mask = mask_of(side, rows, width).to(bench.clean.device)
        tokens = bench.clean.tokens
        filled = [tokens.masked_fill(~mask, pad) for pad in (0, bench.model.geometry.d_vocab - 1)]
        run, other = (bench.model.run(Prompts.of(t, mask), capture=bench.names) for t in filled)
        bench.out.setting = side
        got = other.logits[mask]
        bench.same("padding", Address("logits"), "other pad tokens, same logits", got, run.logits[mask])
        alone = [bench.model.run(tokens[i][mask[i]][None], capture=bench.names) for i in range(rows)]
        _compare_alone(bench, run, alone)
    bench.out.setting = "unpadded"


def _compare_alone(bench: Bench, run: Run, alone: list[Run]) -> None:
    for address in bench.addresses:
        site = SITES[address.site]
        worst, scale = 0.0, 0.0
        for one, inside in _pairs(address, run, alone):
            if "query" in site.axes:
                ok = bench.definitions.allowed(address.layer or 0)[:1, :, : one.shape[2], : one.shape[3]]
                one, inside = one.movedim(1, -1)[ok[:, 0]], inside.movedim(1, -1)[ok[:, 0]]
            worst, scale = max(worst, difference(inside, one)), max(scale, size(one))
        allowed = bench.out.relative * (scale or 1.0)
        check, held = "in a padded batch = alone", worst <= allowed
        bench.out.add("padding", address, check, held, value=worst, tolerance=allowed, scale=scale)


def _pairs(address: Address, run: Run, alone: list[Run]) -> Iterator[tuple[Tensor, Tensor]]:
    axes = SITES[address.site].axes
    for i, one in enumerate(alone):
        inside = run[str(address)][i : i + 1]
        start, stop = int(run.prompts.starts[i]), int(run.prompts.starts[i] + run.prompts.mask[i].sum())
        for axis in (axes.index(a) for a in ("pos", "query", "key") if a in axes):
            inside = inside.narrow(axis, start, stop - start)
        yield one[str(address)], inside
