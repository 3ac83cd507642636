"""`Prompts`: the tokens of a batch, and where each of them stands.

Two ways to count tokens meet here and nowhere else:

- a *column* is an index into the padded tensors, `0 … pos−1`;
- a *real index* counts the row's own tokens, `0 … length−1`; negative ones count from its end.

`Prompts` converts between them. Padding may lie on the left or on the right of a row, never inside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.registry import UserError, unknown

Frozen = TypeVar("Frozen")


@dataclass(frozen=True, eq=False)
class Prompts:
    """Tokens of a batch of prompts, with what is known of their positions.

    `answer` is the real index of the token whose logits are read (the last one by default). `labels` maps a
    name to a real index per row, −1 where a row has no such token. `suffix` counts answer tokens appended
    for scoring: they are run, but −1 still means the prompt's own last token.

    >>> Prompts.of([[1, 2, 3], [4, 5]]).lengths.tolist()
    [3, 2]
    """

    tokens: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    answer: Int[Tensor, " batch"]
    labels: Mapping[str, Int[Tensor, " batch"]] = field(default_factory=dict)
    template: Int[Tensor, " batch"] | None = None
    suffix: Int[Tensor, " batch"] | None = None
    text: tuple[str, ...] | None = None
    _alike: WeakKeyDictionary[Prompts, dict[tuple[str, ...], bool]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))

    def __repr__(self) -> str:
        named = f", labels {', '.join(self.labels)}" if self.labels else ""
        return f"Prompts({len(self.tokens)} of up to {self.tokens.shape[1]} tokens{named})"

    @staticmethod
    def of(
        tokens: Int[Tensor, "batch pos"] | Sequence[Sequence[int]],
        mask: Tensor | None = None,
        *,
        answer: Int[Tensor, " batch"] | None = None,
        labels: Mapping[str, Int[Tensor, " batch"]] | None = None,
        template: Int[Tensor, " batch"] | None = None,
        suffix: Int[Tensor, " batch"] | None = None,
        text: Sequence[str] | None = None,
        pad_side: str = "right",
        pad_id: int = 0,
    ) -> Prompts:
        """Build and check prompts from a token tensor, or from rows of unequal length (padded here).

        Raises UserError where a row is empty, a mask has holes, or a label or answer lies outside its row.

        >>> p = Prompts.of([[5, 6, 7], [8, 9]])
        >>> p.tokens.tolist(), p.lengths.tolist(), p.answer.tolist()
        ([[5, 6, 7], [8, 9, 0]], [3, 2], [2, 1])
        """
        if not isinstance(tokens, Tensor):
            tokens, mask = _pad(_rows(tokens), pad_side, pad_id)
        if tokens.ndim == 1:
            tokens = tokens[None]
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise UserError(f"tokens must be whole numbers [batch, pos], got {tokens.dtype} {tuple(tokens.shape)}")
        real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.to(tokens.device).bool()
        if real.shape != tokens.shape:
            raise UserError(f"mask {tuple(real.shape)} does not fit tokens {tuple(tokens.shape)}")
        _check_mask(real)
        length = real.sum(1) - (0 if suffix is None else suffix)
        prompts = Prompts(
            tokens.long(), real, length - 1 if answer is None else answer.long(),
            {k: v.long() for k, v in (labels or {}).items()}, template, suffix, None if text is None else tuple(text),
        )  # fmt: skip
        for name, index in {"answer": prompts.answer, **prompts.labels}.items():
            low = 0 if name == "answer" else -1
            bad = ((index < low) | (index >= real.sum(1))).nonzero().flatten().tolist()
            if bad:
                where = f"position {int(index[bad[0]])} of a row of {int(real.sum(1)[bad[0]])} tokens"
                raise UserError(f"{name} of row {bad[0]} lies outside its prompt: {where}")
        return prompts

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """Number of columns, padding included."""
        return self.tokens.shape[1]

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @cached_property
    def lengths(self) -> Int[Tensor, " batch"]:
        """Real tokens of each row, answer suffix left out."""
        full = self.mask.sum(1)
        return full if self.suffix is None else full - self.suffix

    @cached_property
    def starts(self) -> Int[Tensor, " batch"]:
        """Column of each row's first real token."""
        return self.mask.int().argmax(1)

    @cached_property
    def positions(self) -> Int[Tensor, "batch pos"]:
        """Real index of every column; 0 on padding."""
        return (self.mask.long().cumsum(1) - 1).clamp(min=0) * self.mask

    @cached_property
    def padded(self) -> bool:
        return not bool(self.mask.all())

    def rows(self, index: Tensor | Sequence[int] | slice) -> Prompts:
        """The prompts of these rows."""
        i = index if isinstance(index, slice) else torch.as_tensor(index, device=self.device)

        def pick(t: Tensor) -> Tensor:
            return t[i]

        kept = range(len(self))[index] if isinstance(index, slice) else [int(k) for k in torch.as_tensor(index)]
        return replace(
            self,
            tokens=pick(self.tokens), mask=pick(self.mask), answer=pick(self.answer),
            labels={k: pick(v) for k, v in self.labels.items()},
            template=None if self.template is None else pick(self.template),
            suffix=None if self.suffix is None else pick(self.suffix),
            text=None if self.text is None else tuple(self.text[k] for k in kept),
        )  # fmt: skip

    def repeat(self, times: int) -> Prompts:
        """The whole batch, `times` times over."""
        return self.rows(torch.arange(len(self), device=self.device).repeat(times))

    def to(self, device: torch.device | str) -> Prompts:
        """The same prompts on another device; these themselves, with what is known of them, where they are there."""
        labels = {k: v.to(device) for k, v in self.labels.items()}
        here = all(t is self.labels[k] for k, t in labels.items())
        return moved(self if here else replace(self, labels=labels), device)

    def real_index(self, place: int | str) -> Int[Tensor, " batch"]:
        """Real index of an integer position or a label, per row; −1 where the row has no such token.

        Integers outside every row, and labels that no prompt carries, raise UserError.
        """
        if isinstance(place, str):
            if place not in self.labels:
                raise unknown("position label", place, sorted(self.labels))
            return self.labels[place]
        lengths = self.lengths
        index = lengths + place if place < 0 else torch.full_like(lengths, place)
        outside = (index < 0) | (index >= self.mask.sum(1))
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            raise UserError(f"position {place} lies outside prompt {row}, which has {int(lengths[row])} tokens")
        return index

    def stands_like(self, other: Prompts, labels: tuple[str, ...] = ()) -> bool:
        """Whether other prompts' tokens stand in the same rows and columns, and these labels at the same tokens."""
        if other is self:
            return True
        known = self._alike.setdefault(other, {})
        if labels not in known:
            known[labels] = self._stands_like(other) and all(
                name in other.labels and torch.equal(self.real_index(name), other.real_index(name)) for name in labels
            )
        return known[labels]

    def _stands_like(self, other: Prompts) -> bool:
        same = self.tokens.shape == other.tokens.shape
        return same and (not (self.padded or other.padded) or torch.equal(self.mask, other.mask))

    def column(self, place: int | str) -> Int[Tensor, " batch"]:
        """Column of an integer position or a label, per row; −1 where the row has no such token."""
        index = self.real_index(place)
        return torch.where(index < 0, index, index + self.starts) if self.padded else index

    @cached_property
    def answer_columns(self) -> Int[Tensor, " batch"]:
        """Column whose logits are read, per row."""
        return self.answer + self.starts

    def digest(self) -> str:
        """sha256 of everything that changes a number: tokens, mask, answer, labels, templates, suffix."""
        h = hashlib.sha256()
        named = {"tokens": self.tokens * self.mask, "mask": self.mask, "answer": self.answer, **self.labels}
        for extra in ("template", "suffix"):
            if getattr(self, extra) is not None:
                named[extra] = getattr(self, extra)
        for name in sorted(named):
            h.update(name.encode() + b"\0" + named[name].long().cpu().numpy().tobytes())
        return h.hexdigest()


