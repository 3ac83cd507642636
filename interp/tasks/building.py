"""Helpers of the built-in tasks: words that a tokenizer holds, filled templates as prompts, balanced draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from interp.hooks.prompts import Prompts
from interp.registry import UserError
from interp.tasks.templates import Template
from interp.tasks.tokens import Codec

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One prompt: token ids (BOS included where asked), the index of each slot's token, and its text."""

    ids: list[int]
    slots: Mapping[str, int]
    text: str
    template: int


def known(codec: Codec, words: Iterable[str], least: int, what: str) -> list[str]:
    """The words that are one token after a space; UserError where fewer than `least` are left."""
    every = list(words)
    if codec.tokenizer is None:
        raise UserError(f"this model has no tokenizer, and {what} are words; tasks of token ids: induction, tables")
    kept = [w for w in every if codec.single(" " + w) is not None]
    if len(kept) < least:
        lost = [w for w in every if w not in kept]
        raise UserError(
            f"only {len(kept)} of {len(every)} {what} are single tokens of this tokenizer, {least} are needed "
            f"(not: {', '.join(lost[:5])}{', …' if len(lost) > 5 else ''})"
        )
    return kept


def line(codec: Codec, template: Template, number: int, words: Mapping[str, str], bos: bool) -> Line:
    """A filled template as a prompt. UserError where a slot's word is not exactly one token in place."""
    filled = template.fill(words)
    ids, slots = codec.locate(filled.text, filled.spans)
    full = codec.with_bos(ids, bos)
    shift = len(full) - len(ids)
    return Line(full, {slot: at + shift for slot, at in slots.items()}, filled.text, number)


def prompts(lines: Sequence[Line], labels: Mapping[str, Sequence[int]]) -> Prompts:
    """Prompts of these lines; `END` is always the last token."""
    end = [len(x.ids) - 1 for x in lines]
    named = {**labels, "END": end}
    return Prompts.of(
        [x.ids for x in lines],
        labels={k: torch.tensor(list(v)) for k, v in named.items()},
        template=torch.tensor([x.template for x in lines]),
        text=[x.text for x in lines],
    )


def usable(
    codec: Codec, group: Sequence[tuple[int, Template]], example: Callable[[Template], Mapping[str, str]], what: str
) -> list[tuple[int, Template]]:
    """The templates this tokenizer can place every slot in; UserError, with the reason, where there is none."""
    kept: list[tuple[int, Template]] = []
    why = "no template in this split"
    for number, template in group:
        try:
            line(codec, template, number, example(template), False)
        except UserError as error:
            why = str(error)
        else:
            kept.append((number, template))
    if not kept:
        raise UserError(f"no template of {what} fits this tokenizer: {why}")
    return kept


def draw(n: int, make: Callable[[int], T | None], what: str, key: Callable[[T], Any]) -> list[T]:
    """n different items: `make(i)` draws the i-th, or gives None to be asked again.

    Different as long as new ones are found in 50 tries; then repeats are let in (small vocabularies have few
    prompts). UserError where nothing is ever made.
    """
    if n < 1:
        raise UserError(f"n must be at least 1, got {n}")
    made: list[T] = []
    seen: set[Any] = set()
    for i in range(n):
        last: T | None = None
        for _ in range(50):
            item = make(i)
            if item is None:
                continue
            last = item
            if key(item) not in seen:
                break
        if last is None:
            raise UserError(f"no {what} can be made: too few words are left for this model and split")
        seen.add(key(last))
        made.append(last)
    return made


def check_length(lines: Sequence[Line], n_ctx: int, what: str) -> None:
    """UserError where a prompt is longer than the model's context."""
    longest = max(len(x.ids) for x in lines)
    if longest > n_ctx:
        raise UserError(f"{what} has prompts of {longest} tokens, the model's context holds {n_ctx}")
