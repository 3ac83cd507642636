"""Answers of prompts, of one or several tokens each, and prompts with answers appended for scoring.

An answer of several tokens scores its summed log-probability. All its tokens but the last are appended to the
prompt (`Prompts.suffix`), so that one forward predicts every one of them; the last is predicted, not read.
Limits: the prompt's answer position must be its last token, and the model causal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.hooks.prompts import Prompts, moved
from interp.registry import UserError


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of each prompt, as token ids: any number of them, each of one or several tokens."""

    tokens: Int[Tensor, "prompt answer width"]
    mask: Bool[Tensor, "prompt answer width"]
    """Real answer tokens; the rest is padding."""

    @staticmethod
    def of(rows: Sequence[Sequence[Sequence[int]]]) -> Answers:
        """Build from `rows[prompt][answer]` = token ids; prompts may differ in how many answers they have.

        >>> a = Answers.of([[[5]], [[6], [7]]])
        >>> a.tokens[:, :, 0].tolist(), a.present.tolist()
        ([[5, 0], [6, 7]], [[True, False], [True, True]])
        """
        most = max((len(row) for row in rows), default=0)
        width = max((len(answer) for row in rows for answer in row), default=1)
        tokens = torch.zeros(len(rows), most, width, dtype=torch.long)
        mask = torch.zeros(len(rows), most, width, dtype=torch.bool)
        for i, row in enumerate(rows):
            for j, answer in enumerate(row):
                if not answer:
                    raise UserError(f"answer {j} of prompt {i} has no tokens")
                tokens[i, j, : len(answer)] = torch.tensor(answer)
                mask[i, j, : len(answer)] = True
        return Answers(tokens, mask)

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @cached_property
    def present(self) -> Bool[Tensor, "prompt answer"]:
        """Which answers a prompt really has."""
        return self.mask.any(-1)

    @property
    def widths(self) -> Int[Tensor, "prompt answer"]:
        """Tokens of each answer; 0 where there is none."""
        return self.mask.sum(-1)

    @cached_property
    def complete(self) -> bool:
        """Every prompt has as many answers as any other."""
        return bool(self.present.all())

    @cached_property
    def everywhere(self) -> bool:
        """Every prompt has an answer."""
        return bool(self.present.any(1).all())

    @cached_property
    def single(self) -> bool:
        """Every answer is one token."""
        return not bool((self.widths > 1).any())

    @property
    def first(self) -> Int[Tensor, "prompt answer"]:
        """First token of each answer (padding where there is none)."""
        return self.tokens[..., 0]

    def rows(self, index: Int[Tensor, " prompt"]) -> Answers:
        """The answers of these prompts."""
        return Answers(self.tokens[index], self.mask[index])

    def to(self, device: torch.device | str) -> Answers:
        """The same answers on another device; these themselves where they are there."""
        return moved(self, device)

    def lists(self) -> list[list[list[int]]]:
        """Back to nested lists without padding: `[prompt][answer]` = token ids."""
        widths = self.widths.tolist()
        return [
            [answer[:w] for answer, w in zip(row, ws, strict=True) if w]
            for row, ws in zip(self.tokens.tolist(), widths, strict=True)
        ]


def candidates(right: Answers, wrong: Answers) -> tuple[list[int], list[bool], list[int], list[list[int]]]:
    """Per row: its prompt, whether its answer is right, which answer, and the tokens to append."""
    prompt: list[int] = []
    side: list[bool] = []
    answer: list[int] = []
    suffixes: list[list[int]] = []
    for i, both in enumerate(zip(right.lists(), wrong.lists(), strict=True)):
        for is_right, answers in zip((True, False), both, strict=True):
            for j, tokens in enumerate(answers):
                prompt.append(i)
                side.append(is_right)
                answer.append(j)
                suffixes.append(tokens[:-1])
    return prompt, side, answer, suffixes


def with_suffix(prompts: Prompts, row: Sequence[int], suffixes: Iterable[Sequence[int]]) -> Prompts:
    """Rows of `prompts` (by index, repeats allowed) with tokens appended after their last real token.

    The prompt's answer must be its last token: what is appended continues from there.
    """
    if prompts.suffix is not None:
        raise UserError("these prompts already carry appended answer tokens")
    early = (prompts.answer != prompts.lengths - 1).nonzero().flatten().tolist()
    if early:
        raise UserError(
            f"answers of several tokens follow the end of the prompt, but prompt {early[0]} reads its answer at "
            f"position {int(prompts.answer[early[0]])} of {int(prompts.lengths[early[0]])} tokens"
        )
    picked = prompts.rows(list(row))
    own = [t[m].tolist() for t, m in zip(picked.tokens, picked.mask, strict=True)]
    added = [list(s) for s in suffixes]
    left = bool((~prompts.mask[:, 0]).any())
    device = prompts.device
    new = Prompts.of(
        [a + b for a, b in zip(own, added, strict=True)],
        pad_side="left" if left else "right",
        text=picked.text,
    ).to(device)
    suffix = torch.tensor([len(b) for b in added], device=device)
    return replace(new, answer=picked.answer, labels=picked.labels, template=picked.template, suffix=suffix)
