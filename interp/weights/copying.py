"""Copying: whether what a head writes for a token raises that same token.

Eigenvalues: Σλ / Σ|λ| of W_E W_OV W_U, from −1 (each token lowers itself) to 1 (raises itself). The matrix is
vocabulary-square of rank d_head, so its eigenvalues are those of W_O W_U W_E W_V, d_head × d_head.

Copy score (IOI): the residual after block 0 (its MLP included) at a name token, through the head's reading norm
and W_OV, the final norm and W_U; the share of names that are then among the top 5 tokens. With −W_OV it is the
negative copy score. Null for block 0, which does not read that residual.

Source: A Mathematical Framework (2021); 2211.00593 appendix. Limits: biases of values and outputs left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from interp.hooks.prompts import Prompts
from interp.models.forward import final_norm, unembed
from interp.models.model import Model
from interp.models.weights import embedding
from interp.registry import UserError
from interp.weights.circuits import ov_circuits, reading_unembedding
from interp.weights.factored import Factored

TOP = 5


def copying_eigenvalues(
    model: Model, circuits: Factored | None = None, *, fold_norm: bool = True
) -> Complex[Tensor, "*stack rank"]:
    """Eigenvalues of W_E W_OV W_U of every head (or of the stack given, such as virtual heads)."""
    ov = (ov_circuits(model, fold_norm=fold_norm) if circuits is None else circuits).double()
    e, u = embedding(model.net).double(), reading_unembedding(model.net, fold_norm).double()
    if u.shape[1] != e.shape[0]:
        raise UserError(f"{model.name} maps {e.shape[0]} tokens to {u.shape[1]} outputs: no token can be copied")
    values: Tensor = torch.linalg.eigvals(ov.right @ (u @ e) @ ov.left)
    return values


def copying_score(eigenvalues: Complex[Tensor, "*stack rank"]) -> Float[Tensor, "*stack"]:
    """Σλ / Σ|λ|; 0 where all are 0.

    >>> copying_score(torch.tensor([[1.0 + 0j, 1.0], [1.0, -1.0], [1j, -1j]])).tolist()
    [1.0, 0.0, 0.0]
    """
    size = eigenvalues.abs().sum(-1)
    return torch.where(size > 0, eigenvalues.real.sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)


@dataclass(frozen=True, eq=False)
class CopyScores:
    """For each prompt and place: whether the token is in the top 5 of what each head writes for it."""

    hit: Bool[Tensor, "token layer head"]
    negative: Bool[Tensor, "token layer head"]
    tokens: Int[Tensor, " token"]
    prompt: Int[Tensor, " token"]
    """Row of the prompt each token stands in."""

    @property
    def score(self) -> Float[Tensor, "layer head"]:
        """Share of tokens among the top 5; NaN for block 0."""
        return _null_first(self.hit.double().mean(0))

    @property
    def negative_score(self) -> Float[Tensor, "layer head"]:
        """The same with −W_OV."""
        return _null_first(self.negative.double().mean(0))


def _null_first(grid: Float[Tensor, "layer head"]) -> Float[Tensor, "layer head"]:
    return torch.cat([torch.full_like(grid[:1], torch.nan), grid[1:]])


@torch.no_grad()
def copy_scores(model: Model, prompts: Prompts, places: list[int | str], batch_size: int = 64) -> CopyScores:
    """IOI's copy score of every head, at the tokens of these labels or positions (`["IO", "S1"]` for IOI).

    Prompts that lack a label are left out of it. Raises UserError where no prompt has any of the places.
    """
    held = model.prompts(prompts)
    row: list[Tensor] = []
    column: list[Tensor] = []
    every = torch.arange(len(held), device=held.device)
    for place in places:
        at = held.column(place)
        row.append(every[at >= 0])
        column.append(at[at >= 0])
    rows, columns = torch.cat(row), torch.cat(column)
    if not len(rows):
        raise UserError(f"no prompt has a token at {', '.join(map(str, places))}")
    after = torch.cat(
        [model.run(held.rows(slice(i, i + batch_size)), capture="L0.resid_post")["L0.resid_post"]
         for i in range(0, len(held), batch_size)]
    )  # fmt: skip
    token, resid = held.tokens[rows, columns], after[rows, columns]
    hit, negative = _hits(model, resid, token)
    return CopyScores(hit, negative, token.cpu(), rows.cpu())


def _hits(model: Model, resid: Float[Tensor, "token d_model"], token: Int[Tensor, " token"]) -> tuple[Tensor, Tensor]:
    net, g = model.net, model.geometry
    # the reading norm is applied to the residual as it is, gain included
    ov = ov_circuits(model, fold_norm=False)
    hit = torch.zeros(2, len(token), g.layers, g.heads, dtype=torch.bool)
    for layer in range(1, g.layers):
        read = net.layers[layer].ln1(resid) if g.pre_norm else resid
        circuit = ov[layer]
        mixed = einsum(read, circuit.left, "token d_model, head d_model d_head -> token head d_head")
        out = einsum(mixed, circuit.right, "token head d_head, head d_head d_model -> token head d_model")
        for i, signed in enumerate((out, -out)):
            logits = unembed(net, final_norm(net, signed))
            best = logits.topk(min(TOP, logits.shape[-1]), -1).indices
            hit[i, :, layer] = (best == token[:, None, None]).any(-1).cpu()
    return hit[0], hit[1]
