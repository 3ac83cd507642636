"""Sentence templates of our tasks, with slots from which label positions follow token by token.

A template is English text with `{SLOT}`s. `fill` puts words in and returns the text together with its pieces:
each piece is a slot's word (with the space before it) or the plain text between slots, so a caller finds a
slot's token either way:

- `Filled.tokens(encode)` encodes piece by piece and says at which token each slot ends. Byte-level BPE
  (GPT-2) and word-level tokenizers never join two pieces, so this equals encoding the whole text;
- `Filled.spans` are character spans in the text, for tokenizers that report offsets.

Slots: IOI has `{A}` and `{B}` (the two people in the order they appear), `{C}` (who acts in the second
clause), `{PLACE}`, `{OBJECT}`; `IOI_ROLES` says which slot is IO, S1, S2 in each order. Greater-than has
`{EVENT}`, `{XX}` `{YY}` (the first year) and `{XX2}` (the second year's century). Subject-verb has
`{SUBJECT}`, `{PREP}`, `{ATTRACTOR}`. Every template ends right before its answer.

Templates marked `held_out` are kept from the training of `toy-ioi`; their words all occur in other templates.
Written for this package. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter

from interp.registry import UserError

ORDERS: tuple[str, ...] = ("ABBA", "BABA")
IOI_ROLES: Mapping[str, Mapping[str, str]] = {
    "ABBA": {"IO": "A", "S1": "B", "S2": "C"},
    "BABA": {"S1": "A", "IO": "B", "S2": "C"},
}
"""Which slot plays which role: ABBA names IO first, BABA names S first. "S1+1" is the token after S1, and
"END" the last one."""


@dataclass(frozen=True)
class Piece:
    """A stretch of text; `slot` where it is a slot's word, else None."""

    text: str
    slot: str | None = None


@dataclass(frozen=True)
class Filled:
    """A template with its words put in."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Character span [start, end) of each slot's word in `text`, without the space before it."""
        spans, at = {}, 0
        for piece in self.pieces:
            if piece.slot:
                lead = len(piece.text) - len(piece.text.lstrip())
                spans[piece.slot] = (at + lead, at + len(piece.text))
            at += len(piece.text)
        return spans

    def tokens(self, encode: Callable[[str], list[int]]) -> tuple[list[int], dict[str, int]]:
        """Token ids, and the index of each slot's last token. `encode` must add no special tokens."""
        ids: list[int] = []
        ends: dict[str, int] = {}
        for piece in self.pieces:
            ids += encode(piece.text)
            if piece.slot:
                ends[piece.slot] = len(ids) - 1
        return ids, ends


@dataclass(frozen=True)
class Template:
    """A sentence with slots."""

    text: str
    held_out: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        """Slot names in the order they appear."""
        return tuple(slot for _, slot, _, _ in Formatter().parse(self.text) if slot)

    @property
    def words(self) -> str:
        """The text outside the slots."""
        return " ".join(text for text, _, _, _ in Formatter().parse(self.text))

    def fill(self, values: Mapping[str, str]) -> Filled:
        """Put words in. A slot without a word, or a word without a slot, raises UserError.

        >>> f = Template("Then {A} and {B} met").fill({"A": "Mary", "B": "John"})
        >>> f.text, f.spans
        ('Then Mary and John met', {'A': (5, 9), 'B': (14, 18)})
        """
        if set(values) != set(self.slots):
            raise UserError(f"template {self.text!r} has slots {list(self.slots)}, got words for {sorted(values)}")
        pieces: list[Piece] = []
        for literal, slot, _, _ in Formatter().parse(self.text):
            # the space before a slot belongs to its word: " Mary" is the token, not "Mary"
            space = " " if slot and literal.endswith(" ") else ""
            plain = literal.removesuffix(space) if space else literal
            if plain:
                pieces.append(Piece(plain))
            if slot:
                pieces.append(Piece(space + values[slot], slot))
        return Filled(tuple(pieces))


IOI: tuple[Template, ...] = (
    Template("When {A} and {B} went to the {PLACE}, {C} gave a {OBJECT} to"),
    Template("Then, {A} and {B} had a long talk at the {PLACE}, and {C} handed a {OBJECT} to"),
    Template("After {A} and {B} left the {PLACE}, {C} sent a {OBJECT} to"),
    Template("While {A} and {B} were working at the {PLACE}, {C} offered a {OBJECT} to"),
    Template("One day, {A} and {B} met in the {PLACE}, where {C} showed a {OBJECT} to"),
    Template("Because {A} and {B} were late for the {PLACE}, {C} wanted to give a {OBJECT} to"),
    Template("The {PLACE} was where {A} and {B} met, and there {C} passed a {OBJECT} to"),
    Template("With a {OBJECT} for the {PLACE}, {A} and {B} went out, and {C} told a story to"),
    Template("Last week {A} and {B} looked for a {OBJECT} in the {PLACE}, and then {C} brought it to"),
    Template("In the morning {A} and {B} found a {OBJECT} near the {PLACE}, so {C} lent it to"),
    Template("After {A} and {B} met at the {PLACE}, {C} wanted to give a {OBJECT} to", held_out=True),
    Template("One day, {A} and {B} met in the {PLACE}, and then {C} handed a {OBJECT} to", held_out=True),
)
"""The first clause names two people; in the second, {C} gives something to the other one."""

GREATER_THAN: tuple[Template, ...] = (
    Template("The {EVENT} lasted from the year {XX}{YY} to the year {XX2}"),
    Template("The {EVENT} began in {XX}{YY} and ended in {XX2}"),
    Template("In those days the {EVENT} went on from the year {XX}{YY} until the year {XX2}"),
    Template("It is said that the {EVENT} started in {XX}{YY} and was over in {XX2}"),
    Template("The {EVENT} of the year {XX}{YY} came to an end in the year {XX2}"),
    Template("It is said that the {EVENT} lasted from {XX}{YY} until the year {XX2}", held_out=True),
)
"""{XX2} is the same century as {XX}; the answer is a later year of it."""

SUBJECT_VERB: tuple[Template, ...] = (
    Template("The {SUBJECT} {PREP} the {ATTRACTOR}"),
    Template("Today the {SUBJECT} {PREP} the {ATTRACTOR}"),
    Template("In the morning the {SUBJECT} {PREP} the {ATTRACTOR}"),
    Template("It is said that the {SUBJECT} {PREP} the {ATTRACTOR}"),
    Template("One day, the {SUBJECT} {PREP} the {ATTRACTOR}"),
    Template("In those days the {SUBJECT} {PREP} the {ATTRACTOR}", held_out=True),
)
"""The verb that follows agrees with {SUBJECT}, not with {ATTRACTOR}."""
