"""One row of a table to a `Pair` of prompts with answers, or to every reason why it cannot be one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from interp.registry import UserError
from interp.tasks.cells import Reader, plain, position
from interp.tasks.sources import Row

Column = str | Callable[[Row], Any]
"""A column's name, or a function of the row that gives the cell."""
LABEL = "label:"


@dataclass(frozen=True)
class Pair:
    """One good row."""

    clean: list[int]
    corrupt: list[int]
    right: list[list[int]]
    wrong: list[list[int]]
    answer: tuple[int, int]
    labels: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    template: str | None = None
    text: tuple[str, str] | None = None
    number: int = 0

    @property
    def equal(self) -> bool:
        """Both prompts have the same length."""
        return len(self.clean) == len(self.corrupt)

    @property
    def labelled(self) -> bool:
        """It has labels, all of them with a position."""
        return bool(self.labels) and all(min(at) >= 0 for at in self.labels.values())


@dataclass(frozen=True)
class Columns:
    """Which cell is what."""

    clean: Column
    corrupt: Column
    right: Column
    wrong: Column | None

    @cached_property
    def named(self) -> dict[str, Column]:
        """Columns by role; no `wrong` where there are no wrong answers."""
        every = {"clean": self.clean, "corrupt": self.corrupt, "right": self.right, "wrong": self.wrong}
        return {role: c for role, c in every.items() if c is not None}

    def missing(self, there: set[str]) -> list[str]:
        """Names of columns that are not there."""
        return [c for c in self.named.values() if isinstance(c, str) and c not in there]


@dataclass(frozen=True)
class Limits:
    """What a row must fit."""

    n_ctx: int
    causal: bool
    single_token: bool


@dataclass(frozen=True)
class PairReader:
    """Reads rows as pairs."""

    columns: Columns
    reader: Reader
    limits: Limits

    def read(self, row: Row, number: int) -> Pair:
        """The pair of a row; UserError with every reason why the row is bad."""
        faults: list[str] = []
        raw: dict[str, Any] = {}
        one, added_one = self._part(row, "clean", raw, faults) or ([], 0)
        two, added_two = self._part(row, "corrupt", raw, faults) or ([], 0)
        right, wrong = (self._part(row, role, raw, faults) or [] for role in ("right", "wrong"))
        if faults:
            raise UserError("; ".join(faults))
        lengths, shift = (len(one), len(two)), (added_one, added_two)
        answer = self._position(row, "answer_pos", lengths, shift)
        answer = answer if min(answer) >= 0 else (lengths[0] - 1, lengths[1] - 1)
        check_answers(right, wrong, answer, lengths, self.limits)
        labels = {
            name[len(LABEL) :]: self._position(row, name, lengths, shift)
            for name in row
            if isinstance(name, str) and name.startswith(LABEL)
        }
        template = plain(row.get("template"))
        text = (raw["clean"], raw["corrupt"])
        return Pair(
            one, two, right, wrong, answer, labels, None if template is None else str(template),
            text if isinstance(text[0], str) and isinstance(text[1], str) else None, number,
        )  # fmt: skip

    @cached_property
    def _made(self) -> Reader:
        """For cells that a function gives: their types say what they are, whatever the file's format."""
        return replace(self.reader, text_cells=False)

    def _part(self, row: Row, role: str, raw: dict[str, Any], faults: list[str]) -> Any:
        """A prompt or the answers; None, with the reason added to `faults`, where the cell is bad or absent.

        The cell itself goes into `raw`: a function is called once a row, as it may draw.
        """
        column = self.columns.named.get(role)
        if column is None:
            return None
        reader = self.reader if isinstance(column, str) else self._made
        try:
            value = raw[role] = cell(row, column)
            return reader.prompt(value) if role in ("clean", "corrupt") else reader.answers(value)
        except UserError as error:
            label = f"{role} {column!r}" if isinstance(column, str) and column != role else role
            faults.append(f"{label}: {error}")
            return None

    def _position(self, row: Row, name: str, lengths: tuple[int, int], shift: tuple[int, int]) -> tuple[int, int]:
        try:
            return position(row.get(name), self.reader.text_cells, lengths, shift)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error


def cell(row: Row, column: Column) -> Any:
    """A row's cell, by name or by function."""
    if not isinstance(column, str):
        try:
            return column(row)
        except Exception as error:
            raise UserError(f"its function raised {type(error).__name__}: {error}") from error
    if column not in row:
        raise UserError(f"no column {column!r}")
    return row[column]


def check_answers(
    right: list[list[int]],
    wrong: list[list[int]],
    answer: tuple[int, int],
    lengths: tuple[int, int],
    limits: Limits,
) -> None:
    """UserError where the answers of a row contradict one another or do not fit the model."""
    both = set(map(tuple, right)).intersection(map(tuple, wrong))
    if both:
        raise UserError(f"the same answer is right and wrong: token ids {list(min(both))}")
    longest = max(map(len, right + wrong))
    if longest > 1 and limits.single_token:
        raise UserError(f"an answer has {longest} tokens, one was asked for")
    if longest > 1 and not limits.causal:
        raise UserError(f"an answer has {longest} tokens; a bidirectional model cannot be scored on it")
    if longest > 1 and answer != (lengths[0] - 1, lengths[1] - 1):
        raise UserError("an answer of several tokens needs answer_pos at the prompt's end")
    if max(lengths) + longest - 1 > limits.n_ctx:
        raise UserError(f"longer than the model's context of {limits.n_ctx} tokens: {max(lengths) + longest - 1}")
