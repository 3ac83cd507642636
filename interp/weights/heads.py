"""Head census: what every head's attention does on repeated random tokens, and which class that makes it.

Steps:

1. prompts of random tokens with period T, tokens distinct within a period, for several random T, without BOS
   and, where the model has one, with it (`interp.tasks.repeated`);
2. the scores of every head on every prompt: previous, duplicate, induction, current, first, entropy; beside
   each attention score what an even spread over the visible tokens would give (`chance`);
3. the class of a head: those stripes whose mean is at least `CLASS_AT`, strongest first.

`path_classes` adds classes that need a task: a head whose *direct* path to the logits (through MLPs at most) helps
is a `mover` where its copy score is high and `direct` otherwise, one whose direct path hurts a `negative mover` or
`direct negative` in the same way, and one that acts through the queries of movers and direct heads `inhibition`.

Source: Olsson et al. 2022 (2209.11895); 2211.00593. Limits: a head may do other things on natural text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.interventions.effects import Effects
from interp.interventions.paths import path_effects
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.repeated import SCORES, pattern_scores, repeated
from interp.tasks.tokens import Codec
from interp.tasks.values import Task

STRIPES = ("previous", "duplicate", "induction", "current", "first")
CLASS_AT = 0.4
COPY_AT = 0.5
READ_THROUGH = ("mover", "direct")
LEAST_PERIODS = 3


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of all heads on repeated random tokens: fractions of attention, entropy in nats."""

    scores: Mapping[str, Float[Tensor, "prompt layer head"]]
    chance: Mapping[str, Float[Tensor, " prompt"]]
    """What even attention over the visible tokens gives on each prompt."""
    periods: tuple[int, ...]
    bos: bool

    def mean(self, score: str) -> Float[Tensor, "layer head"]:
        """Mean over prompts of one score."""
        return self.scores[score].mean(0)

    def best(self, score: str) -> tuple[int, int]:
        """(layer, head) of the largest mean."""
        grid = self.mean(score)
        return divmod(int(grid.argmax()), grid.shape[1])

    def classes(self) -> list[list[str]]:
        """Class names `[layer][head]`: stripes of at least 0.4, strongest first, joined by `+`; `` for none."""
        grids = torch.stack([self.mean(name) for name in STRIPES])
        found = []
        for layer in range(grids.shape[1]):
            row = []
            for head in range(grids.shape[2]):
                column = grids[:, layer, head]
                order = column.argsort(descending=True).tolist()
                row.append("+".join(STRIPES[i] for i in order if float(column[i]) >= CLASS_AT))
            found.append(row)
        return found


