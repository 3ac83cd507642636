"""The sentences and rows that `toy-ioi` learns from: IOI, greater-than, agreement, and repeated segments.

Rows are of three kinds, half of each begun with `<bos>`:

- single: one sentence of one of the three tasks, at a random offset, padded on the right;
- packed: sentences one after another, closed by full stops and cut at the row's end;
- repetition: a segment of random tokens repeated to the row's end, its period random. Only these teach
  induction, and they must be there from the first step for induction heads to form.

What decides an answer is never a place: IOI comes in both orders (ABBA, BABA), at any distance and offset, names
drawn uniformly, so the giver's name must be found among the two and the other one copied. One IOI sentence in
ten has a third giver (ABC), after which either person follows: the mean-ablation prompts are in distribution.
Every target carries a weight: its kind's (`WEIGHTS`, which evens out how often kinds occur) where the grammar
decides it, `FREE` where it is a draw (which name, which place), 0 inside a repetition's first copy.

Held out (never in a text row): name pairs, noun-attractor pairs, starting years (century with two digits),
each by a fixed hash, and the templates marked `held_out`.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from interp.tasks import lexicon, templates
from interp.tasks.templates import Template
from interp.training.vocabulary import BOS, PAD, SPECIAL, encode, vocabulary

T = TypeVar("T")
FREE = 0.05
WEIGHTS = {"ioi": 5.0, "greater_than": 5.0, "subject_verb": 8.0, "repetition": 0.7}
HELD_OUT_SHARE = 0.15
STRAY = (*lexicon.PLACES, *lexicon.OBJECTS, *lexicon.EVENTS)
KINDS = ("ioi", "greater_than", "subject_verb")


@dataclass(frozen=True)
class Row:
    """Tokens, and for each the weight of predicting it from those before."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Mix:
    """What a training step holds: rows of each kind, the share of each sentence, periods of repetition."""

    repeated: int
    packed: int
    length: int
    """Tokens of a repetition or packed row."""
    longest: int
    """Longest period of a repetition."""
    shortest: int = 2
    single: int = 48
    short: int = 26
    """Tokens of a row with one sentence; the longest sentence fits."""
    ioi: float = 0.3
    greater_than: float = 0.5
    subject_verb: float = 0.2


EARLY = Mix(repeated=48, packed=2, length=32, longest=15, single=40)
LATE = Mix(repeated=20, packed=4, length=64, longest=32)
EARLY_STEPS = 900


def held_out(a: str, b: str) -> bool:
    """Whether a pair of words is kept from training; the order does not matter. About 15% of pairs are."""
    key = "|".join(sorted((a, b))).encode()
    return zlib.crc32(key) % 1000 < 1000 * HELD_OUT_SHARE


def _choice(rng: random.Random, items: Sequence[T]) -> T:
    return items[rng.randrange(len(items))]


def pick_template(rng: random.Random, group: Sequence[Template], test: bool) -> Template:
    """A template of the asked side."""
    return _choice(rng, [t for t in group if t.held_out == test])


def pick_names(rng: random.Random, n: int, used: Sequence[str] = ()) -> list[str]:
    """`n` names, uniform, none of which forms a held-out pair with another or with those in `used`."""
    names = list(used)
    while len(names) < len(used) + n:
        name = _choice(rng, lexicon.NAMES)
        if name not in names and not any(held_out(name, other) for other in names):
            names.append(name)
    return names[len(used) :]


@dataclass(frozen=True)
class Sentence:
    """A filled template without its answer, and what may follow."""

    text: str
    answer: str
    decided: bool = True
    names: tuple[str, ...] = ()


def ioi_sentence(rng: random.Random, used: Sequence[str] = ()) -> Sentence:
    """An IOI sentence of the training side; its names avoid those in `used`."""
    abc = rng.random() < 0.1
    names = pick_names(rng, 3 if abc else 2, used)
    a, b = names[:2]
    giver = names[2] if abc else _choice(rng, (a, b))
    answer = _choice(rng, (a, b)) if abc else (b if giver == a else a)
    template = pick_template(rng, templates.IOI, False)
    words = {
        "A": a, "B": b, "C": giver,
        "PLACE": _choice(rng, lexicon.PLACES), "OBJECT": _choice(rng, lexicon.OBJECTS),
    }  # fmt: skip
    return Sentence(template.fill(words).text, answer, not abc, tuple(names))


def greater_than_sentence(rng: random.Random) -> Sentence:
    """Two years of one century; the second is uniform among the later ones."""
    while True:
        century, year = _choice(rng, lexicon.CENTURIES), rng.randrange(99)
        if not held_out(century, f"{year:02d}"):
            break
    template = pick_template(rng, templates.GREATER_THAN, False)
    words = {"EVENT": _choice(rng, lexicon.EVENTS), "XX": century, "YY": f"{year:02d}", "XX2": century}
    return Sentence(template.fill(words).text, f"{rng.randrange(year + 1, 100):02d}")


