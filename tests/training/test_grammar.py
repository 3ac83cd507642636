"""The rows of `toy-ioi`: nothing held out appears, every answer is decided by the words, repeats repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from interp.tasks import lexicon, templates
from interp.training import held_out as held
from interp.training.grammar import EARLY, EARLY_STEPS, FREE, LATE, PLAIN, WEIGHTS, Mix, Row, held_out, mix_at, rows
from interp.training.vocabulary import BOS, PAD, SPECIAL, UNK, encode, save_tokenizer, split, vocabulary

MIX = LATE
STEPS = range(40)
WORDS = list(vocabulary())
NUMBER = {word: n for pair in (*lexicon.NOUNS, *lexicon.ATTRACTORS, *lexicon.VERBS) for n, word in enumerate(pair)}
LEMMA = {word: pair.singular for pair in (*lexicon.NOUNS, *lexicon.ATTRACTORS) for word in pair}
NOUN_FORMS = {word for pair in lexicon.NOUNS for word in pair}
ATTRACTOR_FORMS = {word for pair in lexicon.ATTRACTORS for word in pair}


def text_rows() -> Iterator[Row]:
    for step in STEPS:
        long, short = rows(0, step, MIX)
        yield from long[MIX.repeated :]
        yield from short


def words(row: Row) -> list[str]:
    return [WORDS[i] for i in row.tokens if WORDS[i] not in (BOS, PAD)]


def sentences(row: Row) -> list[list[str]]:
    """The complete sentences of a row: a cut one at its end is left out, and so are stray words before one."""
    parts = [part.split() for part in " ".join(words(row)).split(".")[:-1]]
    return [part for part in parts if part[0][0].isupper()]


def kind_of(sentence: list[str]) -> str:
    if any(word in lexicon.NAMES for word in sentence):
        return "ioi"
    return "greater_than" if any(word in lexicon.EVENTS for word in sentence) else "subject_verb"


EVERY = [(kind_of(s), s) for row in text_rows() for s in sentences(row)]


def of(kind: str) -> list[list[str]]:
    return [s for k, s in EVERY if k == kind]


def test_all_kinds_are_there() -> None:
    counts = Counter(kind for kind, _ in EVERY)
    total = sum(counts.values())
    for kind, share in (("ioi", MIX.ioi), ("greater_than", MIX.greater_than), ("subject_verb", MIX.subject_verb)):
        assert counts[kind] / total == pytest.approx(share, abs=0.05)


def test_no_held_out_name_pair_in_any_row() -> None:
    seen = 0
    for row in text_rows():
        names = {word for word in words(row) if word in lexicon.NAMES}
        seen += len(names)
        assert not any(held_out(a, b) for a, b in combinations(sorted(names), 2))
    assert seen > 1000


def test_ioi_answers() -> None:
    """With two names the answer is the one named once before; both orders occur evenly, ABC in one of ten."""
    orders: Counter[str] = Counter()
    for s in of("ioi"):
        *before, answer = [word for word in s if word in lexicon.NAMES]
        a, b, giver = before
        assert a != b
        if giver in (a, b):
            assert [answer] == [name for name in (a, b) if name != giver]
            orders["BABA" if giver == a else "ABBA"] += 1
        else:
            assert answer in (a, b)
            orders["ABC"] += 1
    total = sum(orders.values())
    assert orders["ABC"] / total == pytest.approx(0.1, abs=0.03)
    assert orders["ABBA"] / total == pytest.approx(0.45, abs=0.05)


def test_names_are_uniform() -> None:
    counts = Counter(word for s in of("ioi") for word in s[:-1] if word in lexicon.NAMES)
    mean = sum(counts.values()) / len(lexicon.NAMES)
    assert set(counts) == set(lexicon.NAMES)
    assert max(counts.values()) < 2 * mean
    assert min(counts.values()) > mean / 3


def test_years() -> None:
    """Same century twice, the answer later than the first year, no held-out (century, year)."""
    for s in of("greater_than"):
        century, year, again, answer = [word for word in s if word.isdigit()]
        assert century == again
        assert century in lexicon.CENTURIES
        assert answer > year
        assert not held_out(century, year)


def test_agreement() -> None:
    mixed = 0
    for s in of("subject_verb"):
        (noun,) = [word for word in s if word in NOUN_FORMS]
        (attractor,) = [word for word in s if word in ATTRACTOR_FORMS]
        # "is" also opens "It is said that", so the verb is the sentence's last word
        assert NUMBER[s[-1]] == NUMBER[noun]
        assert not held_out(LEMMA[noun], LEMMA[attractor])
        mixed += NUMBER[noun] != NUMBER[attractor]
    assert mixed / len(of("subject_verb")) == pytest.approx(0.5, abs=0.06)


def test_held_out_templates_are_not_trained_on() -> None:
    groups = {"ioi": templates.IOI, "greater_than": templates.GREATER_THAN, "subject_verb": templates.SUBJECT_VERB}
    for kind, group in groups.items():
        seen = {" ".join(shape(s)) for s in of(kind)}
        for template in group:
            filler = {slot: {"XX": "17", "YY": "32", "XX2": "17"}.get(slot, word(slot)) for slot in template.slots}
            spelled = " ".join(shape([*split(template.fill(filler).text), "X"]))
            assert (spelled in seen) != template.held_out, template.text


def word(slot: str) -> str:
    return {
        "A": "Mary", "B": "John", "C": "John", "PLACE": "park", "OBJECT": "ring", "EVENT": "war",
        "SUBJECT": "keys", "PREP": "near", "ATTRACTOR": "wall",
    }.get(slot, "")  # fmt: skip


def shape(sentence: list[str]) -> list[str]:
    """The sentence with every lexicon word blotted out, and its answer dropped."""
    loose = {*lexicon.NAMES, *lexicon.PLACES, *lexicon.OBJECTS, *lexicon.EVENTS, *lexicon.YEARS}
    loose |= NOUN_FORMS | ATTRACTOR_FORMS
    prepositions = set(lexicon.PREPOSITIONS)
    out = []
    for i, token in enumerate(sentence[:-1]):
        after_noun = i > 0 and sentence[i - 1] in NOUN_FORMS
        out.append("_" if token in loose or (token in prepositions and after_noun) else token)
    return out


def test_words_of_held_out_templates_are_trained_on() -> None:
    trained = {w for _, s in EVERY for w in s}
    for group in (templates.IOI, templates.GREATER_THAN, templates.SUBJECT_VERB):
        for template in group:
            assert set(split(template.words)) <= trained | {","}


@pytest.mark.parametrize("mix", [EARLY, LATE])
def test_repetition_rows(mix: Mix) -> None:
    """Every weighed target follows the token it followed before in the row, at distances of all sorts."""
    distances: Counter[int] = Counter()
    for step in STEPS:
        for row in rows(0, step, mix)[0][: mix.repeated]:
            assert set(row.weights) <= {0.0, WEIGHTS["repetition"]}
            body = row.tokens[row.tokens[0] == vocabulary()[BOS] :]
            assert min(body) >= len(SPECIAL)
            for i, weight in enumerate(row.weights):
                if not weight:
                    continue
                pair = row.tokens[i - 1 : i + 1]
                back = [d for d in range(1, i) if row.tokens[i - 1 - d : i + 1 - d] == pair]
                assert back
                distances[back[0]] += 1
    assert mix.longest <= mix.length / 2
    assert set(distances) >= set(range(2, mix.longest))
    # no single distance answers more than a third of them
    assert max(distances.values()) < sum(distances.values()) / 3


def test_rows_are_a_function_of_seed_and_step() -> None:
    assert rows(3, 7, MIX) == rows(3, 7, MIX)
    assert rows(3, 7, MIX) != rows(3, 8, MIX)
    assert rows(3, 7, MIX) != rows(4, 7, MIX)


def test_choices_are_what_the_sentence_allows() -> None:
    """Later years, verbs of the right number, the two people of an ABC sentence; one of them stands there."""
    sizes: Counter[int] = Counter()
    for row in text_rows():
        for choice in row.choices:
            options = [WORDS[i] for i in choice.tokens]
            here = WORDS[row.tokens[choice.pos]]
            assert here in options
            assert row.weights[choice.pos] == 0
            before = [WORDS[i] for i in row.tokens[: choice.pos]]
            if here in lexicon.YEARS:
                year = next(w for w in reversed(before[:-1]) if w.isdigit())
                assert options == [y for y in lexicon.YEARS if y > year]
            elif here in lexicon.NAMES:
                people = [w for w in before if w in lexicon.NAMES][-3:]
                assert options == people[:2]
                assert people[2] not in options
            else:
                assert options == [verb[NUMBER[here]] for verb in lexicon.VERBS]
            sizes[len(options)] += 1
    assert sizes[2] > 10
    assert sizes[len(lexicon.VERBS)] > 100


def test_single_sentences_stand_at_many_places() -> None:
    starts = Counter(words(row).index(sentences(row)[0][0]) for step in STEPS for row in rows(0, step, MIX)[1])
    assert starts[0] > 0.4 * sum(starts.values())
    assert len(starts) > 10


def test_short_rows_come_first() -> None:
    assert mix_at(0) == mix_at(EARLY_STEPS - 1) == EARLY
    assert mix_at(EARLY_STEPS) == LATE
    assert EARLY.length < LATE.length


def test_widths_weights_and_words() -> None:
    for row in text_rows():
        assert len(row.tokens) == len(row.weights) in (MIX.length, MIX.short)
        assert vocabulary()[UNK] not in row.tokens
        pad = vocabulary()[PAD]
        assert all(w == 0 for t, w in zip(row.tokens, row.weights, strict=True) if t == pad)
        assert set(row.weights) <= {0.0, FREE, PLAIN, *WEIGHTS.values()}
    for row in (r for step in STEPS for r in rows(0, step, MIX)[1]):
        # a single sentence is never cut: its full stop is there, and one target decides it at most
        assert words(row)[-1] == "."
        assert len(sentences(row)) == 1
        assert sum(w > PLAIN for w in row.weights) + len(row.choices) == 1


def test_held_out_prompts_are_held_out() -> None:
    names = [{p.io, p.s} for p in held.ioi(0, 200)]
    assert all(held_out(*(WORDS[i] for i in pair)) for pair in names)
    for p in held.ioi(0, 50):
        assert len(p.clean) == len(p.s2_to_io) == len(p.s2_to_other)
        differ = [i for i, (a, b) in enumerate(zip(p.clean, p.s2_to_io, strict=True)) if a != b]
        assert len(differ) == 1
        assert (p.clean[differ[0]], p.s2_to_io[differ[0]]) == (p.s, p.io)
        assert p.s2_to_other[differ[0]] not in (p.s, p.io)
    share = sum(held_out(a, b) for a, b in combinations(lexicon.NAMES, 2)) / (64 * 63 / 2)
    assert share == pytest.approx(0.15, abs=0.03)


def test_tokenizer_files(tmp_path: Path) -> None:
    """What transformers loads cuts text as the grammar does, and adds nothing."""
    from transformers import AutoTokenizer

    save_tokenizer(tmp_path, 64)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in (
        "When Mary and John went to the park, Mary gave a ring to",
        "It began in 1732 and ended in 17",
        "Zzz.",
    ):
        assert tokenizer.encode(text) == encode(text)
    assert tokenizer.encode(" Mary") == tokenizer.encode("Mary") == [vocabulary()["Mary"]]
    assert tokenizer.encode("1732") == [vocabulary()["17"], vocabulary()["32"]]
    assert tokenizer.bos_token_id == vocabulary()[BOS]
    assert tokenizer.encode(BOS + " Mary") == [vocabulary()[BOS], vocabulary()["Mary"]]
    assert tokenizer.decode(encode("The keys near")) == "The keys near"
    assert len(tokenizer) == len(vocabulary())