def random_periods(n_ctx: int, bos: bool, seed: int, count: int = LEAST_PERIODS) -> tuple[int, ...]:
    """`count` different random periods, from 5 to 40 as far as the context allows."""
    most = min(40, (n_ctx - bos) // 2)
    least = min(5, most - count + 1)
    if least < 2:
        raise UserError(f"a context of {n_ctx} tokens holds no {count} different repeated periods")
    return tuple(sorted(random.Random(f"periods:{seed}").sample(range(least, most + 1), count)))


@torch.no_grad()
def head_scores(
    model: Model,
    *,
    periods: Sequence[int] | None = None,
    n: int = 8,
    bos: bool = False,
    bos_id: int | None = None,
    seed: int = 0,
) -> HeadScores:
    """Scores of every head over `n` prompts of each period.

    Args:
        periods: at least 3 different ones; drawn at random by default.
        bos: begin every prompt with the model's BOS token, or with `bos_id`.

    Raises UserError where there is no BOS token, the vocabulary is too small, or prompts exceed the context.

    >>> import interp
    >>> head_scores(interp.load_model("attn-2l"), n=2).best("induction")  # layer, head
    (1, 0)
    """
    g, codec = model.geometry, Codec.of(model)
    start = (codec.bos_id if bos_id is None else bos_id) if bos else None
    if bos and start is None:
        raise UserError(f"bos=True, but {model.name} has no BOS token; name one with bos_id=")
    ts = random_periods(g.n_ctx, bos, seed) if periods is None else tuple(sorted(periods))
    if len(set(ts)) < LEAST_PERIODS:
        raise UserError(f"at least {LEAST_PERIODS} different periods are needed, got {list(ts)}")
    ordinary = [t for t in codec.ordinary() if t != start]
    parts: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    chance: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    for period in ts:
        run = model.run(repeated(ordinary, period, n, seed, start, n_ctx=g.n_ctx), capture="pattern")
        even = _even(model, run["L0.pattern"].shape[-1]).double()
        for name, value in pattern_scores(even, period, bos).items():
            chance[name].append(value[0].expand(n))
        layers = [pattern_scores(run[f"L{i}.pattern"].double(), period, bos) for i in range(g.layers)]
        for name in SCORES:
            parts[name].append(torch.stack([layer[name] for layer in layers], 1).cpu())
    return HeadScores(
        {name: torch.cat(p) for name, p in parts.items()}, {k: torch.cat(v) for k, v in chance.items()}, ts, bos
    )


def _even(model: Model, width: int) -> Float[Tensor, "1 1 query key"]:
    seen = torch.ones(width, width)
    seen = seen.tril() if model.geometry.causal else seen
    return (seen / seen.sum(-1, keepdim=True))[None, None]


@dataclass(frozen=True, eq=False)
class PathClasses:
    """Classes of heads by their path to the logits and their copy scores."""

    direct: Effects
    """What each head's direct path to the logits does (path patching, other heads frozen)."""
    through: Effects | None
    """The same through the queries of movers and direct heads; None where there are none."""
    classes: list[list[str]]


def path_classes(
    model: Model,
    task: Task,
    copy: Float[Tensor, "layer head"],
    negative: Float[Tensor, "layer head"],
    *,
    metric: str = "logit_diff",
    share: float = 0.05,
) -> PathClasses:
    """Movers, negative movers and inhibition heads of a task.

    `copy` and `negative` are the copy scores (NaN where null). A path counts where its mean effect is at least
    `share` of the metric's clean − corrupt gap and its p, adjusted over all heads, is under 0.05.
    """
    direct = path_effects(model, task, receivers=["logits"], metric=metric)
    helps, hurts = _counts(direct, share)
    g = model.geometry
    classes = [["" for _ in range(g.heads)] for _ in range(g.layers)]
    for layer in range(g.layers):
        for head in range(g.heads):
            at = layer * g.heads + head
            if helps[at]:
                classes[layer][head] = "mover" if float(copy[layer, head]) >= COPY_AT else "direct"
            elif hurts[at]:
                sure = float(negative[layer, head]) >= COPY_AT
                classes[layer][head] = "negative mover" if sure else "direct negative"
    movers = [f"a{i}.h{j}<q>" for i, row in enumerate(classes) for j, name in enumerate(row) if name in READ_THROUGH]
    if not movers:
        return PathClasses(direct, None, classes)
    through = path_effects(model, task, receivers=movers, metric=metric)
    helps, _ = _counts(through, share)
    for at in helps.nonzero().flatten().tolist():
        layer, head = divmod(at, g.heads)
        classes[layer][head] = classes[layer][head] or "inhibition"
    return PathClasses(direct, through, classes)


def _counts(effects: Effects, share: float) -> tuple[Tensor, Tensor]:
    """Which heads' paths help (taking the path away lowers the metric) and which hurt, in node order."""
    from interp import stats

    moved = (effects.values - effects.baseline).double().cpu().numpy()
    p = stats.benjamini_hochberg(stats.summarize(moved, effects.resampling()).p_value)
    sure = torch.from_numpy(p) < 0.05
    gap = float((effects.clean - effects.corrupt).mean())
    relative = effects.mean.double().cpu() / gap
    return sure & (relative <= -share), sure & (relative >= share)
