"""Grouped queries: tables of k and v count kv heads, and circuits of weights share them (faults 1 and 2)."""

from __future__ import annotations

import pytest
import torch

from interp.hooks.edits import patch
from interp.registry import UserError
from tests.tiny import HF_KINDS, tiny

CLEAN, CORRUPT = [[1, 2, 3, 4, 5, 6]], [[7, 8, 9, 10, 11, 12]]
GROUPED = [kind for kind in HF_KINDS if tiny(kind).geometry.kv_heads == 2]
"""Four heads on two kv heads."""


@pytest.mark.parametrize("site", ["k", "v", "k_rot", "k_input", "v_input"])
@pytest.mark.parametrize("kind", GROUPED)
def test_kv_heads_patch_one_by_one_and_together(kind: str, site: str) -> None:
    model = tiny(kind)
    address = f"L1.{site}"
    donor = model.run(CORRUPT, capture=[site])
    assert donor[address].shape[2] == 2
    assert model.sites()[site].shape(model.geometry)[2] == 2
    one, other, both, whole = (
        model.run(CLEAN, edits=edits).logits
        for edits in (
            [patch(address, donor, kv_head=0)],
            [patch(address, donor, kv_head=1)],
            [patch(address, donor, kv_head=[0, 1])],
            [patch(address, donor)],
        )
    )
    assert torch.equal(both, whole)
    assert not torch.allclose(one, other, atol=1e-4)
    for bad in (2, -3):
        with pytest.raises(UserError, match=f"kv_head {bad} of {site} lies outside the model's 2 kv_heads"):
            model.run(CLEAN, edits=[patch(address, donor, kv_head=bad)])
    with pytest.raises(UserError, match="no head axis; select it by kv_head="):
        model.run(CLEAN, edits=[patch(address, donor, head=0)])


@pytest.mark.parametrize("kind", GROUPED)
def test_a_kv_head_serves_its_own_group_only(kind: str) -> None:
    model = tiny(kind)
    donor = model.run(CORRUPT, capture="L0.v")
    base = model.run(CLEAN, capture="L0.z")["L0.z"]
    run = model.run(CLEAN, edits=[patch("L0.v", donor, kv_head=1)], capture="L0.z")["L0.z"]
    assert torch.equal(run[:, :, :2], base[:, :, :2])
    for head in (2, 3):
        assert not torch.allclose(run[:, :, head], base[:, :, head], atol=1e-3)


def test_weights_by_head_are_the_checkpoints() -> None:
    """W_Q of head h meets W_K of kv head h // 2: the bilinear form gives the scores at distance 0."""
    model = tiny("llama")
    attn = model.module.model.layers[1].self_attn  # type: ignore[union-attr,index]
    w = model.weights(-1)
    assert w.W_Q.shape == (4, 32, 8)
    assert w.W_K.shape == w.W_V.shape == (2, 32, 8)
    assert w.W_O.shape == (4, 8, 32)
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        assert torch.equal(w.W_Q[head], attn.q_proj.weight[rows].T)
        assert torch.equal(w.W_O[head], attn.o_proj.weight[:, rows].T)
    for kv in range(2):
        assert torch.equal(w.W_K[kv], attn.k_proj.weight[8 * kv : 8 * kv + 8].T)
    run = model.run(CLEAN, capture=["L1.ln1", "L1.scores"])
    x = run["L1.ln1"][0]
    for head in range(4):
        form = x @ w.W_Q[head] @ w.W_K[head // 2].T @ x.T / 8**0.5
        assert torch.allclose(run["L1.scores"][0, head].diagonal(), form.diagonal(), atol=1e-5)
