"""Greater-than: "The war lasted from the year 1732 to the year 17" → any two digits above 32.

Source: Hanna et al. 2023 (2305.00586); lexicon and templates are our own. Right answers are the two-digit years
above YY, wrong ones those at or below it; prob_diff is their measure. The corrupt prompt's year ends in 01.
Labels: EVENT, XX, YY, XX2, END. Years that a tokenizer does not cut into century and two digits are left out.
"""

from __future__ import annotations

import random
from typing import Any

from interp.registry import UserError
from interp.tasks import lexicon
from interp.tasks.building import Line, check_length, draw, known, line, prompts, usable
from interp.tasks.held_out import in_split, templates_of
from interp.tasks.load import register_task
from interp.tasks.templates import GREATER_THAN
from interp.tasks.tokens import Codec
from interp.tasks.values import Answers, Task

CORRUPT_YEAR = "01"


@register_task()
def greater_than(model: Any, *, n: int = 64, seed: int = 0, split: str = "all", bos: bool = False) -> Task:
    """Greater-than: a later year of the same century.

    `split` train, heldout (years and templates that `toy-ioi` never saw) or all. UserError where two-digit
    years are not single tokens of the model's tokenizer.
    """
    codec, rng = Codec.of(model), random.Random(f"greater_than:{seed}")
    events = known(codec, lexicon.EVENTS, 1, "events")
    centuries = known(codec, lexicon.CENTURIES, 1, "centuries")
    answer = {y: codec.answer(y) for y in lexicon.YEARS}
    several = [y for y, ids in answer.items() if len(ids) > 1]
    if several:
        raise UserError(f"two-digit years are not single tokens of this tokenizer: {', '.join(several[:5])}, …")
    example = {"EVENT": events[0], "XX": centuries[-1], "YY": "32", "XX2": centuries[-1]}
    group = usable(codec, templates_of(GREATER_THAN, split), lambda t: example, "greater_than")
    rng.shuffle(group)

    def make(i: int) -> tuple[Line, Line, str] | None:
        number, template = group[i % len(group)]
        century, year = rng.choice(centuries), f"{rng.randrange(2, 99):02d}"
        words = {"EVENT": rng.choice(events), "XX": century, "YY": year, "XX2": century}
        if not in_split(century, year, split):
            return None
        try:
            pair = [line(codec, template, number, {**words, "YY": y}, bos) for y in (year, CORRUPT_YEAR)]
        except UserError:  # such as 1700, one token of GPT-2's
            return None
        return pair[0], pair[1], year

    pairs = draw(n, make, "greater_than pair", lambda p: p[0].text)
    check_length([p[0] for p in pairs], model.geometry.n_ctx, "greater_than")
    clean, corrupt = (
        prompts(side, {k: [x.slots[k] for x in side] for k in ("EVENT", "XX", "YY", "XX2")})
        for side in ([p[0] for p in pairs], [p[1] for p in pairs])
    )
    task = Task.of(
        "greater_than", clean, corrupt,
        Answers.of([[answer[y] for y in lexicon.YEARS if y > year] for _, _, year in pairs]),
        Answers.of([[answer[y] for y in lexicon.YEARS if y <= year] for _, _, year in pairs]),
        cluster=clean.template, meta={"seed": seed, "split": split, "bos": bos},
    )  # fmt: skip
    return task.to(model.device)
