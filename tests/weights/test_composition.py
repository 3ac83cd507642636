"""Composition against dense products, its baseline against random matrices, and a model with a known circuit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny

from interp.models.load import load_model
from interp.registry import UserError
from interp.weights.circuits import ov_circuits, qk_circuits
from interp.weights.composition import KINDS, composition
from interp.weights.matching import matching

INDUCTION = Path(__file__).parents[2].parent / "shared" / "models" / "induction-2l"


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
def test_scores_equal_dense_products(kind: str) -> None:
    model = tiny(kind)
    ov, qk = ov_circuits(model).double().dense(), qk_circuits(model).double().dense()
    second = {"q": qk, "k": qk.mT, "v": ov}
    for which in KINDS:
        found = composition(model, which, permutations=0)
        assert found.score[0, :, 0].isnan().all()
        assert found.score[1].isnan().all()
        for h1 in range(4):
            for h2 in range(4):
                a, b = ov[0, h1], second[which][1, h2]
                expected = (a @ b).norm() / (a.norm() * b.norm())
                torch.testing.assert_close(found.score[0, h1, 1, h2], expected)


def test_baseline_is_that_of_explicit_random_matrices() -> None:
    """400 explicit pairs with the pair's singular values and Haar bases: means agree within their sampling error."""
    model = tiny("gpt2")
    found = composition(model, "k", draws=400, permutations=0)
    ov, qk = ov_circuits(model).double()[0, 1], qk_circuits(model).double()[1, 2]
    rng = torch.Generator().manual_seed(5)

    def frame() -> torch.Tensor:
        return torch.linalg.qr(torch.randn(400, 32, 8, generator=rng, dtype=torch.float64))[0]

    a = frame() * ov.singular_values() @ frame().mT
    b = frame() * qk.singular_values() @ frame().mT
    explicit = (a @ b).norm(dim=(1, 2)) / (ov.norm() * qk.norm())
    error = explicit.std() / 20
    assert abs(float(explicit.mean() - found.baseline[0, 1, 1, 2])) < 5 * float(error)


def test_rotated_residual_changes_nothing_but_permutations_see_alignment() -> None:
    """A later head that reads exactly what an earlier one writes composes far above baseline and band."""
    model = tiny("native:attn_only_none")
    with torch.no_grad():
        for other in range(4):
            model.module.layers[0].attn.o.weight[:, other * 8 : other * 8 + 8] = torch.randn(
                32, 8, generator=torch.Generator().manual_seed(other)
            )
        written = torch.linalg.qr(model.module.layers[0].attn.o.weight[:, 8:16])[0]
        model.module.layers[1].attn.k.weight[16:24] = written.T
    found = composition(model, "k", permutations=100)
    assert found.best() == (0, 1, 1, 2)
    assert float(found.score[0, 1, 1, 2]) > float(found.band_high[0, 1, 1, 2])
    assert float(found.p_value[0, 1, 1, 2]) == pytest.approx(1 / 101)
    others = found.p_value[0, [0, 2, 3], 1][:, [0, 1, 3]]
    assert float(others.min()) > 1 / 101


@pytest.mark.skipif(not INDUCTION.exists(), reason="no ../shared/models/induction-2l beside the project")
def test_induction_models_compose_through_keys() -> None:
    """Known answers of two trained induction models of one head a layer.

    Both match at least 24 of 26 tokens through the keys of L1H0. In the noisier one K-composition stands far above its
    permutation band. In the other L0H0 spends its norm on the logits, so K-composition lies below its random
    baseline, yet it is 20 times Q- and V-composition.
    """
    clean, noisy = (
        load_model(INDUCTION, weights=f"{name}.safetensors") for name in ("l_2_2_model", "finetuned_model_0")
    )
    for model, apart in ((clean, 4), (noisy, 1.5)):
        assert float(matching(model, "k").share[0, 0, 1, 0]) > 0.9
        assert float(matching(model, "k").margin[0, 0, 1, 0]) > apart
        assert float(matching(model, "q").share[0, 0, 1, 0]) < 0.2
        assert float(matching(model, "self").share[1, 0]) < 0.2
    pair = (0, 0, 1, 0)
    k = composition(noisy, "k", permutations=199)
    assert k.best() == pair
    assert float(k.score[pair]) == pytest.approx(0.482, abs=0.001)
    assert float(k.p_value[pair]) == pytest.approx(1 / 200)
    assert float(k.score[pair]) > 2 * float(k.band_high[pair])
    other = {kind: composition(clean, kind, permutations=0) for kind in KINDS}
    assert float(other["k"].score[pair]) == pytest.approx(0.060, abs=0.001)
    assert float(other["k"].excess[pair]) < 0
    assert float(other["k"].score[pair]) > 20 * max(float(other[kind].score[pair]) for kind in ("q", "v"))


def test_same_seed_same_numbers_and_errors() -> None:
    model = tiny("gpt2")
    a, b = (composition(model, "q", permutations=10, seed=3) for _ in range(2))
    assert torch.equal(a.p_value.nan_to_num(), b.p_value.nan_to_num())
    assert torch.equal(a.baseline.nan_to_num(), b.baseline.nan_to_num())
    with pytest.raises(UserError, match="q, k or v"):
        composition(model, "o")
    with pytest.raises(UserError, match="100"):
        composition(model, "q", draws=99)
    with pytest.raises(UserError, match="one layer"):
        composition(tiny("native:attn_only", layers=1), "q")
