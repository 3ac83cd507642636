"""Cells of a table to token ids, answers, positions.

A prompt is text or a list of token ids. An answer cell holds one answer or a list of them; an answer is text,
a token id, or a list of token ids (several tokens). A flat list of ids is therefore several answers.

In CSV, where every cell is text, a JSON list or JSON string is read as such, and an answer of digits only is a
token id; where those digits are also one token of their own, the row is ambiguous and `ids` must say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interp.registry import UserError
from interp.tasks.tokens import Codec


@dataclass(frozen=True)
class Reader:
    """How cells are read: with which codec, BOS or not, and whether all of them are text (CSV)."""

    codec: Codec
    bos: bool
    text_cells: bool
    ids: bool | None = None

    def prompt(self, cell: Any) -> tuple[list[int], int]:
        """Token ids, and how many tokens BOS added before the cell's own (0 or 1)."""
        value = self._value(cell)
        if isinstance(value, str):
            return self.codec.encode(value, self.bos), int(self.bos)
        ids = [value] if isinstance(value, int) else value
        if not _whole(ids) or not ids:
            raise UserError(f"a prompt is text or a list of token ids, got {_show(cell)}")
        self._in_vocabulary(ids)
        full = self.codec.with_bos(ids, self.bos)
        return full, len(full) - len(ids)

    def answers(self, cell: Any) -> list[list[int]]:
        """Answers as token ids, each once."""
        value = self._value(cell, answer=True)
        found = [self._answer(v) for v in (value if isinstance(value, list) else [value])]
        if not found:
            raise UserError("no answer")
        for ids in found:
            self._in_vocabulary(ids)
        return [list(ids) for ids in dict.fromkeys(map(tuple, found))]

    def _answer(self, value: Any) -> list[int]:
        if isinstance(value, str):
            return self.codec.answer(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return [value]
        if isinstance(value, list) and value and _whole(value):
            return list(value)
        raise UserError(f"an answer is text, a token id or a list of token ids, got {_show(value)}")

    def _value(self, cell: Any, answer: bool = False) -> Any:
        value = plain(cell)
        if value is None or value == "":
            raise UserError("is empty")
        if not (self.text_cells and isinstance(value, str)):
            return value
        if value.lstrip()[:1] in ("[", '"'):
            parsed = _json(value)
            if isinstance(parsed, str) or (isinstance(parsed, list) and (answer or _whole(parsed))):
                return parsed
        if answer and value.isascii() and value.isdigit() and self.ids is not False:
            if self.ids is None and self.codec.tokenizer is not None and self.codec.single(value) is not None:
                raise UserError("digits may be a token id or the text itself; say ids=True or ids=False")
            if len(value) > 18:
                raise UserError(f"a token id of {len(value)} digits")
            return int(value)
        return value

    def _in_vocabulary(self, ids: Sequence[int]) -> None:
        bad = [i for i in ids if not 0 <= i < self.codec.d_vocab]
        if bad:
            raise UserError(f"token id outside the vocabulary of {self.codec.d_vocab}: {bad[0]}")


def plain(cell: Any) -> Any:
    """A cell as plain Python: arrays as lists, whole floats as ints, missing values as None."""
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    if isinstance(cell, tuple):
        cell = list(cell)
    if isinstance(cell, list):
        return [plain(c) for c in cell]
    if isinstance(cell, float):
        return None if math.isnan(cell) else (int(cell) if cell.is_integer() else cell)
    # pandas' own missing values are neither None nor float
    return None if type(cell).__name__ in ("NAType", "NaTType") else cell


def position(cell: Any, text_cells: bool, lengths: tuple[int, int], shift: tuple[int, int]) -> tuple[int, int]:
    """Real index in the clean and in the corrupt prompt; −1 where the cell is empty.

    A cell is one whole number for both, or a pair. Numbers count the cell's own tokens: negative ones from the
    end, others from its first token, BOS not counted where it was added.
    """
    value = plain(cell)
    if text_cells and isinstance(value, str):
        value = _json(value) if value.strip() else None
    if value is None:
        return -1, -1
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not _whole(pair):
        raise UserError(f"a position is a whole number or a pair of them, got {_show(cell)}")
    found = []
    for at, length, added in zip(pair, lengths, shift, strict=True):
        index = at + length if at < 0 else at + added
        if not added <= index < length:
            raise UserError(f"position {at} lies outside a prompt of {length - added} tokens")
        found.append(index)
    return found[0], found[1]


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in values)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _show(cell: Any) -> str:
    shown = repr(cell)
    return shown if len(shown) <= 40 else shown[:37] + "..."
