"""Q-, K- and V-composition: how much of what one head writes a later head's weights read.

    Q  ‖W_OV^{h1} W_QK^{h2}‖ / (‖W_OV^{h1}‖ ‖W_QK^{h2}‖)     K with W_QKᵀ     V with W_OV^{h2}

Steps, for every pair of heads in two layers, l1 < l2:

1. the score, from d_head-sized matrices (`factored.product_norm`);
2. its baseline: the mean over `draws` (≥ 100) of the score of two matrices with the pair's singular values and
   random orthogonal bases; in those bases the product's norm is Σ a_i² C_ij² b_j² with C the overlap of two
   random frames, so the draws are shared by all pairs;
3. a permutation test: the residual's coordinates of the later head are permuted (its singular values and the
   spread of its coordinates stay, the alignment goes); one-sided p = (1 + #≥)/(1 + n), and the 95% band.

Source: A Mathematical Framework for Transformer Circuits (2021). Limits: gains of the reading norm are folded,
denominators are not; composition through MLPs is not seen; heads of one layer do not compose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.model import Model
from interp.registry import UserError
from interp.weights.circuits import ov_circuits, qk_circuits
from interp.weights.factored import Factored, product_norm

Kind = Literal["q", "k", "v"]
KINDS: tuple[Kind, ...] = ("q", "k", "v")
LEAST_DRAWS = 100


@dataclass(frozen=True, eq=False)
class Composition:
    """Scores of all pairs of heads, `[l1, h1, l2, h2]`, NaN where l1 ≥ l2; fractions from 0 to 1."""

    kind: Kind
    score: Float[Tensor, "layer head layer2 head2"]
    baseline: Float[Tensor, "layer head layer2 head2"]
    """Mean score of random matrices of the same singular values."""
    band_low: Float[Tensor, "layer head layer2 head2"]
    band_high: Float[Tensor, "layer head layer2 head2"]
    """The middle 95% of the score under permuted coordinates."""
    p_value: Float[Tensor, "layer head layer2 head2"]
    draws: int
    permutations: int

    @property
    def excess(self) -> Float[Tensor, "layer head layer2 head2"]:
        """Score − baseline."""
        return self.score - self.baseline

    def best(self) -> tuple[int, int, int, int]:
        """The pair (l1, h1, l2, h2) of largest excess."""
        layers, heads = self.score.shape[:2]
        at = int(self.excess.nan_to_num(-1.0).argmax())
        return at // (heads * layers * heads), at // (layers * heads) % heads, at // heads % layers, at % heads


def composition(
    model: Model,
    kind: Kind | str,
    *,
    fold_norm: bool = True,
    centre: bool = False,
    delta: int = 0,
    draws: int = 200,
    permutations: int = 200,
    seed: int = 0,
) -> Composition:
    """Composition scores of one kind, with baseline and permutation test (0 permutations: none).

    `delta` is the rotary offset of the later head's QK circuit. Raises UserError for an unknown kind, under 100
    draws, a model of one layer, and where the QK circuit has no bilinear form.

    >>> import interp
    >>> k = composition(interp.load_model("attn-2l"), "k", draws=100, permutations=0)
    >>> k.best()  # layer and head that writes, layer and head that reads
    (0, 2, 1, 0)
    """
    if kind not in KINDS:
        raise UserError(f"composition is of kind q, k or v, got {kind!r}")
    if draws < LEAST_DRAWS or permutations < 0:
        raise UserError(f"at least {LEAST_DRAWS} draws are needed for the baseline, got {draws}")
    if model.geometry.layers < 2:
        raise UserError(f"{model.name} has one layer: no head can read what another writes")
    writes = ov_circuits(model, fold_norm=fold_norm, centre=centre).double()
    reads = writes if kind == "v" else qk_circuits(model, fold_norm=fold_norm, centre=centre, delta=delta).double()
    reads = reads.mT if kind == "k" else reads
    rng = torch.Generator().manual_seed(seed)
    overlap = _overlaps(draws, model.geometry.d_model, writes.rank, rng).to(writes.left.device)
    shuffles = [torch.randperm(model.geometry.d_model, generator=rng) for _ in range(permutations)]
    layers, heads = model.geometry.layers, model.geometry.heads
    grid = torch.full((5, layers, heads, layers, heads), torch.nan, dtype=torch.float64)
    for first in range(layers):
        for second in range(first + 1, layers):
            grid[:, first, :, second] = torch.stack(_pair(writes[first], reads[second], overlap, shuffles)).cpu()
    score, baseline, low, high, p = grid
    return Composition(kind, score, baseline, low, high, p, draws, permutations)  # type: ignore[arg-type]


def random_baseline(
    first: Float[Tensor, "*a rank"], second: Float[Tensor, "*b rank"], overlap: Float[Tensor, "draw rank rank"]
) -> Float[Tensor, ...]:
    """Mean composition of matrices with these singular values in random bases, for all pairs of two stacks."""
    a, b = first.square(), second.square()
    a, b = a / a.sum(-1, keepdim=True), b / b.sum(-1, keepdim=True)
    squares: Tensor = torch.einsum("xi,nij,yj->nxy", a, overlap.square(), b)
    return squares.sqrt().mean(0)


def _overlaps(draws: int, width: int, rank: int, rng: torch.Generator) -> Float[Tensor, "draw rank rank"]:
    """Overlaps of two random `rank`-frames in `width` dimensions: of the first coordinates with a Haar frame."""
    normal = torch.randn(draws, width, rank, generator=rng, dtype=torch.float64)
    frames: Tensor = torch.linalg.qr(normal)[0]
    return frames[:, :rank]


def _pair(
    writes: Factored, reads: Factored, overlap: Tensor, shuffles: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """score, baseline, band low and high, p of every head of one layer with every head of a later one."""
    sizes = writes.norm()[:, None] * reads.norm()[None]
    first = Factored(writes.left[:, None], writes.right[:, None])
    second = Factored(reads.left[None], reads.right[None])
    score = product_norm(first, second) / sizes
    baseline = random_baseline(writes.singular_values(), reads.singular_values(), overlap)
    if not shuffles:
        none = torch.full_like(score, torch.nan)
        return score, baseline, none, none, none
    under = torch.stack(
        [product_norm(first, Factored(second.left[..., shuffle, :], second.right)) / sizes for shuffle in shuffles]
    )
    low, high = torch.quantile(under, torch.tensor([0.025, 0.975], dtype=under.dtype, device=under.device), dim=0)
    # equal up to rounding counts as reached
    p = (1 + (under >= score * (1 - 1e-12)).sum(0)) / (1 + len(shuffles))
    return score, baseline, low, high, p.double()
