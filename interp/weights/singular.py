"""Singular directions of OV circuits read in tokens, and virtual heads.

W_OV = Σ_r s_r u_r v_rᵀ: a residual along u_r makes the head write s_r v_r. u_r is read in tokens through W_E
(which tokens' embeddings point that way), v_r through W_U with the final norm's gain (which tokens it raises).
A direction's sign is free: u and v flip together, so both ends are listed.

A virtual head is W_OV^{h1} W_OV^{h2}: what the second head writes for what the first wrote. It counts where the
second attends to tokens whose residual the first has written to.

Source: Millidge & Black, "The singular value decompositions of transformer weight matrices are highly
interpretable" (2022); A Mathematical Framework (2021) for virtual heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from interp.models.model import Model
from interp.models.weights import embedding
from interp.registry import UserError
from interp.weights.circuits import ov_circuits, reading_unembedding
from interp.weights.copying import copying_eigenvalues, copying_score
from interp.weights.factored import Factored


@dataclass(frozen=True, eq=False)
class Direction:
    """One singular direction of a head's OV circuit: size, and the tokens at its two ends on either side."""

    layer: int
    head: int
    rank: int
    size: float
    reads: Int[Tensor, " token"]
    reads_against: Int[Tensor, " token"]
    writes: Int[Tensor, " token"]
    writes_against: Int[Tensor, " token"]


def singular_directions(model: Model, layer: int, head: int, ranks: int = 3, tokens: int = 5) -> list[Direction]:
    """The `ranks` largest singular directions of one head's W_OV, each with `tokens` tokens per end."""
    u, s, vh = ov_circuits(model)[layer, head].svd()
    e, w_u = embedding(model.net), reading_unembedding(model.net)
    found = []
    for rank in range(min(ranks, len(s))):
        read, write = e @ u[:, rank], vh[rank] @ w_u
        k = min(tokens, len(read)), min(tokens, len(write))
        ends = [x.topk(n).indices.cpu() for x, n in ((read, k[0]), (-read, k[0]), (write, k[1]), (-write, k[1]))]
        found.append(Direction(layer, head, rank, float(s[rank]), *ends))
    return found


@dataclass(frozen=True, eq=False)
class VirtualHeads:
    """Products of OV circuits of two layers."""

    first: int
    second: int
    circuits: Factored
    """`[head1, head2, d_model, d_model]`."""
    share: Float[Tensor, "head head2"]
    """‖W_OV^{h1} W_OV^{h2}‖ / (‖·‖‖·‖): V-composition."""
    copying: Float[Tensor, "head head2"]
    """Σλ/Σ|λ| of W_E W_OV^{h1} W_OV^{h2} W_U."""


def virtual_heads(model: Model, first: int, second: int, *, fold_norm: bool = True) -> VirtualHeads:
    """Every virtual head of an earlier and a later layer."""
    if not 0 <= first < second < model.geometry.layers:
        raise UserError(
            f"a virtual head goes from an earlier layer to a later one, got {first} and {second} of "
            f"{model.geometry.layers} layers"
        )
    ov = ov_circuits(model, fold_norm=fold_norm)
    one, two = ov[first], ov[second]
    heads = model.geometry.heads
    circuits = Factored(
        one.left[:, None].expand(-1, heads, -1, -1), one.right[:, None].expand(-1, heads, -1, -1)
    ) @ Factored(two.left[None].expand(heads, -1, -1, -1), two.right[None].expand(heads, -1, -1, -1))
    share = circuits.double().norm() / (one.double().norm()[:, None] * two.double().norm()[None])
    copying = copying_score(copying_eigenvalues(model, circuits, fold_norm=fold_norm))
    return VirtualHeads(first, second, circuits, share, copying)
