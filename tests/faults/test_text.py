"""Text and tokens: BOS, tokenizers that are absent, ids outside the vocabulary (faults 26 and 33, the model's side)."""

from __future__ import annotations

from typing import Any

import pytest

from interp.models.model import Model
from interp.registry import UserError
from tests.tiny import tiny


class Letters:
    """a is 1, b is 2 …; like many tokenizers it adds BOS of its own where it is not told to leave it out."""

    def __init__(self, bos: int | None) -> None:
        self.bos_token_id = bos

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(c) - 96 for c in text]
        return {"input_ids": [self.bos_token_id, *ids] if add_special_tokens and self.bos_token_id else ids}  # type: ignore[dict-item]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(96 + i) for i in ids)


def model(tokenizer: Any) -> Model:
    made = tiny("gpt2")
    made.tokenizer = tokenizer
    return made


def test_exactly_one_bos_or_none_as_asked() -> None:
    with_bos = model(Letters(40))
    assert with_bos.prompts("abc").tokens.tolist() == [[1, 2, 3]]
    assert with_bos.prompts("abc", bos=True).tokens.tolist() == [[40, 1, 2, 3]]
    without = model(Letters(None))
    assert without.prompts(["abc", "a"]).tokens.tolist() == [[1, 2, 3], [1, 0, 0]]
    with pytest.raises(UserError, match="has no BOS token"):
        without.prompts("abc", bos=True)


def test_text_needs_a_tokenizer_and_token_ids_do_not() -> None:
    plain = model(None)
    assert plain.run([[1, 2, 3]]).logits.shape == (1, 3, 50)
    assert plain.to_text([1, 2]) == ["1", "2"]
    with pytest.raises(UserError, match=r"has no tokenizer: give token ids, or load it with tokenizer="):
        plain.run("abc")


def test_text_and_tokens_round_trip() -> None:
    made = model(Letters(40))
    p = made.prompts(["abc"])
    assert p.text == ("abc",)
    assert made.to_text(p.tokens) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ([[1, 50]], r"token id 50 lies outside the vocabulary of tiny-gpt2 \(0 to 49\)"),
        ([[-1, 3]], "token id -1"),
        ([[1] * 17], "a prompt of 17 tokens is longer than the 16 positions"),
        ([[]], "each row at least one token"),
        ([], "at least one row"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens: list[list[int]], says: str) -> None:
    with pytest.raises(UserError, match=says):
        model(None).run(tokens)
