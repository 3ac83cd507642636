"""Low-rank matrices kept as two factors: what a head's weights are, without a d_model- or vocabulary-square.

A stack of matrices A = left · right, `left [..., a, rank]`, `right [..., rank, b]`. Norms, singular values,
eigenvalues and top entries are computed from the factors, in `rank` dimensions; only `dense()` makes A itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Complex, Float, Int
from torch import Tensor

from interp.registry import UserError


@dataclass(frozen=True, eq=False)
class Factored:
    """A stack of matrices as products of two thin factors."""

    left: Float[Tensor, "*stack rows rank"]
    right: Float[Tensor, "*stack rank columns"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense stack."""
        return (*self.left.shape[:-1], self.right.shape[-1])

    @property
    def rank(self) -> int:
        return int(self.left.shape[-1])

    def __getitem__(self, index: int | tuple[int, ...]) -> Factored:
        """One matrix (or a smaller stack), by the leading indices."""
        return Factored(self.left[index], self.right[index])

    @property
    def mT(self) -> Factored:
        """Every matrix transposed."""
        return Factored(self.right.mT, self.left.mT)

    def dense(self) -> Float[Tensor, "*stack rows columns"]:
        """The matrices themselves."""
        return self.left @ self.right

    def __matmul__(self, other: Factored) -> Factored:
        """Products of the matrices, still factored (rank of the second)."""
        return Factored(self.left @ (self.right @ other.left), other.right)

    def between(self, before: Float[Tensor, "a rows"], after: Float[Tensor, "columns b"]) -> Factored:
        """before · A · after: the circuit read from, and written to, another basis (token embeddings)."""
        return Factored(before.to(self.left) @ self.left, self.right @ after.to(self.right))

    def double(self) -> Factored:
        """The same in float64."""
        return Factored(self.left.double(), self.right.double())

    def norm(self) -> Float[Tensor, "*stack"]:
        """Frobenius norm of each matrix."""
        inner = (self.left.mT @ self.left) * (self.right @ self.right.mT)
        return inner.sum((-2, -1)).clamp(min=0).sqrt()

    def singular_values(self) -> Float[Tensor, "*stack rank"]:
        """The `rank` largest singular values, largest first."""
        values: Tensor = torch.linalg.svdvals(self._core())
        return values

    def _core(self) -> Float[Tensor, "*stack rank rank"]:
        core: Tensor = torch.linalg.qr(self.left)[1] @ torch.linalg.qr(self.right.mT)[1].mT
        return core

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """U [..., rows, rank], S [..., rank], Vh [..., rank, columns] of the reduced decomposition."""
        q_left, r_left = torch.linalg.qr(self.left)
        q_right, r_right = torch.linalg.qr(self.right.mT)
        u, s, vh = torch.linalg.svd(r_left @ r_right.mT)
        return q_left @ u, s, vh @ q_right.mT

    def eigenvalues(self) -> Complex[Tensor, "*stack rank"]:
        """The eigenvalues that can differ from 0: those of right · left."""
        if self.left.shape[-2] != self.right.shape[-1]:
            raise UserError(f"only a square matrix has eigenvalues, this one is {self.shape[-2]} × {self.shape[-1]}")
        values: Tensor = torch.linalg.eigvals((self.right @ self.left).double())
        return values

    def top(self, k: int, largest: bool = True, block: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
        """Values, rows and columns of one matrix's k largest (or smallest) entries, best first.

        Rows are gone through in blocks: the dense matrix never exists.
        """
        if self.left.ndim != 2:
            raise UserError(f"top entries are of one matrix; choose one of this stack of shape {self.shape[:-2]}")
        sign = 1.0 if largest else -1.0
        best = self.left.new_empty(0)
        where: Int[Tensor, " entry"] = torch.empty(0, dtype=torch.long, device=self.left.device)
        width = self.right.shape[-1]
        for start in range(0, self.left.shape[0], block):
            part = rearrange(sign * self.left[start : start + block] @ self.right, "r c -> (r c)")
            value, index = part.topk(min(k, part.numel()))
            value, index = torch.cat([best, value]), torch.cat([where, index + start * width])
            best, kept = value.topk(min(k, value.numel()))
            where = index[kept]
        return sign * best, where // width, where % width


def product_norm(first: Factored, second: Factored) -> Float[Tensor, "*stack"]:
    """‖A·B‖_F for stacks that broadcast, from d_head-sized matrices only."""
    middle = first.right @ second.left
    gram_left = first.left.mT @ first.left
    gram_right = second.right @ second.right.mT
    square = einsum(gram_left @ middle, middle @ gram_right, "... i j, ... i j -> ...")
    return square.clamp(min=0).sqrt()
