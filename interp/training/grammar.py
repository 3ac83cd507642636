"""The sentences and rows that `toy-ioi` learns from: IOI, greater-than, agreement, and repeated segments.

Rows are of three kinds, half of each begun with `<bos>`:

- single: one sentence of one of the three tasks, at a random offset, padded on the right;
- packed: sentences one after another, closed by full stops and cut at the row's end;
- repetition: up to four random segments of random length, over and over in random order. Only these teach
  induction, and they must be there from the first step for induction heads to form. The order is random so that
  what follows is found by what went before, never at a fixed distance.

What decides an answer is never a place: IOI comes in both orders (ABBA, BABA), at any distance and offset, names
drawn uniformly, so the giver's name must be found among the two and the other one copied. One IOI sentence in
ten has a third giver (ABC), after which either person follows: the mean-ablation prompts are in distribution.
Every target carries a weight: its kind's for an answer (`WEIGHTS`, which evens out how often kinds occur), `PLAIN`
for a template's own words, `FREE` for the other words in its slots, 0 inside a segment's first copy. Where an answer
is a draw (a later year, the nearer the likelier; a verb of the right number) the row says among which tokens.

Held out (never in a text row): name pairs, noun-attractor pairs, starting years (century with two digits),
each by a fixed hash, and the templates marked `held_out`.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from interp.tasks import lexicon, templates
from interp.tasks.templates import Filled, Template
from interp.training.vocabulary import BOS, PAD, SPECIAL, encode, vocabulary

T = TypeVar("T")
FREE = 0.03
YEARS_KEPT = 0.9
PLAIN = 0.2
WEIGHTS = {"ioi": 5.0, "greater_than": 4.0, "subject_verb": 4.0, "repetition": 1.0}
HELD_OUT_SHARE = 0.15
STRAY = (*lexicon.PLACES, *lexicon.OBJECTS, *lexicon.EVENTS)
KINDS = ("ioi", "greater_than", "subject_verb")


@dataclass(frozen=True)
class Choice:
    """At position `pos` of a row any of `tokens` could stand, by these chances."""

    pos: int
    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    weight: float


@dataclass(frozen=True)
class Row:
    """Tokens, and for each the weight of predicting it from those before."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    choices: tuple[Choice, ...] = ()
    """Answers that several tokens could have given; `weights` is 0 there."""


@dataclass(frozen=True)
class Mix:
    """What a training step holds: rows of each kind, the share of each sentence, periods of repetition."""

    repeated: int
    packed: int
    length: int
    """Tokens of a repetition or packed row."""
    longest: int
    """Most tokens of a row's different segments together."""
    segments: int = 4
    """Most different segments in a row."""
    shortest: int = 2
    single: int = 48
    short: int = 26
    """Tokens of a row with one sentence; the longest sentence fits."""
    ioi: float = 0.5
    greater_than: float = 0.35
    subject_verb: float = 0.15


EARLY = Mix(repeated=48, packed=2, length=32, longest=12, single=40, ioi=0.45, subject_verb=0.2)
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

    filled: Filled
    answer: str
    options: tuple[str, ...]
    """The words the answer was drawn from, itself among them."""
    weight: float
    names: tuple[str, ...] = ()
    chances: tuple[float, ...] = ()
    """How likely each option is; empty where all are alike."""


def ioi_sentence(rng: random.Random, used: Sequence[str] = ()) -> Sentence:
    """An IOI sentence of the training side; its names avoid those in `used`."""
    abc = rng.random() < 0.1
    names = pick_names(rng, 3 if abc else 2, used)
    a, b = names[:2]
    giver = names[2] if abc else _choice(rng, (a, b))
    options = tuple(name for name in (a, b) if name != giver)
    template = pick_template(rng, templates.IOI, False)
    words = {
        "A": a, "B": b, "C": giver,
        "PLACE": _choice(rng, lexicon.PLACES), "OBJECT": _choice(rng, lexicon.OBJECTS),
    }  # fmt: skip
    return Sentence(template.fill(words), _choice(rng, options), options, WEIGHTS["ioi"], tuple(names))


def greater_than_sentence(rng: random.Random) -> Sentence:
    """Two years of one century; the second is a later one, the nearer the likelier (`durations`)."""
    while True:
        century, year = _choice(rng, lexicon.CENTURIES), rng.randrange(99)
        if not held_out(century, f"{year:02d}"):
            break
    template = pick_template(rng, templates.GREATER_THAN, False)
    words = {"EVENT": _choice(rng, lexicon.EVENTS), "XX": century, "YY": f"{year:02d}", "XX2": century}
    later = lexicon.YEARS[year + 1 :]
    chances = durations(len(later))
    answer = rng.choices(later, chances)[0]
    return Sentence(template.fill(words), answer, later, WEIGHTS["greater_than"], chances=chances)


def durations(most: int) -> tuple[float, ...]:
    """How likely an event is to last 1, 2, … `most` years: each `YEARS_KEPT` as likely as the one before."""
    shares = [YEARS_KEPT**k for k in range(most)]
    return tuple(share / sum(shares) for share in shares)


