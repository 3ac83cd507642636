"""Subject-verb agreement across an attractor: "The keys near the cabinet" → " are", not " is".

Source of the idea: Linzen et al. 2016 (1611.01368); lexicon and templates are our own. Right answers are the
verbs of the subject's number, wrong ones the same verbs in the other. The corrupt prompt has the subject in
the other number, so that the wrong answers are right there (counterfactual). Labels: SUBJECT, PREP, ATTRACTOR,
END.
"""

from __future__ import annotations

import random
from typing import Any

from interp.registry import UserError, unknown
from interp.tasks import lexicon
from interp.tasks.building import Line, check_length, draw, known, line, prompts, usable
from interp.tasks.held_out import in_split, templates_of
from interp.tasks.lexicon import Forms
from interp.tasks.load import register_task
from interp.tasks.templates import SUBJECT_VERB
from interp.tasks.tokens import Codec
from interp.tasks.values import Answers, Task

ATTRACTOR_NUMBERS = ("opposite", "same", "any")
USUAL_VERBS = 3


@register_task()
def subject_verb(
    model: Any,
    *,
    n: int = 64,
    seed: int = 0,
    split: str = "all",
    attractor: str = "opposite",
    verbs: int = USUAL_VERBS,
    bos: bool = False,
) -> Task:
    """Subject-verb agreement: the verb follows the subject's number, not the attractor's.

    `attractor` has the opposite number of the subject, the same, or any; `verbs` is how many verbs of the
    lexicon are answers (the usual is/are, was/were, has/have by default). `split` train, heldout (noun and
    attractor pairs and templates that `toy-ioi` never saw) or all.
    """
    if attractor not in ATTRACTOR_NUMBERS:
        raise unknown("attractor number", attractor, list(ATTRACTOR_NUMBERS))
    codec, rng = Codec.of(model), random.Random(f"subject_verb:{seed}")
    nouns, attractors = _pairs(codec, lexicon.NOUNS, "nouns"), _pairs(codec, lexicon.ATTRACTORS, "attractors")
    answers = _pairs(codec, lexicon.VERBS, "verbs")[:verbs]
    if not answers:
        raise UserError(f"verbs must be at least 1, got {verbs}")
    prepositions = known(codec, lexicon.PREPOSITIONS, 1, "prepositions")
    example = {"SUBJECT": nouns[0][0], "PREP": prepositions[0], "ATTRACTOR": attractors[0][0]}
    group = usable(codec, templates_of(SUBJECT_VERB, split), lambda t: example, "subject_verb")
    rng.shuffle(group)

    def make(i: int) -> tuple[Line, Line, int] | None:
        # numbers alternate, and templates go round once for both, so both are balanced at any n
        number, (at, template) = i % 2, group[i // 2 % len(group)]
        noun, other = rng.choice(nouns), rng.choice(attractors)
        if not in_split(noun.singular, other.singular, split):
            return None
        form = {"opposite": 1 - number, "same": number, "any": rng.randrange(2)}[attractor]
        rest = {"PREP": rng.choice(prepositions), "ATTRACTOR": other[form]}
        one, two = (line(codec, template, at, {"SUBJECT": noun[k], **rest}, bos) for k in (number, 1 - number))
        return one, two, number

    pairs = draw(n, make, "subject_verb pair", lambda p: p[0].text)
    check_length([p[0] for p in pairs], model.geometry.n_ctx, "subject_verb")
    clean, corrupt = (
        prompts(side, {k: [x.slots[k] for x in side] for k in ("SUBJECT", "PREP", "ATTRACTOR")})
        for side in ([p[0] for p in pairs], [p[1] for p in pairs])
    )
    by_number = [[codec.answer(" " + verb[k]) for verb in answers] for k in (0, 1)]
    task = Task.of(
        "subject_verb", clean, corrupt,
        Answers.of([by_number[k] for _, _, k in pairs]), Answers.of([by_number[1 - k] for _, _, k in pairs]),
        cluster=clean.template, counterfactual=True,
        meta={"seed": seed, "split": split, "attractor": attractor, "verbs": len(answers), "bos": bos},
    )  # fmt: skip
    return task.to(model.device)


def _pairs(codec: Codec, forms: tuple[Forms, ...], what: str) -> list[Forms]:
    """The pairs of which both forms are one token."""
    singular = known(codec, [f.singular for f in forms], 1, what)
    plural = known(codec, [f.plural for f in forms], 1, what)
    kept = [f for f in forms if f.singular in singular and f.plural in plural]
    if not kept:
        raise UserError(f"no {what} have both forms as single tokens of this tokenizer")
    return kept
