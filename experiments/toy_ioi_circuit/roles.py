"""What each part of toy-ioi's circuit does, as interventions with a prediction each.

A claim names an intervention on the clean prompts of pairs whose corrupt half has a third name at S2, and between
which bounds the number must lie: the share of the gap between corrupt (0) and clean (1) that is left of the logit
difference, or an attention probability. The bounds were set on the discovery prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit
from interp.hooks import edits
from interp.hooks.values import Run
from interp.metrics import get_metric
from interp.models.model import Model
from interp.tasks.values import Task

MOVERS = (0, 1, 2, 3)
NO_LIMIT = float("inf")


@dataclass(frozen=True, eq=False)
class Claim:
    """One intervention and what it must give."""

    role: str
    parts: str
    """The nodes or edges that are changed or looked at."""
    what: str
    values: Float[Tensor, " prompt"]
    """With the intervention."""
    baseline: Float[Tensor, " prompt"]
    """Without it."""
    low: float
    high: float
    metric: str = "logit_diff"


class Scene:
    """The runs that all claims share."""

    def __init__(self, model: Model, task: Task) -> None:
        self.model, self.task = model, task.to(model.device)
        task.require_aligned()
        sites = ["z", "pattern", "mlp_out"]
        self.clean, self.corrupt = (model.run(p, capture=sites) for p in (self.task.clean, self.task.corrupt))
        self.evaluator = Evaluator.of(model, self.task)
        self.base = self.read(self.clean)

    def read(self, run: Run) -> Float[Tensor, " prompt"]:
        """The logit difference of a run on the clean prompts."""
        return get_metric("logit_diff")(run.logits, self.task)

    def edited(self, *some: edits.Edit) -> Float[Tensor, " prompt"]:
        """The logit difference with edits."""
        return self.read(self.model.run(self.task.clean, edits=list(some)))

    def corrupted(self, site: str, *, pos: str | None = None, heads: tuple[int, ...] = ()) -> list[edits.Edit]:
        """Edits that put the corrupt run's values in."""
        where: dict[str, Any] = {} if pos is None else {"pos": pos}
        if not heads:
            return [edits.patch(site, self.corrupt, **where)]
        return [edits.patch(site, self.corrupt, head=h, **where) for h in heads]

    def except_at(self, site: str, pos: str, head: int) -> edits.Edit:
        """The corrupt run's z of a head everywhere but at one label."""
        z = self.corrupt[site].clone()
        rows = torch.arange(len(z), device=z.device)
        column = self.task.clean.column(pos)
        z[rows, column] = self.clean[site][rows, column]
        acts = {**self.corrupt.acts, site: z}
        return edits.patch(site, replace(self.corrupt, acts=acts), head=head)

    def attention(self, layer: int, heads: tuple[int, ...], query: str, key: str, run: Run | None = None) -> Tensor:
        """Attention probability between two labels, mean over heads, by prompt."""
        pattern = (run or self.clean)[f"L{layer}.pattern"]
        rows = torch.arange(len(pattern), device=pattern.device)
        q, k = self.task.clean.column(query), self.task.clean.column(key)
        found: Tensor = torch.stack([pattern[rows, h, q, k] for h in heads]).mean(0)
        return found

    def patterned(self, layer: int, change: Callable[[Tensor], None]) -> edits.Edit:
        """The clean run's attention of a layer, changed in place by `change`."""
        pattern = self.clean[f"L{layer}.pattern"].clone()
        change(pattern)
        return edits.hold(f"L{layer}.pattern", pattern)

    def swap(self, pattern: Tensor, head: int, query: str, one: str, two: str) -> None:
        """Exchange what a head's query gives to two keys."""
        rows = torch.arange(len(pattern), device=pattern.device)
        q, a, b = (self.task.clean.column(label) for label in (query, one, two))
        first, second = pattern[rows, head, q, a].clone(), pattern[rows, head, q, b].clone()
        pattern[rows, head, q, a], pattern[rows, head, q, b] = second, first

    def cut(self, pattern: Tensor, heads: tuple[int, ...], query: str, key: str) -> None:
        """Take a key away from the heads' query."""
        rows = torch.arange(len(pattern), device=pattern.device)
        q, k = self.task.clean.column(query), self.task.clean.column(key)
        for h in heads:
            pattern[rows, h, q, k] = 0.0

    def without(self, *names: str) -> Float[Tensor, " prompt"]:
        """The logit difference with these edges carrying the corrupt values."""
        graph = self.evaluator.graph
        return self.evaluator.values([Circuit.full(graph) - Circuit.of(graph, names)])[0]


