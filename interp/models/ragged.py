"""Rows of different lengths in one pass: their tokens one after the other, as `[token, 1, …]`.

What a block does token by token (norms, projections, MLP) then runs over all of them at once, in large products;
only the mixing of positions is done grid by grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.grid import Grid


def end_to_end(parts: Sequence[Tensor]) -> Tensor:
    """The tokens of several `[batch, pos, …]` one after the other, `[token, 1, …]`; new memory."""
    return torch.cat([x.flatten(0, 1) for x in parts]).unsqueeze(1)


def parted(x: Tensor, rows: Sequence[int], columns: Sequence[int]) -> list[Tensor]:
    """The parts of `[token, 1, …]` that are so many rows of so many columns, each `[batch, pos, …]`; views."""
    parts = x.split_with_sizes([n * c for n, c in zip(rows, columns, strict=True)])
    return [part.view(n, c, *x.shape[2:]) for part, n, c in zip(parts, rows, columns, strict=True)]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Grids side by side, and how many rows stand on each. It answers a block as a single grid does."""

    grids: tuple[Grid, ...]
    rows: tuple[int, ...]
    _angles: dict[str | None, tuple[Tensor, Tensor] | None] = field(default_factory=dict)

    @cached_property
    def columns(self) -> list[int]:
        """How many columns each grid holds."""
        return [g.held.columns.shape[-1] for g in self.grids]

    def fits(self, x: Tensor) -> bool:
        """Whether a tensor holds these columns."""
        return x.shape[0] == sum(n * c for n, c in zip(self.rows, self.columns, strict=True))

    def parted(self, x: Tensor) -> list[Tensor]:
        """The part of each grid, `[batch, pos, …]`; views."""
        return parted(x, self.rows, self.columns)

    def narrow(self, x: Tensor) -> Tensor:
        """These grids' columns of a tensor that holds all columns from each grid's `offset` on."""
        parts = parted(x, self.rows, [g.prompts.width - g.offset for g in self.grids])
        return end_to_end([g.narrow(part) for g, part in zip(self.grids, parts, strict=True)])

    def spread(self, of_grids: Sequence[Tensor]) -> Tensor:
        """What each grid says of its tokens, for every row."""
        pairs = zip(of_grids, self.rows, strict=True)
        return end_to_end([x.expand(n, *x.shape[1:]) if len(x) == 1 else x for x, n in pairs])

    @property
    def learned(self) -> Float[Tensor, "token 1 d_model"]:
        """Learned embeddings of the tokens' positions."""
        return self.spread([g.learned for g in self.grids])

    def rotate(self, x: Float[Tensor, "token 1 head d_head"], layer: int) -> Float[Tensor, "token 1 head d_head"]:
        """Rotary embedding of a layer's queries or keys; the identity where there is none."""
        first = self.grids[0]
        kind = first.net.layers[layer].rotary_kind
        if kind not in self._angles:
            known = [torch.cat(a, -1) for g in self.grids if (a := g.angles(layer)) is not None]
            self._angles[kind] = self.spread(known).chunk(2, -1) if known else None  # type: ignore[assignment]
        return first.turned(x, self._angles[kind])


Columns = Grid | Ragged
"""Where the tokens of a pass stand."""