def moved(value: Frozen, device: torch.device | str) -> Frozen:
    """A frozen value with all of its parts that can be moved on a device; the value itself where they are there."""
    parts = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    there = {name: part.to(device) for name, part in parts.items() if hasattr(part, "to")}
    return value if all(part is parts[name] for name, part in there.items()) else replace(value, **there)  # type: ignore[type-var]


def _rows(given: object) -> list[list[int]]:
    """Rows of token ids as lists; UserError for what is no rows."""
    rows: list[list[int]] = []
    for row in given if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else [given]:
        if not isinstance(row, Iterable) or isinstance(row, str | bytes | Mapping):
            raise UserError(f"token ids are given as rows of whole numbers, such as [[1, 2, 3]]; got {_short(given)}")
        rows.append(list(row))
    return rows


def _whole(row: list[int]) -> Tensor:
    try:
        ids = torch.tensor(row)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        ids = torch.empty(0)
    if ids.ndim != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise UserError(f"a row of token ids must be whole numbers, got {_short(row)}")
    return ids


def _short(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # a number of thousands of digits
        return type(value).__name__
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _pad(rows: list[list[int]], side: str, pad_id: int) -> tuple[Tensor, Tensor]:
    if not rows or not all(rows):
        raise UserError("prompts must have at least one row, and each row at least one token")
    if side not in ("left", "right"):
        raise UserError(f"pad_side must be 'left' or 'right', got {side!r}")
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), pad_id)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        at = slice(width - len(row), None) if side == "left" else slice(0, len(row))
        tokens[i, at] = _whole(row)
        mask[i, at] = True
    return tokens, mask


def _check_mask(mask: Bool[Tensor, "batch pos"]) -> None:
    if mask.shape[0] == 0 or mask.shape[1] == 0:
        raise UserError(f"prompts must have at least one row and one token, got shape {tuple(mask.shape)}")
    rises = (mask[:, 1:] & ~mask[:, :-1]).sum(1) + mask[:, 0]
    bad = (rises != 1).nonzero().flatten().tolist()
    if bad:
        what = "has no real token" if not bool(mask[bad[0]].any()) else "has padding between real tokens"
        raise UserError(f"mask row {bad[0]} {what}; padding may lie on the left or on the right only")
