"""Edits reach what they name and nothing else, and captures stay what they were (faults 12, 13, 20 to 25, 30)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interp.hooks.edits import function, patch, resample, zero
from interp.hooks.sites import SITES
from interp.models.model import Model
from interp.registry import UserError
from tests.tiny import FIRST, FURTHER, HF_KINDS, tiny

CLEAN, CORRUPT = [[1, 2, 3, 4, 5, 6]], [[7, 8, 9, 10, 11, 12]]


@pytest.mark.parametrize("kind", HF_KINDS)
def test_one_head_is_one_head(kind: str) -> None:
    model = tiny(kind)
    base = model.run(CLEAN, capture="z")
    run = model.run(CLEAN, edits=[zero("L1.z", head=2)], capture="z")
    whole = model.run(CLEAN, edits=[zero("L1.z")])
    others = [0, 1, 3]
    assert torch.equal(run["L1.z"][:, :, others], base["L1.z"][:, :, others])
    assert bool((run["L1.z"][:, :, 2] == 0).all())
    assert torch.equal(run["L0.z"], base["L0.z"])
    assert not torch.allclose(run.logits, whole.logits, atol=1e-3)
    assert not torch.allclose(run.logits, base.logits, atol=1e-3)


@pytest.mark.parametrize("kind", [*FIRST, *FURTHER])
def test_means_do_not_depend_on_the_batch_size(kind: str) -> None:
    model = tiny(kind)
    rows = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11, 12], [13], [14, 15, 16]]
    whole = model.means(rows, ["z", "resid_post"], batch_size=5)
    values = torch.cat([model.run([r], capture="L1.z")["L1.z"][0] for r in rows])
    assert torch.allclose(whole["L1.z"], values.mean(0), atol=1e-6)
    for size in (2, 1):
        parts = model.means(rows, ["z", "resid_post"], batch_size=size)
        for address in whole:
            assert torch.allclose(parts[address], whole[address], atol=1e-6)


def out_projection(model: Model, layer: int) -> nn.Module:
    """The checkpoint's own module that writes a layer's attention output."""
    blocks = model.module.get_submodule(model.family.layers)
    found = blocks[layer].get_submodule(model.family.out)  # type: ignore[index,union-attr]
    assert isinstance(found, nn.Module)
    return found


def raise_midway(*_: Any) -> Tensor:
    raise RuntimeError("midway")


@pytest.mark.parametrize("kind", HF_KINDS)
@pytest.mark.parametrize("how", ["edit", "hook", "module", "backward", "capture"])
def test_an_error_midway_leaves_nothing(kind: str, how: str) -> None:
    model = tiny(kind)
    before = model.run(CLEAN).logits
    leaf = out_projection(model, 1)
    handle = leaf.register_forward_hook(raise_midway) if how in ("module", "capture") else None
    specs = {"hook": [("L1.z", raise_midway)], "backward": [("L1.z", raise_midway, "backward")]}.get(how, [])
    edits = [function("L1.z", raise_midway)] if how == "edit" else []
    more: Any = {"metric": lambda x: x[:, -1, 3], "grads": ["embed"]} if how == "backward" else {}
    more = {"capture": list(model.sites())} if how == "capture" else more
    with pytest.raises(RuntimeError, match="midway"), model.hooks(*specs):  # type: ignore[arg-type]
        model.run(CLEAN, edits=edits, **more)
    if handle is not None:
        handle.remove()
    assert torch.equal(model.run(CLEAN).logits, before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())
    assert model._functions == []


@pytest.mark.parametrize("kind", HF_KINDS)
def test_a_users_counting_hook_stays_and_counts_once(kind: str) -> None:
    model = tiny(kind)
    leaf, seen = out_projection(model, 0), []
    leaf.register_forward_hook(lambda m, i, o: seen.append(o.shape))
    model.run(CLEAN)
    model.run(CLEAN, capture=["z", "head_out"], edits=[zero("L1.z")])
    assert len(seen) == 2
    assert len(leaf._forward_hooks) == 1
    block = model.net.module.get_submodule(model.family.layers)[0]  # type: ignore[index]
    block.register_forward_hook(lambda m, i, o: None)
    with pytest.raises(UserError, match=rf"{model.family.layers}\.0' carries a hook"):
        model.run(CLEAN)
    model.run(CLEAN, plain_module=True)
    assert len(seen) == 3


@pytest.mark.parametrize("kind", HF_KINDS)
@pytest.mark.parametrize("way", ["capture", "edits", "hooks", "means", "grads"])
def test_misspelt_and_lacking_sites_are_named(kind: str, way: str) -> None:
    model = tiny(kind)

    def ask(site: str) -> None:
        if way == "capture":
            model.run(CLEAN, capture=[f"L0.{site}"])
        elif way == "edits":
            model.run(CLEAN, edits=[zero(f"L0.{site}")])
        elif way == "grads":
            model.run(CLEAN, grads=[f"L0.{site}"], metric=lambda x: x[:, -1, 3])
        elif way == "means":
            model.means(CLEAN, [f"L0.{site}"])
        else:
            with model.hooks((f"L0.{site}", lambda x, ctx: x)):
                model.run(CLEAN)

    with pytest.raises(UserError, match=r"unknown site 'resid_psot'; did you mean resid_post.*There are: .*resid_pre"):
        ask("resid_psot")
    for name in [n for n in SITES if n not in model.sites() and SITES[n].in_block]:
        with pytest.raises(UserError, match=rf"this model has no site '{name}'.*It has: .*attn_out"):
            ask(name)


@pytest.mark.parametrize("kind", HF_KINDS)
def test_minus_one_is_the_last(kind: str) -> None:
    model = tiny(kind)
    rows = torch.tensor([[1, 2, 3, 4, 0, 0], [5, 6, 7, 8, 9, 10]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    base = model.run(rows, mask, capture="z")
    run = model.run(rows, mask, edits=[zero("L-1.z", head=-1, pos=-1)], capture="z")
    assert torch.equal(run["L-1.z"], run["L1.z"])
    keep = torch.ones_like(base["L1.z"], dtype=torch.bool)
    keep[0, 3, 3] = keep[1, 5, 3] = False
    assert torch.equal(run["L1.z"][keep], base["L1.z"][keep])
    assert bool((run["L1.z"][~keep] == 0).all())
    assert bool((base["L1.z"][~keep] != 0).all())
    assert torch.equal(run["L0.z"], base["L0.z"])


@pytest.mark.parametrize("kind", HF_KINDS)
def test_a_capture_is_what_was_there(kind: str) -> None:
    model = tiny(kind)
    sites = [s for s in model.sites() if s not in ("logits", "logits_pre_cap")]
    base = model.run(CLEAN, capture=sites)

    def in_place(x: Tensor, ctx: object) -> Tensor:
        return x.mul_(0).add_(1)

    later = model.run(CLEAN, edits=[function("L1.resid_post", in_place)], capture=sites)
    with model.hooks(("L1.resid_post", in_place)):
        hooked = model.run(CLEAN, capture=sites)
    upstream = [a for a in base.acts if not a.startswith(("L1.resid_post", "ln_final"))]
    assert len(upstream) > 20
    for address in upstream:
        assert torch.equal(later[address], base[address]), address
        assert torch.equal(hooked[address], base[address]), address
    assert bool((later["L1.resid_post"] == 1).all())
    assert bool((hooked["L1.resid_post"] == 1).all())


@pytest.mark.parametrize("kind", HF_KINDS)
def test_patching_a_run_into_itself_changes_no_bit(kind: str) -> None:
    model = tiny(kind)
    run = model.run(CLEAN, capture=list(model.sites()))
    everything = [patch(address, run) for address in run.acts]
    assert torch.equal(model.run(CLEAN, edits=everything).logits, run.logits)
    for edit in everything:
        assert torch.equal(model.run(CLEAN, edits=[edit]).logits, run.logits), str(edit)


def test_no_row_is_its_own_donor() -> None:
    model = tiny("gpt2")
    tokens = torch.randint(0, 50, (6, 5), generator=torch.Generator().manual_seed(0))
    run = model.run(tokens, capture="L0.z")
    for seed in range(20):
        edit = resample("L0.z", run, seed=seed)
        got = model.run(tokens, edits=[edit], capture="L0.z")["L0.z"]
        assert all(not torch.equal(got[i], run["L0.z"][i]) for i in range(6))
    twins = model.run(torch.stack([tokens[0], tokens[0]]), capture="L0.z")
    with pytest.raises(UserError, match="has no donor"):
        resample("L0.z", twins, seed=0)