def claims(scene: Scene) -> list[Claim]:
    """Every claim, in the order of the story."""
    return [*_other_name(scene), *_movers(scene), *_fetchers(scene), *_second_mover(scene), *_rest(scene)]


def _other_name(s: Scene) -> Iterator[Claim]:
    role, me = "other-name head", "a0.h1"
    gap = s.attention(0, (1,), "S2", "IO") - s.attention(0, (1,), "S2", "S1")
    zero = torch.zeros_like(gap)
    yield Claim(role, me, "attention from S2 to IO - to S1", gap, zero, 0.3, 1.0, "attention")
    yield Claim(role, me, "corrupt output at S2 only", s.edited(*s.corrupted("L0.z", pos="S2", heads=(1,))), s.base,
                -NO_LIMIT, 0.2)  # fmt: skip
    yield Claim(
        role, me, "corrupt output everywhere but at S2", s.edited(s.except_at("L0.z", "S2", 1)), s.base, 0.9, 1.1
    )
    turned = s.patterned(0, lambda p: s.swap(p, 1, "S2", "IO", "S1"))
    yield Claim(role, me, "its attention from S2 to IO and to S1 exchanged", s.edited(turned), s.base, -NO_LIMIT, 0.0)


def _movers(s: Scene) -> Iterator[Claim]:
    role, us = "movers", "a1.h0, a1.h1, a1.h2, a1.h3"
    seen = s.attention(1, MOVERS, "END", "S2")
    yield Claim(role, us, "attention from END to S2", seen, torch.zeros_like(seen), 0.9, 1.0, "attention")
    yield Claim(role, us, "corrupt output at END", s.edited(*s.corrupted("L1.z", pos="END", heads=MOVERS)), s.base,
                -NO_LIMIT, 0.35)  # fmt: skip
    cut = s.patterned(1, lambda p: s.cut(p, MOVERS, "END", "S2"))
    yield Claim(role, us, "attention from END to S2 taken away", s.edited(cut), s.base, -NO_LIMIT, 0.5)
    edges = [f"a0.h1->a1.h{h}<v>" for h in MOVERS]
    yield Claim(role, ", ".join(edges), "these edges corrupt: the other-name head no longer moved", s.without(*edges),
                s.base, -NO_LIMIT, 0.5)  # fmt: skip


def _fetchers(s: Scene) -> Iterator[Claim]:
    role = "fetchers"
    edges = [f"{u}->a1.h{h}<q>" for u in ("a0.h2", "m0") for h in (2, 3)]
    yield Claim(role, ", ".join(edges), "these edges corrupt: queries at S2 no longer steered", s.without(*edges),
                s.base, -NO_LIMIT, 0.8)  # fmt: skip
    yield Claim(role, "a1.h2, a1.h3", "corrupt output at S2", s.edited(*s.corrupted("L1.z", pos="S2", heads=(2, 3))),
                s.base, -NO_LIMIT, 0.8)  # fmt: skip
    steered = s.model.run(s.task.clean, edits=s.corrupted("L0.z", pos="S2", heads=(2,)), capture=["pattern"])
    moved = s.attention(1, (3,), "S2", "IO", steered) - s.attention(1, (3,), "S2", "IO")
    yield Claim(role, "a0.h2 at a1.h3", "change of attention from S2 to IO with a0.h2 corrupt at S2", moved,
                torch.zeros_like(moved), -1.0, -0.05, "attention")  # fmt: skip


def _second_mover(s: Scene) -> Iterator[Claim]:
    role, me = "second mover", "a2.h3"
    seen = s.attention(2, (3,), "END", "S2")
    yield Claim(role, me, "attention from END to S2", seen, torch.zeros_like(seen), 0.9, 1.0, "attention")
    yield Claim(role, me, "corrupt output at END", s.edited(*s.corrupted("L2.z", pos="END", heads=(3,))), s.base,
                -NO_LIMIT, 0.8)  # fmt: skip
    edges = ["a1.h3->a2.h3<v>", "m1->a2.h3<v>"]
    yield Claim(role, ", ".join(edges), "these edges corrupt: what was fetched to S2 no longer moved",
                s.without(*edges), s.base, -NO_LIMIT, 0.9)  # fmt: skip


def _rest(s: Scene) -> Iterator[Claim]:
    yield Claim("last MLP", "m2", "corrupt output at END", s.edited(*s.corrupted("L2.mlp_out", pos="END")), s.base,
                -NO_LIMIT, 0.95)  # fmt: skip
    idle = [*s.corrupted("L0.z", heads=(0, 3))]
    yield Claim("not in the circuit", "a0.h0, a0.h3", "corrupt output everywhere", s.edited(*idle), s.base, 0.95, 1.05)
