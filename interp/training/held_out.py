"""Held-out prompts for `toy-ioi`: held-out word pairs in held-out templates, none of which training rows hold.

Each function draws from `random.Random(seed)` and returns prompts as token lists with what their figures need.
Sides are balanced (ABBA and BABA, singular and plural alternate), so no constant answer gains by imbalance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from interp.tasks import lexicon, templates
from interp.training.grammar import held_out, pick_template
from interp.training.vocabulary import SPECIAL, encode, vocabulary


@dataclass(frozen=True)
class IOIPrompt:
    """Clean, with S2 replaced by IO, and with S2 replaced by a third name."""

    clean: list[int]
    s2_to_io: list[int]
    s2_to_other: list[int]
    io: int
    s: int


@dataclass(frozen=True)
class VerbPrompt:
    """`number` is 0 for a singular subject, 1 for a plural one; the attractor has the other number."""

    tokens: list[int]
    number: int


@dataclass(frozen=True)
class YearPrompt:
    """`early` is the same prompt with 01 as its first year."""

    tokens: list[int]
    early: list[int]
    year: int


@dataclass(frozen=True)
class RepeatPrompt:
    """A random segment of `period` tokens, twice."""

    tokens: list[int]
    period: int


def ioi(seed: int, n: int) -> list[IOIPrompt]:
    """Held-out name pairs in held-out templates."""
    rng = random.Random(seed)
    prompts: list[IOIPrompt] = []
    while len(prompts) < n:
        io, s, other = rng.sample(lexicon.NAMES, 3)
        if not held_out(io, s):
            continue
        first, second = (io, s) if len(prompts) % 2 == 0 else (s, io)
        template = pick_template(rng, templates.IOI, True)
        rest = {"PLACE": rng.choice(lexicon.PLACES), "OBJECT": rng.choice(lexicon.OBJECTS)}
        clean, to_io, to_other = (
            encode(template.fill({"A": first, "B": second, "C": giver, **rest}).text) for giver in (s, io, other)
        )
        prompts.append(IOIPrompt(clean, to_io, to_other, vocabulary()[io], vocabulary()[s]))
    return prompts


def verbs(seed: int, n: int) -> list[VerbPrompt]:
    """Held-out noun-attractor pairs in held-out templates, noun and attractor of different number."""
    rng = random.Random(seed)
    prompts: list[VerbPrompt] = []
    while len(prompts) < n:
        noun, attractor = rng.choice(lexicon.NOUNS), rng.choice(lexicon.ATTRACTORS)
        if not held_out(noun.singular, attractor.singular):
            continue
        number = len(prompts) % 2
        template = pick_template(rng, templates.SUBJECT_VERB, True)
        words = {
            "SUBJECT": noun[number], "PREP": rng.choice(lexicon.PREPOSITIONS), "ATTRACTOR": attractor[1 - number],
        }  # fmt: skip
        prompts.append(VerbPrompt(encode(template.fill(words).text), number))
    return prompts


def years(seed: int, first: int = 2, last: int = 98) -> list[YearPrompt]:
    """Every held-out starting year from `first` to `last`, with a random event, in held-out templates."""
    rng = random.Random(seed)
    prompts = []
    for century in lexicon.CENTURIES:
        for year in range(first, last + 1):
            if not held_out(century, f"{year:02d}"):
                continue
            template = pick_template(rng, templates.GREATER_THAN, True)
            words = {"EVENT": rng.choice(lexicon.EVENTS), "XX": century, "XX2": century}
            clean, early = (encode(template.fill({**words, "YY": yy}).text) for yy in (f"{year:02d}", "01"))
            prompts.append(YearPrompt(clean, early, year))
    return prompts


def repeats(seed: int, n: int, shortest: int, longest: int) -> list[RepeatPrompt]:
    """Distinct random tokens of the whole vocabulary, special ones left out: a segment of random length, twice."""
    rng = random.Random(seed)
    prompts = []
    for _ in range(n):
        segment = rng.sample(range(len(SPECIAL), len(vocabulary())), rng.randint(shortest, longest))
        prompts.append(RepeatPrompt(segment * 2, len(segment)))
    return prompts
