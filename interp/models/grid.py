"""Where the tokens of a pass stand: positions, who may attend to whom, rotary angles.

A plain pass holds every column of the prompts. A replayed one holds a suffix of columns (the keys and values
before it come from the base run), and after the last mixing layer perhaps only the answer columns. Masks are
built from absolute columns, so windows and padding hold in each case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.hooks.context import Held
from interp.hooks.prompts import Prompts
from interp.models import loose
from interp.models.net import Net
from interp.registry import UserError


@dataclass(frozen=True, eq=False)
class Grid:
    """The held columns of a batch and all that follows from where they stand."""

    net: Net
    held: Held
    dtype: torch.dtype
    offset: int = 0
    """First column of the grid this one narrows, for a tail."""
    _masks: dict[int | None, Tensor] = field(default_factory=dict)
    _hidden: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)
    _angles: dict[str | None, tuple[Tensor, Tensor] | None] = field(default_factory=dict)

    @staticmethod
    def of(net: Net, prompts: Prompts, dtype: torch.dtype, first: int = 0) -> Grid:
        """All columns from `first` on."""
        columns = torch.arange(first, prompts.width, device=prompts.device)
        return Grid(net, Held(prompts, columns, first == 0), dtype)

    def narrow(self, x: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "batch kept *rest"]:
        """This tail's columns of a tensor that holds all columns from `offset` on."""
        if self.held.whole or self.held.start == self.offset:
            return x
        return Held(self.held.prompts, self.held.columns - self.offset, False).take(x)

    def fits(self, x: Float[Tensor, "batch pos *rest"]) -> bool:
        """Whether a tensor holds these columns."""
        return x.shape[1] == self.held.columns.shape[-1]

    @property
    def prompts(self) -> Prompts:
        return self.held.prompts

    @cached_property
    def padded(self) -> bool:
        return self.prompts.padded

    @cached_property
    def positions(self) -> Int[Tensor, "rows pos"]:
        """Real index of each held token, one row where all rows agree."""
        if self.padded:
            return self.held.take_positions()
        return self.held.columns if self.held.columns.ndim == 2 else self.held.columns[None]

    @cached_property
    def learned(self) -> Float[Tensor, "rows pos d_model"]:
        """Learned embeddings of the held tokens' positions; UserError for a model without them."""
        table = self.net.pos_embed
        if table is None:
            raise UserError(f"family {self.net.family.name} has no learned positions")
        out: Tensor = table(self.positions + self.net.family.position_offset)
        return out

    def allowed(self, window: int | None) -> Bool[Tensor, "rows 1 query key"]:
        """Which keys each held query may read; one row where all rows agree."""
        if window not in self._masks:
            self._masks[window] = self._build(window)
        return self._masks[window]

    def hidden(self, window: int | None, keys: int) -> Float[Tensor, "rows 1 query key"]:
        """The same as numbers to add to scores: 0 where a query may read, −∞ where not, as beyond the columns."""
        if (window, keys) not in self._hidden:
            allowed = self.allowed(window)
            every = torch.full((*allowed.shape[:-1], keys), -torch.inf, device=allowed.device)
            every[..., : allowed.shape[-1]].masked_fill_(allowed, 0.0)
            self._hidden[window, keys] = every
        return self._hidden[window, keys]

    def _build(self, window: int | None) -> Tensor:
        query = (self.held.columns if self.held.columns.ndim == 2 else self.held.columns[None])[:, :, None]
        key = torch.arange(self.prompts.width, device=query.device)[None, None]
        if self.net.geometry.causal:
            ok = key <= query
            if window is not None:
                ok = ok & (key > query - window)
        else:
            ok = torch.ones(1, query.shape[1], key.shape[-1], dtype=torch.bool, device=query.device)
        if self.padded:
            ok = ok & self.prompts.mask[:, None] & self.held.take(self.prompts.mask)[:, :, None]
        return ok[:, None]

    @cached_property
    def bias(self) -> Float[Tensor, "rows head 1 key"] | None:
        """What is added to each head's scores by the key's position; None where the family adds nothing."""
        if not self.net.family.alibi:
            return None
        width, device = self.prompts.width, self.positions.device
        place = self.prompts.positions if self.padded else torch.arange(width, device=device)[None]
        return (slopes(self.net.geometry.heads).to(device)[:, None, None] * place[:, None, None]).to(self.dtype)

    def angles(self, layer: int) -> tuple[Float[Tensor, "rows pos rot"], Float[Tensor, "rows pos rot"]] | None:
        """Cosines and sines of a layer's rotary embedding at the held tokens."""
        kind = self.net.layers[layer].rotary_kind
        if kind not in self._angles:
            self._angles[kind] = rotary_angles(self.net, self.positions, self.dtype, kind)
        return self._angles[kind]

    def rotate(self, x: Float[Tensor, "batch pos head d_head"], layer: int) -> Float[Tensor, "batch pos head d_head"]:
        """Rotary embedding of a layer's queries or keys at the held tokens; the identity where there is none."""
        return self.turned(x, self.angles(layer))

    def turned(self, x: Float[Tensor, "batch pos head d_head"], angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """The rotary embedding by these angles; the identity where there are none."""
        if angles is None:
            return x
        family, dtype = self.net.family, x.dtype
        x = x.to(torch.promote_types(dtype, torch.float32)) if family.rotary_fp32 else x
        cos, sin = (a[:, :, None].to(x.device) for a in angles)
        width = cos.shape[-1]
        if width == x.shape[-1]:
            return self._turn(x, cos, sin).to(dtype)
        turned = self._turn(x[..., :width], cos, sin)
        return torch.cat([turned, x[..., width:]], -1).to(dtype)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs = self.net.family.rotary_pairs
        if self.net.loose and pairs == "halves" and not torch.is_grad_enabled():
            return loose.turned(x, cos, sin)
        return _turn(x, cos, sin, pairs)


def rotary_angles(
    net: Net, positions: Int[Tensor, "rows pos"], dtype: torch.dtype, kind: str | None
) -> tuple[Float[Tensor, "rows pos rot"], Float[Tensor, "rows pos rot"]] | None:
    """What a model's rotary module says of positions, as (cos, sin); None where it has no such module."""
    if net.rotary is None:
        return None
    like = torch.empty(0, dtype=dtype, device=positions.device)
    cos, sin = net.family.rotary_angles(net.rotary(like, positions, *([] if kind is None else [kind])))
    return cos, sin


def slopes(heads: int) -> Float[Tensor, " head"]:
    """ALiBi's slopes: powers of 2^(−8/n) for n heads, n a power of 2; heads beyond take every other one of 2n's."""
    whole = 1 << (heads.bit_length() - 1)

    def powers(n: int) -> Tensor:
        return torch.tensor(2 ** (-8 / n), dtype=torch.float32) ** torch.arange(1, n + 1, dtype=torch.int32)

    return torch.cat([powers(whole), powers(2 * whole)[::2][: heads - whole]])


def _turn(x: Tensor, cos: Tensor, sin: Tensor, pairs: str) -> Tensor:
    if pairs == "halves":
        a, b = x.chunk(2, -1)
        turned = torch.cat((-b, a), -1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x * cos).add_(turned.mul_(sin))