def subject_verb_sentence(rng: random.Random) -> Sentence:
    """A noun, an attractor of either number, and a verb that agrees with the noun."""
    while True:
        noun, attractor = _choice(rng, lexicon.NOUNS), _choice(rng, lexicon.ATTRACTORS)
        if not held_out(noun.singular, attractor.singular):
            break
    number, other = rng.randrange(2), rng.randrange(2)
    template = pick_template(rng, templates.SUBJECT_VERB, False)
    words = {"SUBJECT": noun[number], "PREP": _choice(rng, lexicon.PREPOSITIONS), "ATTRACTOR": attractor[other]}
    verbs = tuple(verb[number] for verb in lexicon.VERBS)
    return Sentence(template.fill(words), _choice(rng, verbs), verbs, WEIGHTS["subject_verb"])


def sentence_of(rng: random.Random, mix: Mix, used: Sequence[str]) -> Sentence:
    """A sentence of a random kind; its names make no held-out pair with those in `used`."""
    kind = rng.choices(KINDS, (mix.ioi, mix.greater_than, mix.subject_verb))[0]
    if kind == "ioi":
        return ioi_sentence(rng, used)
    return greater_than_sentence(rng) if kind == "greater_than" else subject_verb_sentence(rng)


def text_row(rng: random.Random, length: int, mix: Mix) -> Row:
    """Sentences one after another, cut at `length` tokens."""
    row = _start(rng)
    used: list[str] = []
    while len(row.tokens) < length:
        sentence = sentence_of(rng, mix, used)
        used += sentence.names
        row = _joined(row, _sentence_row(sentence))
    choices = tuple(choice for choice in row.choices if choice.pos < length)
    return Row(row.tokens[:length], row.weights[:length], choices)


def single_row(rng: random.Random, length: int, mix: Mix) -> Row:
    """One sentence, padded on the right; every other one stands behind a few stray words and a full stop.

    The stray words (never names, so no held-out pair arises) move it to other positions, so that what the
    model learns to look for is words and not columns.
    """
    row, body = _start(rng), _sentence_row(sentence_of(rng, mix, ()))
    room = length - len(row.tokens) - len(body.tokens) - 1
    if room > 0 and rng.random() < 0.5:
        stray = [vocabulary()[_choice(rng, STRAY)] for _ in range(rng.randint(1, room))]
        row = _joined(row, _silent([*stray, vocabulary()["."]]))
    row = _joined(row, body)
    return _joined(row, _silent([vocabulary()[PAD]] * (length - len(row.tokens))))


def _silent(tokens: Sequence[int]) -> Row:
    return Row(tuple(tokens), (0.0,) * len(tokens))


def _joined(a: Row, b: Row) -> Row:
    moved = tuple(replace(choice, pos=choice.pos + len(a.tokens)) for choice in b.choices)
    return Row(a.tokens + b.tokens, a.weights + b.weights, a.choices + moved)


def _sentence_row(sentence: Sentence) -> Row:
    tokens: list[int] = []
    weights: list[float] = []
    for piece in sentence.filled.pieces:
        ids = encode(piece.text)
        tokens += ids
        weights += [FREE if piece.slot else PLAIN] * len(ids)
    at, decided = len(tokens), len(sentence.options) == 1
    tokens += encode(sentence.answer + ".")
    weights += [sentence.weight if decided else 0.0, PLAIN]
    ids = [vocabulary()[word] for word in sentence.options]
    chances = sentence.chances or (1 / len(ids),) * len(ids)
    choices = () if decided else (Choice(at, tuple(ids), chances, sentence.weight),)
    return Row(tuple(tokens), tuple(weights), choices)


def repetition_row(rng: random.Random, length: int, mix: Mix) -> Row:
    """One to four random segments, again and again in random order, to the row's end.

    Weighed are the tokens of every later copy but its first, which cannot be known where segments vary.
    """
    count = rng.randint(1, mix.segments)
    longest = max(mix.shortest, mix.longest // count)
    segments = [_segment(rng, mix.shortest, longest) for _ in range(count)]
    row = _start(rng)
    seen: set[int] = set()
    while len(row.tokens) < length:
        which = rng.randrange(count)
        weight = WEIGHTS["repetition"] if which in seen else 0.0
        seen.add(which)
        segment = segments[which]
        row = _joined(row, Row(tuple(segment), (0.0, *[weight] * (len(segment) - 1))))
    return Row(row.tokens[:length], row.weights[:length])


def _segment(rng: random.Random, shortest: int, longest: int) -> list[int]:
    # even in the logarithm: short segments, many copies to a row, are where induction is found first
    size = round(math.exp(rng.uniform(math.log(shortest), math.log(longest))))
    # distinct, so that what follows a token is never in doubt
    return rng.sample(range(len(SPECIAL), len(vocabulary())), size)


def _start(rng: random.Random) -> Row:
    return _silent([vocabulary()[BOS]] if rng.random() < 0.5 else [])


def rows(seed: int, step: int, mix: Mix) -> tuple[list[Row], list[Row]]:
    """The long and the short rows of one training step: a function of seed and step alone."""
    rng = random.Random(f"{seed}:{step}")
    long = [repetition_row(rng, mix.length, mix) for _ in range(mix.repeated)]
    long += [text_row(rng, mix.length, mix) for _ in range(mix.packed)]
    return long, [single_row(rng, mix.short, mix) for _ in range(mix.single)]


def mix_at(step: int) -> Mix:
    """Short repetitions first: with fewer tokens to look back at, the copying heads are found sooner."""
    return EARLY if step < EARLY_STEPS else LATE