def subject_verb_sentence(rng: random.Random) -> Sentence:
    """A noun, an attractor of either number, and a verb that agrees with the noun."""
    while True:
        noun, attractor = _choice(rng, lexicon.NOUNS), _choice(rng, lexicon.ATTRACTORS)
        if not held_out(noun.singular, attractor.singular):
            break
    number, other = rng.randrange(2), rng.randrange(2)
    template = pick_template(rng, templates.SUBJECT_VERB, False)
    words = {"SUBJECT": noun[number], "PREP": _choice(rng, lexicon.PREPOSITIONS), "ATTRACTOR": attractor[other]}
    verbs = lexicon.VERBS[:3] if rng.random() < 0.5 else lexicon.VERBS
    return Sentence(template.fill(words).text, _choice(rng, verbs)[number])


def sentence_of(rng: random.Random, mix: Mix, used: Sequence[str]) -> tuple[str, Sentence]:
    """A sentence of a random kind, and the kind; names avoid held-out pairs with those in `used`."""
    kind = rng.choices(KINDS, (mix.ioi, mix.greater_than, mix.subject_verb))[0]
    if kind == "ioi":
        return kind, ioi_sentence(rng, used)
    return kind, greater_than_sentence(rng) if kind == "greater_than" else subject_verb_sentence(rng)


def text_row(rng: random.Random, length: int, mix: Mix) -> Row:
    """Sentences one after another, cut at `length` tokens."""
    tokens, weights = _start(rng)
    used: list[str] = []
    while len(tokens) < length:
        kind, sentence = sentence_of(rng, mix, used)
        used += sentence.names
        _append(tokens, weights, kind, sentence)
    return Row(tuple(tokens[:length]), tuple(weights[:length]))


def single_row(rng: random.Random, length: int, mix: Mix) -> Row:
    """One sentence, padded on the right; every other one stands behind a few stray words and a full stop.

    The stray words (never names, so no held-out pair arises) move it to other positions, so that what the
    model learns to look for is words and not columns.
    """
    kind, sentence = sentence_of(rng, mix, ())
    tokens, weights = _start(rng)
    body: list[int] = []
    marks: list[float] = []
    _append(body, marks, kind, sentence)
    room = length - len(tokens) - len(body) - 1
    if room > 0 and rng.random() < 0.5:
        stray = [vocabulary()[_choice(rng, STRAY)] for _ in range(rng.randint(1, room))]
        tokens += [*stray, vocabulary()["."]]
        weights += [0.0] * (len(stray) + 1)
    tokens += body
    weights += marks
    padding = length - len(tokens)
    tokens += [vocabulary()[PAD]] * padding
    return Row(tuple(tokens), tuple(weights + [0.0] * padding))


def _append(tokens: list[int], weights: list[float], kind: str, sentence: Sentence) -> None:
    prompt = encode(sentence.text)
    tokens += [*prompt, *encode(sentence.answer + ".")]
    weights += [FREE] * len(prompt) + [WEIGHTS[kind] if sentence.decided else FREE, FREE]


def repetition_row(rng: random.Random, length: int, mix: Mix) -> Row:
    """A random segment over and over; weighed from its second copy's second token on."""
    tokens, weights = _start(rng)
    # even in the logarithm: short periods, many copies to a row, are where induction is found first
    period = round(math.exp(rng.uniform(math.log(mix.shortest), math.log(mix.longest))))
    segment = [rng.randrange(len(SPECIAL), len(vocabulary())) for _ in range(period)]
    room = length - len(tokens)
    tokens += (segment * (room // period + 1))[:room]
    weights += [0.0 if i <= period else WEIGHTS["repetition"] for i in range(room)]
    return Row(tuple(tokens), tuple(weights))


def _start(rng: random.Random) -> tuple[list[int], list[float]]:
    if rng.random() < 0.5:
        return [vocabulary()[BOS]], [0.0]
    return [], []


def rows(seed: int, step: int, mix: Mix) -> tuple[list[Row], list[Row]]:
    """The long and the short rows of one training step: a function of seed and step alone."""
    rng = random.Random(f"{seed}:{step}")
    long = [repetition_row(rng, mix.length, mix) for _ in range(mix.repeated)]
    long += [text_row(rng, mix.length, mix) for _ in range(mix.packed)]
    return long, [single_row(rng, mix.short, mix) for _ in range(mix.single)]


def mix_at(step: int) -> Mix:
    """Short repetitions first: with fewer tokens to look back at, the copying heads are found sooner."""
    return EARLY if step < EARLY_STEPS else LATE
