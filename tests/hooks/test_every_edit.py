"""Every registered kind of edit through its no-op case and its whole-site case; a new kind is picked up here.

Arguments are given by parameter name, so that an edit of a user's own is tried as soon as it is registered; a
parameter that `ARGUMENTS` does not know needs an entry there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.hooks.edits import EDITS, Edit, function, zero
from interp.hooks.prompts import Prompts
from interp.models.model import Model
from tests.tiny import tiny

MODELS = ("gpt2", "llama")
TOKENS = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18]]
SITE = "L0.z"


def prompts(padded: bool = False) -> Prompts:
    rows = [TOKENS[0], TOKENS[1], TOKENS[2][:4], TOKENS[0][1:5]] if padded else TOKENS
    return Prompts.of(rows, pad_side="left")


def arguments(model: Model, p: Prompts) -> dict[str, Any]:
    """A value for every parameter that an edit may have."""
    donor = Prompts.of((p.tokens + 20) % 50, p.mask)
    width = model.geometry.d_head
    generator = torch.Generator().manual_seed(0)
    run = model.run(donor, capture=[SITE])
    return {
        "address": SITE,
        "factor": 0.5,
        "vector": torch.randn(width, generator=generator),
        "directions": torch.randn(2, width, generator=generator),
        "run": run,
        "value": run[SITE],
        "means": model.means(donor, [SITE], by="position"),
        "seed": 0,
        "fn": lambda x, ctx: x.roll(1, -1),
    }


def make(kind: str, given: dict[str, Any], **parts: Any) -> Edit:
    needed = {
        name: given[name]
        for name, parameter in inspect.signature(EDITS[kind]).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and (parameter.default is parameter.empty or name == "address")
    }
    if "head" in parts and "value" in needed:  # a value is that of the selected part
        needed["value"] = needed["value"][:, :, [parts["head"]]]
    return EDITS[kind](**needed, **parts)


def expected(kind: str, x: Tensor, given: dict[str, Any]) -> Tensor | None:
    """The whole site's new value, worked out by hand; None for a kind that is not ours."""
    if kind == "project_out":
        basis, _ = torch.linalg.qr(given["directions"].T)
        return x - torch.einsum("...d,dk,ek->...e", x, basis, basis)
    simple = {
        "zero": lambda: torch.zeros_like(x),
        "scale": lambda: x * 0.5,
        "add": lambda: x + given["vector"],
        "patch": lambda: given["run"].acts[SITE],
        "hold": lambda: given["value"],
        "freeze": lambda: x,
        "function": lambda: x.roll(1, -1),
        "mean": lambda: given["run"].acts[SITE].mean(0, keepdim=True).expand_as(x),
    }
    return simple[kind]() if kind in simple else None


@pytest.mark.parametrize("kind", EDITS.names())
@pytest.mark.parametrize("name", MODELS)
def test_whole_site(kind: str, name: str) -> None:
    model, p = tiny(name), prompts()
    given = arguments(model, p)
    base = model.run(p, capture=[SITE])
    kept = base[SITE].clone()
    edit = make(kind, given)
    run = model.run(p, edits=[edit], capture=[SITE])
    assert run[SITE].shape == kept.shape
    assert torch.equal(base[SITE], kept)  # the edit made a new tensor
    want = expected(kind, kept, given)
    if want is not None:
        assert torch.allclose(run[SITE], want, atol=1e-6)
    assert torch.equal(run.logits, base.logits) == (kind == "freeze")
    assert torch.equal(model.run(p).logits, base.logits)
    assert kind in str(edit)
    assert SITE in str(edit)


@pytest.mark.parametrize("kind", EDITS.names())
def test_only_the_selected_head_and_position_change(kind: str) -> None:
    model, p = tiny("gpt2"), prompts()
    base = model.run(p, capture=[SITE])[SITE]
    given = arguments(model, p)
    run = model.run(p, edits=[make(kind, given, head=-2, pos=[-1, 2])], capture=[SITE])
    keep = torch.ones_like(base, dtype=torch.bool)
    keep[:, [5, 2], 2] = False
    assert torch.equal(run[SITE][keep], base[keep])
    whole = model.run(p, edits=[make(kind, given)], capture=[SITE])
    assert torch.allclose(run[SITE][~keep], whole[SITE][~keep], atol=1e-6)
    assert torch.equal(run[SITE], base) == (kind == "freeze")


@pytest.mark.parametrize("kind", EDITS.names())
def test_padding_is_never_written(kind: str) -> None:
    model, p = tiny("gpt2"), prompts(padded=True)
    base = model.run(p, capture=[SITE])[SITE]
    run = model.run(p, edits=[make(kind, arguments(model, p))], capture=[SITE])
    assert torch.equal(run[SITE][~p.mask], base[~p.mask])
    assert bool(run.logits.isfinite().all())


def no_op(kind: str, model: Model, p: Prompts) -> tuple[list[Edit], list[Edit]]:
    """Edits that do nothing, after some that prepare the ground; and those that prepare it alone."""
    own = model.run(p, capture=[SITE, "pos_embed"])
    first = function(SITE, lambda x, ctx: torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], -1))
    axis = torch.eye(model.geometry.d_head)[:1]
    cases: dict[str, Callable[[], tuple[Edit, list[Edit]]]] = {
        "zero": lambda: (zero(SITE), [zero(SITE)]),
        "scale": lambda: (EDITS["scale"](SITE, 1.0), []),
        "add": lambda: (EDITS["add"](SITE, torch.zeros(model.geometry.d_head)), []),
        "project_out": lambda: (EDITS["project_out"](SITE, axis), [first]),
        "patch": lambda: (EDITS["patch"](SITE, own), []),
        "hold": lambda: (EDITS["hold"](SITE, own[SITE]), []),
        "mean": lambda: (EDITS["mean"](SITE, model.means(p, [SITE], by="position")), []),
        "resample": lambda: (EDITS["resample"]("pos_embed", own, 0), []),  # the same in every row
        "freeze": lambda: (EDITS["freeze"](SITE), []),
        "function": lambda: (function(SITE, lambda x, ctx: x), []),
    }
    if kind not in cases:  # an edit of another's making: making it twice is making it once
        edit = make(kind, arguments(model, p))
        return [edit], [edit]
    edit, before = cases[kind]()
    return [edit], before


@pytest.mark.parametrize("kind", EDITS.names())
def test_no_op_changes_no_bit(kind: str) -> None:
    model = tiny("gpt2")
    p = prompts().rows([1]) if kind == "mean" else prompts()  # the mean of one prompt is that prompt
    edits, before = no_op(kind, model, p)
    run = model.run(p, edits=[*before, *edits])
    assert torch.equal(run.logits, model.run(p, edits=before).logits)
