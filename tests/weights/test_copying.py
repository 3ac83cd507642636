"""OV copying on weights set by hand, the IOI copy score by its definition, singular directions, virtual heads."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny

from interp.hooks.prompts import Prompts
from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.models.native import Native, NativeConfig
from interp.registry import UserError
from interp.weights.circuits import full_circuit, ov_circuits
from interp.weights.copying import copy_scores, copying_eigenvalues, copying_score
from interp.weights.singular import singular_directions, virtual_heads

VOCAB = 8


def hand_set(signs: tuple[float, ...] = (1.0, -1.0), layers: int = 2) -> Model:
    """Token t is the unit vector e_t; head h reads its half of the coordinates and writes them back, times a sign."""
    config = NativeConfig(layers=layers, heads=2, d_model=VOCAB, d_vocab=VOCAB, n_ctx=8, norm="none", positions="none")
    module = Native(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.embed.weight.copy_(torch.eye(VOCAB))
        module.unembed.weight.copy_(torch.eye(VOCAB))
        for block in module.layers:
            block.attn.v.weight.copy_(torch.eye(VOCAB))
            block.attn.o.weight.copy_(torch.diag(torch.tensor([signs[0]] * 4 + [signs[1]] * 4)))
    return Model(module.eval(), FAMILIES["native"], config, name="hand-set")


def test_hand_set_heads_copy_and_anti_copy() -> None:
    model = hand_set()
    eigenvalues = copying_eigenvalues(model)
    torch.testing.assert_close(eigenvalues[0, 0].real, torch.ones(4, dtype=torch.float64))
    assert copying_score(eigenvalues).tolist() == [[1.0, -1.0], [1.0, -1.0]]


def test_a_cycle_does_not_copy() -> None:
    """W_OV that maps token 0 → 1 → 2 → 3 → 0 has the fourth roots of 1 as eigenvalues: their sum is 0."""
    model = hand_set()
    with torch.no_grad():
        model.module.layers[0].attn.o.weight[:4, :4] = torch.eye(4).roll(1, 0)
    assert abs(float(copying_score(copying_eigenvalues(model))[0, 0])) < 1e-9


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_eigenvalues_equal_those_of_the_vocabulary_square_matrix(kind: str) -> None:
    model = tiny(kind)
    ours = copying_score(copying_eigenvalues(model))
    for head in range(4):
        every = torch.linalg.eigvals(full_circuit(model, "ov", 1, head).double().dense())
        torch.testing.assert_close(ours[1, head], every.real.sum() / every.abs().sum(), rtol=1e-5, atol=1e-6)


def test_copy_score_on_hand_set_heads() -> None:
    """Head 0 of block 1 copies tokens 0–3 (top 1 of 8); with −W_OV they come last, and head 1 does the reverse."""
    model = hand_set()
    prompts = Prompts.of([[0, 1, 2], [3, 2, 1]], labels={"NAME": torch.tensor([0, 2])})
    found = copy_scores(model, prompts, ["NAME", 1])
    assert found.tokens.tolist() == [0, 1, 1, 2]
    assert found.hit[:, 1, 0].all()
    assert not found.negative[:, 1, 0].any()
    assert bool(found.score[0].isnan().all())
    assert float(found.score[1, 0]) == 1.0


def test_copy_score_follows_the_definition_through_the_norms() -> None:
    model = tiny("gpt2")
    prompts = Prompts.of([[5, 6, 7, 8], [9, 3, 2]])
    found = copy_scores(model, prompts, [1])
    run = model.run(prompts, capture="L0.resid_post")
    x = run["L0.resid_post"][[0, 1], [1, 1]]
    t = model.module.transformer
    ov = ov_circuits(model, fold_norm=False)[1]
    for head in range(4):
        logits = model.module.lm_head(t.ln_f(t.h[1].ln_1(x) @ ov[head].dense()))
        rank = (logits > logits.gather(1, torch.tensor([[6], [3]]))).sum(1)
        assert found.hit[:, 1, head].tolist() == (rank < 5).tolist()


def test_singular_directions_read_in_tokens() -> None:
    """A head that answers token 2 with token 5, and token 1 half as strongly with token 6."""
    model = hand_set()
    with torch.no_grad():
        out = model.module.layers[1].attn.o.weight
        out.zero_()
        out[5, 2], out[6, 1] = 4.0, 2.0
    first, second = singular_directions(model, 1, 0, ranks=2, tokens=1)
    assert (first.size, second.size) == pytest.approx((4.0, 2.0))
    ends = {(int(first.reads[0]), int(first.writes[0])), (int(first.reads_against[0]), int(first.writes_against[0]))}
    assert (2, 5) in ends
    ends = {
        (int(second.reads[0]), int(second.writes[0])),
        (int(second.reads_against[0]), int(second.writes_against[0])),
    }
    assert (1, 6) in ends


def test_virtual_heads() -> None:
    model = tiny("gpt2")
    found = virtual_heads(model, 0, 1)
    ov = ov_circuits(model).double().dense()
    torch.testing.assert_close(found.circuits[2, 3].dense().double(), ov[0, 2] @ ov[1, 3], rtol=1e-4, atol=1e-5)
    expected = (ov[0, 2] @ ov[1, 3]).norm() / (ov[0, 2].norm() * ov[1, 3].norm())
    torch.testing.assert_close(found.share[2, 3], expected, rtol=1e-5, atol=1e-7)
    hand = virtual_heads(hand_set(), 0, 1)
    # a head after itself copies (sign squared); after the other there is nothing to read
    assert hand.copying.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert hand.share.tolist() == [[0.5, 0.0], [0.0, 0.5]]
    with pytest.raises(UserError, match="earlier layer"):
        virtual_heads(model, 1, 1)
