"""Text to token ids and back, with exactly one BOS or none, as asked.

One small face over a transformers tokenizer, a `tokenizers.Tokenizer`, or nothing (token ids work without
one; text raises). Rules:

- BOS is added here and only here: whatever the tokenizer adds by itself is left out first;
- answers are encoded as they continue a prompt, never with BOS. Where a tokenizer puts a space of its own
  before a text (SentencePiece style), " Mary" and the word "Mary" give the same id, and an answer without a
  space is encoded behind a letter so that it gets none;
- a piece of text that the vocabulary does not hold raises; it never becomes an unknown token unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from interp.registry import UserError

_BOS_NAMES = ("<bos>", "<s>", "<|begin_of_text|>", "<|endoftext|>", "[CLS]")
_UNK_NAMES = ("<unk>", "[UNK]", "<|unk|>")


@dataclass(frozen=True)
class Codec:
    """A model's tokenizer as tasks use it. `Codec.of(model)` takes any object with `.tokenizer`."""

    tokenizer: Any = field(repr=False)
    d_vocab: int

    @staticmethod
    def of(model: Any) -> Codec:
        """The codec of a model (`.tokenizer` may be None, `.geometry.d_vocab` must be there)."""
        return Codec(getattr(model, "tokenizer", None), int(model.geometry.d_vocab))

    @property
    def _plain(self) -> bool:
        """A `tokenizers.Tokenizer` and not a transformers one."""
        return hasattr(self.tokenizer, "token_to_id") and not hasattr(self.tokenizer, "convert_ids_to_tokens")

    def _require(self) -> None:
        if self.tokenizer is None:
            raise UserError(
                "this model has no tokenizer, so text cannot be read; give token ids (lists of whole numbers), "
                "or load the model with tokenizer=..."
            )

    def _ids(self, text: str, special: bool = False) -> list[int]:
        try:
            found = self._direct.encode(text, add_special_tokens=special)
        except Exception as error:  # tokenizers raises bare Exception for a word outside a word-level vocabulary
            raise UserError(f"{text!r} cannot be encoded: {error}") from error
        return [int(i) for i in (found.ids if hasattr(found, "ids") else found)]

    @property
    def _direct(self) -> Any:
        """What encodes: the fast tokenizer inside a transformers one where the two do the same, in a third of the time.

        They differ where transformers was told to split special tokens, or last to cut or to pad.
        """
        inner = getattr(self.tokenizer, "backend_tokenizer", None)
        if inner is None or inner.truncation or inner.padding or getattr(self.tokenizer, "split_special_tokens", False):
            return self.tokenizer
        return inner

    def _id_of(self, names: Sequence[str]) -> int | None:
        for name in names:
            found = self.tokenizer.token_to_id(name)
            if found is not None:
                return int(found)
        return None

    @cached_property
    def bos_id(self) -> int | None:
        """Id of the beginning-of-sequence token, None where there is none."""
        if self.tokenizer is None:
            return None
        if not self._plain:
            found = self.tokenizer.bos_token_id
            return None if found is None else int(found)
        own, bare = self._ids_or_none("a", special=True), self._ids_or_none("a")
        if own and bare and len(own) > len(bare) and own[0] != bare[0]:
            return own[0]
        return self._id_of(_BOS_NAMES)

    def _ids_or_none(self, text: str, special: bool = False) -> list[int] | None:
        try:
            return self._ids(text, special)
        except UserError:
            return None

    @cached_property
    def unk_id(self) -> int | None:
        """Id of the unknown token, None where there is none."""
        if self.tokenizer is None:
            return None
        if not self._plain:
            found = self.tokenizer.unk_token_id
            return None if found is None else int(found)
        return self._id_of(_UNK_NAMES)

    @cached_property
    def adds_bos(self) -> bool:
        """The tokenizer, left alone, puts a BOS before every text."""
        if self.tokenizer is None or self.bos_id is None:
            return False
        return (self._ids_or_none("a", special=True) or [])[:1] == [self.bos_id]

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Token ids of a text with exactly one BOS (`bos=True`) or none.

        UserError where there is no tokenizer, no BOS token, or a word is not in the vocabulary; and where the
        text itself begins with the BOS token though none was asked for.
        """
        self._require()
        start = self.bos_id
        if bos and start is None:
            raise UserError("bos=True, but this tokenizer has no BOS token")
        ids, literal = self._ids(text), self._says_bos(text)
        while ids and ids[0] == start:
            ids = ids[1:]
        if literal and not bos:
            raise UserError(f"the text {_short(text)} begins with the BOS token though bos=False; say bos=True")
        self._check_known(text, ids)
        return ([int(start)] if bos and start is not None else []) + ids

    def locate(self, text: str, spans: Mapping[str, tuple[int, int]]) -> tuple[list[int], dict[str, int]]:
        """Token ids of a text without BOS, and the index of the one token that each character span is.

        UserError where a span is not exactly one token (with the space before it), or a word is unknown.
        """
        self._require()
        backend = self.tokenizer if self._plain else getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError("this tokenizer reports no offsets; a fast tokenizer is needed to place labels in text")
        ids = self.encode(text)
        found = backend.encode(text, add_special_tokens=False)
        offsets = found.offsets[len(found.ids) - len(ids) :]
        index = {}
        for name, (low, high) in spans.items():
            hits = [i for i, (a, b) in enumerate(offsets) if a < high and b > low and b > a]
            whole = len(hits) == 1 and offsets[hits[0]][0] in (low - 1, low) and offsets[hits[0]][1] == high
            if not whole:
                raise UserError(f"{text[low:high]!r} in {_short(text)} is not one token of this tokenizer")
            index[name] = hits[0]
        return ids, index

    def with_bos(self, ids: Sequence[int], bos: bool) -> list[int]:
        """Token ids given as such: with exactly one BOS if asked, else as they are."""
        if not bos:
            return list(ids)
        start = self.bos_id
        if start is None:
            raise UserError("bos=True needs a tokenizer with a BOS token; write the BOS id into the token ids instead")
        ids = list(ids)
        while ids and ids[0] == start:
            ids = ids[1:]
        return [start, *ids]

    def answer(self, text: str) -> list[int]:
        """Token ids of an answer as it continues a prompt: " Mary" with its space, "52" right after " 17"."""
        # a table has the same few answers in thousands of rows
        if text not in self._answers:
            self._answers[text] = self._answer(text)
        return list(self._answers[text])

    @cached_property
    def _answers(self) -> dict[str, list[int]]:
        return {}

    def _answer(self, text: str) -> list[int]:
        self._require()
        if text == "":
            raise UserError("an answer is empty")
        if not self._own_space:
            ids = self._ids(text)
        elif text.startswith(" "):
            ids = self._ids(text[1:])
        else:
            anchor, both = self._ids("a"), self._ids("a" + text)
            ids = both[len(anchor) :] if both[: len(anchor)] == anchor else self._ids(text)
        if ids[:1] == [self.bos_id] and not self._says_bos(text):
            ids = ids[1:]
        self._check_known(text, ids)
        if not ids:
            raise UserError(f"the answer {text!r} has no tokens")
        return ids

    def single(self, text: str) -> int | None:
        """The id of a text that is one known token, else None."""
        try:
            ids = self.answer(text)
        except UserError:
            return None
        return ids[0] if len(ids) == 1 and ids[0] < self.d_vocab else None

    def ordinary(self) -> list[int]:
        """Every token id of the vocabulary that is not a special token, ascending."""
        tok = self.tokenizer
        if tok is None:
            return list(range(self.d_vocab))
        if self._plain:
            special = {i for i, token in tok.get_added_tokens_decoder().items() if token.special}
            held = int(tok.get_vocab_size(with_added_tokens=True))
        else:
            special, held = {int(i) for i in tok.all_special_ids}, len(tok)
        # a model's embedding may be wider than its tokenizer: those rows stand for nothing
        return [i for i in range(min(self.d_vocab, held)) if i not in special]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; the ids themselves, in brackets, where there is no tokenizer."""
        if self.tokenizer is None:
            return "[" + " ".join(str(int(i)) for i in ids) + "]"
        return str(self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))

    @cached_property
    def _own_space(self) -> bool:
        """The tokenizer marks word starts and puts such a mark before every text (SentencePiece style)."""
        ids = self._ids_or_none("a")
        if not ids:
            return False
        first = self._token(ids[0])
        return first.startswith("▁")

    @cached_property
    def _bos_text(self) -> str | None:
        return None if self.bos_id is None else self._token(self.bos_id)

    def _token(self, token: int) -> str:
        tok = self.tokenizer
        return str(tok.id_to_token(token) if self._plain else tok.convert_ids_to_tokens(token))

    def _says_bos(self, text: str) -> bool:
        return self._bos_text is not None and text.lstrip().startswith(self._bos_text)

    def _check_known(self, text: str, ids: Sequence[int]) -> None:
        unk = self.unk_id
        if unk is not None and unk in ids and self._token(unk) not in text:
            unknown = [w for w in text.split() if unk in (self._ids_or_none(" " + w) or [unk])]
            what = ", ".join(map(repr, unknown[:5])) if unknown else _short(text)
            raise UserError(f"not in the tokenizer's vocabulary: {what}")
        if text and not ids and text.strip():
            raise UserError(f"{_short(text)} gives no tokens")
        high = [i for i in ids if i >= self.d_vocab]
        if high:
            raise UserError(
                f"the tokenizer gives token {high[0]} for {_short(text)}, "
                f"outside the model's vocabulary of {self.d_vocab}"
            )


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
