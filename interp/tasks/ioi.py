"""Indirect object identification: "When Mary and John went to the store, John gave a drink to" → " Mary".

Source: Wang et al. 2022 (2211.00593); lexicon and templates are our own. The right answer is IO, the wrong one
S. Names come in both orders, ABBA (IO first) and BABA (S first), in equal numbers. Labels: IO, S1, S1+1, S2, END.

Corruptions of the clean prompt, all of equal length:

- `s2_to_other`: S2 becomes a third name; then neither name is right;
- `s2_to_io`: S2 becomes IO; then S is right (counterfactual);
- `swap_all`: IO and S change places everywhere; then S is right (counterfactual);
- `abc`: all three names become three other, different ones.

`task.means_on` are ABC prompts of the same templates (three different names), for mean ablation per template:
the clean prompts' own mean leaks the answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interp.hooks.prompts import Prompts
from interp.registry import unknown
from interp.tasks import lexicon
from interp.tasks.building import Line, check_length, draw, known, line, prompts, usable
from interp.tasks.held_out import in_split, templates_of
from interp.tasks.load import register_task
from interp.tasks.templates import IOI, IOI_ROLES, ORDERS, Template
from interp.tasks.tokens import Codec
from interp.tasks.values import Answers, Task

CORRUPTIONS = ("s2_to_other", "s2_to_io", "swap_all", "abc")
COUNTERFACTUAL = ("s2_to_io", "swap_all")
MEANS_PER_TEMPLATE = 16


@dataclass(frozen=True)
class Scene:
    """What one pair is made of."""

    number: int
    template: Template
    order: str
    io: str
    s: str
    others: tuple[str, str, str]
    rest: Mapping[str, str]

    def words(self, io: str, s1: str, s2: str) -> dict[str, str]:
        """Slot words, with these names in the three roles."""
        role = IOI_ROLES[self.order]
        return {role["IO"]: io, role["S1"]: s1, role["S2"]: s2, **self.rest}

    def clean(self) -> dict[str, str]:
        return self.words(self.io, self.s, self.s)

    def corrupt(self, corruption: str) -> dict[str, str]:
        names = {
            "s2_to_other": (self.io, self.s, self.others[0]),
            "s2_to_io": (self.io, self.s, self.io),
            "swap_all": (self.s, self.io, self.io),
            "abc": self.others,
        }
        return self.words(*names[corruption])


@register_task()
def ioi(
    model: Any,
    *,
    n: int = 64,
    seed: int = 0,
    split: str = "all",
    corruption: str = "s2_to_other",
    order: str | None = None,
    template: int | None = None,
    bos: bool = False,
) -> Task:
    """Indirect object identification: the name that was not repeated.

    `corruption` is one of s2_to_other, s2_to_io, swap_all, abc; `order` ABBA or BABA alone (both by default);
    `template` the number of one template of the split, so that all prompts have one length (all by default);
    `split` train, heldout (name pairs and templates that `toy-ioi` never saw) or all. UserError where fewer
    than 5 names, or no place, object or template, fit the model's tokenizer.
    """
    if corruption not in CORRUPTIONS:
        raise unknown("IOI corruption", corruption, list(CORRUPTIONS))
    if order is not None and order not in ORDERS:
        raise unknown("IOI order", order, list(ORDERS))
    codec, rng = Codec.of(model), random.Random(f"ioi:{seed}")
    scenes = _scenes(codec, rng, n, _templates(split, template), split, (order,) if order else ORDERS)
    clean = [line(codec, s.template, s.number, s.clean(), bos) for s in scenes]
    corrupt = [line(codec, s.template, s.number, s.corrupt(corruption), bos) for s in scenes]
    check_length(clean, model.geometry.n_ctx, "ioi")
    means = _abc(codec, rng, scenes, bos)
    first = _prompts(clean, [s.order for s in scenes])
    task = Task.of(
        "ioi", first, _prompts(corrupt, [s.order for s in scenes]),
        Answers.of([[codec.answer(" " + s.io)] for s in scenes]),
        Answers.of([[codec.answer(" " + s.s)] for s in scenes]),
        means_on=means, cluster=first.template, counterfactual=corruption in COUNTERFACTUAL,
        meta={"seed": seed, "split": split, "corruption": corruption, "order": order, "template": template, "bos": bos},
    )  # fmt: skip
    return task.to(model.device)


def _templates(split: str, only: int | None) -> list[tuple[int, Template]]:
    group = templates_of(IOI, split)
    numbers = [str(i) for i, _ in group]
    if only is not None and str(only) not in numbers:
        raise unknown(f"IOI template of split {split!r}:", only, numbers)
    return [(i, t) for i, t in group if only is None or i == only]


def _scenes(
    codec: Codec,
    rng: random.Random,
    n: int,
    among: list[tuple[int, Template]],
    split: str,
    orders: Sequence[str],
) -> list[Scene]:
    names = known(codec, lexicon.NAMES, 5, "names")
    places, objects = known(codec, lexicon.PLACES, 1, "places"), known(codec, lexicon.OBJECTS, 1, "objects")
    example = {"A": names[0], "B": names[1], "C": names[0], "PLACE": places[0], "OBJECT": objects[0]}
    group = usable(codec, among, lambda t: {k: example[k] for k in t.slots}, "ioi")
    rng.shuffle(group)

    def make(i: int) -> Scene | None:
        # orders alternate, and templates go round once for every order, so both are balanced at any n
        number, template = group[i // len(orders) % len(group)]
        io, s, *others = rng.sample(names, 5)
        if not in_split(io, s, split):
            return None
        rest = {"PLACE": rng.choice(places), "OBJECT": rng.choice(objects)}
        rest = {k: v for k, v in rest.items() if k in template.slots}
        return Scene(number, template, orders[i % len(orders)], io, s, (others[0], others[1], others[2]), rest)

    return draw(n, make, "ioi pair", lambda s: (s.number, s.order, s.io, s.s, tuple(s.rest.items())))


def _abc(codec: Codec, rng: random.Random, scenes: Sequence[Scene], bos: bool) -> Prompts:
    """Prompts with three different names, `MEANS_PER_TEMPLATE` for each template in use."""
    used = {s.number: s for s in scenes}
    names = known(codec, lexicon.NAMES, 5, "names")
    lines: list[Line] = []
    orders: list[str] = []
    for number in sorted(used):
        for i in range(MEANS_PER_TEMPLATE):
            scene = used[number]
            a, b, c = rng.sample(names, 3)
            orders.append(ORDERS[i % 2])
            words = {**scene.rest, "A": a, "B": b, "C": c}
            lines.append(line(codec, scene.template, number, words, bos))
    return _prompts(lines, orders)


def _prompts(lines: Sequence[Line], orders: Sequence[str]) -> Prompts:
    role = {
        name: [x.slots[IOI_ROLES[o][name]] for x, o in zip(lines, orders, strict=True)] for name in ("IO", "S1", "S2")
    }
    return prompts(lines, {**role, "S1+1": [at + 1 for at in role["S1"]]})
