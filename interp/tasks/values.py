"""`Task`: paired prompts with right and wrong answers.

A task is n prompts, each in two versions (clean and corrupt), with its right and wrong answers. Where every
answer is one token, rows of `clean` and `corrupt` are the prompts themselves. Where any answer has several
tokens, each prompt becomes one row per answer (right ones first), with that answer's tokens but the last
appended as `Prompts.suffix` (see `answers.py`). Right and wrong are the clean prompt's on both sides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.hooks.prompts import Prompts, moved
from interp.registry import UserError
from interp.tasks.answers import Answers, candidates, with_suffix

__all__ = ["Answers", "Side", "Task", "other_side"]

Side = Literal["clean", "corrupt"]


def other_side(side: Side) -> Side:
    """The side that one is paired with."""
    return "corrupt" if side == "clean" else "clean"


@dataclass(frozen=True, eq=False)
class Task:
    """Paired prompts with their answers. Build with `Task.of`, which appends answers of several tokens."""

    name: str
    clean: Prompts
    corrupt: Prompts
    right: Answers
    wrong: Answers
    prompt_of_row: Int[Tensor, " row"]
    """Which prompt a row of `clean` and `corrupt` belongs to; 0 … n−1 in order, rows of a prompt together."""
    right_of_row: Bool[Tensor, " row"] | None = None
    """Answers of several tokens only: whether the row's answer is a right one."""
    answer_of_row: Int[Tensor, " row"] | None = None
    """Answers of several tokens only: which of the right (or wrong) answers the row is for."""
    means_on: Prompts | None = None
    """The set to average over for mean ablation, where the task names one (IOI: ABC prompts)."""
    cluster: Int[Tensor, " prompt"] | None = None
    """Template of each prompt, for the clustered bootstrap."""
    counterfactual: bool = False
    """The wrong answers are what is right after the corrupt prompt."""
    meta: Mapping[str, object] = field(default_factory=dict)
    """Where it came from: bos, seed, split, source digest, dropped rows … (JSON values)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))
        rows = len(self.prompt_of_row)
        if not (len(self.clean) == len(self.corrupt) == rows and len(self.right) == len(self.wrong)):
            raise UserError(
                f"task {self.name!r}: {len(self.clean)} clean and {len(self.corrupt)} corrupt rows for "
                f"{rows} rows, {len(self.right)} right and {len(self.wrong)} wrong answers; they must match"
            )
        counts = torch.bincount(self.prompt_of_row, minlength=self.n)
        if len(counts) != self.n or bool((counts == 0).any()):
            raise UserError(f"task {self.name!r}: every one of its {self.n} prompts needs a row")

    def __repr__(self) -> str:
        length = f"up to {int(self.clean.lengths.max())} tokens" if len(self.clean) else "no tokens"
        labels = f"; labels {', '.join(self.clean.labels)}" if self.clean.labels else ""
        return f"Task({self.name!r}, {self.n} pairs of {length}{labels})"

    @staticmethod
    def of(
        name: str,
        clean: Prompts,
        corrupt: Prompts,
        right: Answers,
        wrong: Answers,
        *,
        means_on: Prompts | None = None,
        cluster: Int[Tensor, " prompt"] | None = None,
        counterfactual: bool = False,
        meta: Mapping[str, object] | None = None,
    ) -> Task:
        """A task from one row per prompt. Answers of several tokens expand it to one row per answer."""
        device = clean.device
        right, wrong = right.to(device), wrong.to(device)
        n = len(right)
        if not (len(clean) == len(corrupt) == len(wrong) == n):
            raise UserError(
                f"task {name!r}: {len(clean)} clean, {len(corrupt)} corrupt prompts, {n} right and "
                f"{len(wrong)} wrong answers; there must be one of each per prompt"
            )
        if not right.everywhere:
            raise UserError(f"task {name!r}: prompt {int((~right.present.any(1)).int().argmax())} has no right answer")
        rest = {"means_on": means_on, "cluster": cluster, "counterfactual": counterfactual, "meta": meta or {}}
        if right.single and wrong.single:
            order = torch.arange(n, device=device)
            return Task(name, clean, corrupt, right, wrong, order, **rest)  # type: ignore[arg-type]
        prompt, side, answer, suffixes = candidates(right, wrong)
        return Task(
            name, with_suffix(clean, prompt, suffixes), with_suffix(corrupt, prompt, suffixes), right, wrong,
            torch.tensor(prompt, device=device), torch.tensor(side, device=device),
            torch.tensor(answer, device=device), **rest,  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def n(self) -> int:
        """Number of prompts."""
        return len(self.right)

    def __len__(self) -> int:
        return self.n

    @property
    def single(self) -> bool:
        """Every answer is one token, and a row is a prompt."""
        return self.answer_of_row is None

    @cached_property
    def first_rows(self) -> Int[Tensor, " prompt"]:
        """The first row of each prompt."""
        counts = torch.bincount(self.prompt_of_row, minlength=self.n)
        return counts.cumsum(0) - counts

    @property
    def aligned(self) -> bool:
        """Clean and corrupt have the same length, pair by pair."""
        return bool((self.clean.lengths == self.corrupt.lengths).all())

    def prompts(self, side: Side) -> Prompts:
        """The clean or the corrupt prompts."""
        if side not in ("clean", "corrupt"):
            raise UserError(f"side must be 'clean' or 'corrupt', got {side!r}")
        return self.clean if side == "clean" else self.corrupt

    def require_aligned(self) -> None:
        """UserError, naming the first pair of unequal length; patching by position needs equal lengths."""
        bad = (self.clean.lengths != self.corrupt.lengths).nonzero().flatten().tolist()
        if bad:
            pair = int(self.prompt_of_row[bad[0]])
            raise UserError(
                f"pair {pair} of task {self.name!r} has {int(self.clean.lengths[bad[0]])} clean and "
                f"{int(self.corrupt.lengths[bad[0]])} corrupt tokens; patching by position needs equal lengths "
                f"(pairs of unequal length can be patched by label)"
            )

    def rows(self, index: Sequence[int] | Tensor | slice) -> Task:
        """The task of these prompts, in this order. `means_on` stays whole: it belongs to the task."""
        device = self.prompt_of_row.device
        every = torch.arange(self.n, device=device)
        keep = every[index] if isinstance(index, slice) else every[torch.as_tensor(index, device=device).long()]
        if not len(keep):
            raise UserError(f"no prompts chosen from task {self.name!r} (n = {self.n})")
        first, count = self.first_rows[keep], torch.bincount(self.prompt_of_row, minlength=self.n)[keep]
        new = torch.arange(len(keep), device=device).repeat_interleave(count)
        within = torch.arange(len(new), device=device) - (count.cumsum(0) - count)[new]
        row = first[new] + within
        return replace(
            self,
            clean=self.clean.rows(row), corrupt=self.corrupt.rows(row),
            right=self.right.rows(keep), wrong=self.wrong.rows(keep), prompt_of_row=new,
            right_of_row=None if self.right_of_row is None else self.right_of_row[row],
            answer_of_row=None if self.answer_of_row is None else self.answer_of_row[row],
            cluster=None if self.cluster is None else self.cluster[keep],
        )  # fmt: skip

    def subset(self, n: int) -> Task:
        """The first n prompts, exactly."""
        if not 0 < n <= self.n:
            raise UserError(f"{n} prompts asked of task {self.name!r}, which has {self.n}")
        return self.rows(slice(0, n))

    def sample(self, n: int, seed: int = 0) -> Task:
        """n prompts drawn without replacement, in their original order."""
        if not 0 < n <= self.n:
            raise UserError(f"{n} prompts asked of task {self.name!r}, which has {self.n}")
        drawn = torch.randperm(self.n, generator=torch.Generator().manual_seed(seed))[:n]
        return self.rows(drawn.sort().values)

    def split(self, share: float = 0.5, seed: int = 0) -> tuple[Task, Task]:
        """Two disjoint parts, for discovery and evaluation: seeded, `share` of the prompts in the first.

        Pairs with the same clean prompt stay together, so no prompt is in both parts.
        """
        group: dict[bytes, list[int]] = {}
        firsts = self.first_rows.tolist()
        for i, r in enumerate(firsts):
            real = self.clean.tokens[r][self.clean.mask[r]]
            group.setdefault(real.cpu().numpy().tobytes(), []).append(i)
        if len(group) < 2 or not 0 < share < 1:
            raise UserError(
                f"task {self.name!r} cannot be split: {len(group)} different clean prompts, share {share}; "
                "at least 2 prompts and a share between 0 and 1 are needed"
            )
        groups = list(group.values())
        order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
        want = min(max(round(share * self.n), 1), self.n - 1)
        one: list[int] = []
        two: list[int] = []
        for rank, g in enumerate(order):
            last = rank == len(order) - 1 and not two
            (two if last or (len(one) + len(groups[g]) > want and one) else one).extend(groups[g])
        parts = []
        for name, chosen in (("discovery", one), ("evaluation", two)):
            meta = {**self.meta, "part": name, "part_seed": seed}
            parts.append(replace(self.rows(sorted(chosen)), meta=meta))
        return parts[0], parts[1]

    def to(self, device: torch.device | str) -> Task:
        """The same task on another device; this one itself, with all that is known of it, where it is there."""
        return moved(self, device)

    def hash(self) -> str:
        """sha256 of everything that changes a number (not the name, nor where it was read from)."""
        h = hashlib.sha256()
        parts: dict[str, object] = {
            "clean": self.clean.digest(),
            "corrupt": self.corrupt.digest(),
            "shape": [list(self.clean.tokens.shape), list(self.corrupt.tokens.shape)],
            "right": self.right.lists(),
            "wrong": self.wrong.lists(),
            "prompt": self.prompt_of_row.tolist(),
            "counterfactual": self.counterfactual,
            "cluster": None if self.cluster is None else self.cluster.tolist(),
            "means_on": None if self.means_on is None else self.means_on.digest(),
        }
        h.update(json.dumps(parts, sort_keys=True).encode())
        return h.hexdigest()

    def _repr_html_(self) -> str:
        from interp.plots.show import card

        rows = [
            {
                "clean": _words(self.clean, row), "corrupt": _words(self.corrupt, row),
                "right": self.right.lists()[i], "wrong": self.wrong.lists()[i] or None,
            }
            for i, row in enumerate(self.first_rows[:5].tolist())
        ]  # fmt: skip
        told = ("split", "corruption", "seed", "source", "part")
        facts: dict[str, object] = {
            "prompts": self.n, "labels": ", ".join(self.clean.labels) or None,
            "lengths": "equal, pair by pair" if self.aligned else "unequal: patch by label",
            **{k: self.meta[k] for k in told if self.meta.get(k) is not None},
        }  # fmt: skip
        about = f"The first {len(rows)} of {self.n} pairs; answers are token ids."
        return card(f"Task {self.name}", facts, rows, about=about)


def _words(prompts: Prompts, row: int) -> str:
    """A prompt as text, or its token ids."""
    if prompts.text is not None:
        return prompts.text[row]
    return " ".join(map(str, prompts.tokens[row][prompts.mask[row]].tolist()))
