"""Self-repair: total against direct effect of knocking heads out, and what the other parts then write.

For each set of heads, with everything in logits before a soft-cap, effect = ablated − base per prompt:

    total    the change of the logit difference when the set is ablated
    direct   the change of the set's own terms, all norm scales frozen at the base run
    others   the change of every other part's term under the same frozen scales
    norms    what is left: the final norm's (and post-norms') scales change too

    total = direct + Σ others + norms;   repair = total − direct

Repair of the opposite sign to direct means that later parts (or the norm) make up for the loss.

Source: 2307.15771 (the Hydra effect), 2402.15390 (self-repair and the share of the final norm's scale).
Limits: those of direct logit attribution; one forward per set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.direct import collect, need_parts, need_single, rows_at_once
from interp.attribution.pulled import (
    AnswerDirection,
    Pulled,
    answer_direction,
    check_linear,
    logit_diff_at,
    pull,
)
from interp.attribution.terms import Component, Detail, needed_sites
from interp.hooks.edits import Edit, zero
from interp.hooks.prompts import Prompts
from interp.hooks.values import Run
from interp.metrics import get_metric
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Side, Task

if TYPE_CHECKING:
    import pandas as pd

Head = tuple[int, int]
MakeEdit = Callable[[int, int], Edit]
Sets = Sequence[tuple[Head, ...]]


@dataclass(frozen=True, eq=False)
class SelfRepair:
    """Effects of knocking sets of heads out, split by path, in logits: ablated − base per prompt."""

    sets: tuple[tuple[Head, ...], ...]
    components: tuple[Component, ...]
    base: Float[Tensor, " prompt"]
    """The unedited run's logit difference, before any soft-cap."""
    total: Float[Tensor, "prompt set"]
    direct: Float[Tensor, "prompt set"]
    others: Float[Tensor, "prompt set component"]
    """Change of each part's term; 0 for the set's own heads."""
    norms: Float[Tensor, "prompt set"]
    model: str = ""
    task: str = ""
    cluster: Int[Tensor, " prompt"] | None = None
    unit: str = "logits"

    @property
    def labels(self) -> list[str]:
        """A name for each set: `L1.H2`, `L0.H1+L1.H2`."""
        return ["+".join(f"L{layer}.H{head}" for layer, head in one) for one in self.sets]

    @property
    def repair(self) -> Float[Tensor, "prompt set"]:
        """total − direct: what all other parts and the norms' scales do about it."""
        return self.total - self.direct

    def table(self, seed: int = 0) -> pd.DataFrame:
        """Rows of the effect schema for each set: methods total_effect, direct_effect, self_repair, norm_scales."""
        parts = {
            "total_effect": self.total, "direct_effect": self.direct,
            "self_repair": self.repair, "norm_scales": self.norms,
        }  # fmt: skip
        keys = [{"method": name, **self._key(i)} for name in parts for i in range(len(self.sets))]
        return self._frame(keys, torch.cat([p.T for p in parts.values()]), seed)

    def changes(self, index: int, seed: int = 0) -> pd.DataFrame:
        """How every other part's term changes when set `index` is knocked out: `src` is the set."""
        keys = [{"method": "direct_effect_change", "src": self.labels[index], **c.key()} for c in self.components]
        own = {(c.layer, c.head) for c in self.components} & set(self.sets[index])
        kept = [i for i, c in enumerate(self.components) if (c.layer, c.head) not in own]
        return self._frame([keys[i] for i in kept], self.others[:, index, kept].T, seed)

    def _key(self, index: int) -> dict[str, Any]:
        heads = self.sets[index]
        if len(heads) == 1:
            return {"site": "z", "layer": heads[0][0], "head": heads[0][1]}
        return {"site": "z", "components": self.labels[index]}

    def _frame(self, keys: list[dict[str, Any]], effects: Float[Tensor, "row prompt"], seed: int) -> pd.DataFrame:
        import numpy as np

        from interp.results.frames import effect_rows
        from interp.stats import resampling

        cluster = None if self.cluster is None else self.cluster.cpu().numpy()
        how = resampling(len(self.base), np.random.default_rng(seed), cluster)
        base = self.base.double().cpu().numpy()
        return effect_rows(
            keys, base + effects.double().cpu().numpy(), base, how, experiment="self_repair", model=self.model,
            task=self.task, metric="logit_diff", direction="ablate", unit=self.unit, seed=seed,
        )  # fmt: skip


@torch.no_grad()
def self_repair(
    model: Model,
    task: Task,
    heads: Iterable[Head | Sequence[Head]] | None = None,
    *,
    ablate: MakeEdit | None = None,
    side: Side = "clean",
    batch_size: int | None = None,
    progress: Callable[[Sets], Iterable[tuple[Head, ...]]] = list,
) -> SelfRepair:
    """Knock out each head, or each set of heads, and split the effect into its paths.

    Args:
        heads: (layer, head) pairs or lists of them; every head by default.
        ablate: makes the edit of a head at `z`, for instance
            `lambda layer, head: interp.mean(f"L{layer}.z", means, head=head)`; zero ablation by default.

    Raises UserError as direct logit attribution does, and for a head that the model lacks.
    """
    need_parts(model, "self-repair")
    need_single(task, "self-repair")
    get_metric("logit_diff").check(task)
    check_linear(model.net, model.name)
    sets = _sets(model, heads)
    make: MakeEdit = ablate or (lambda layer, head: zero(f"L{layer}.z", head=head))
    prompts = task.prompts(side)
    # another run's values may stand in the edits, row by row, so prompts stay together unless we make them
    size = len(prompts) if ablate else batch_size or rows_at_once(model, prompts)
    batches = [slice(i, i + size) for i in range(0, len(prompts), size)]
    bases = [_Base.of(model, task.rows(rows), prompts.rows(rows)) for rows in batches]
    knocked = []
    for one in progress(sets):
        edits = [make(layer, head) for layer, head in one]
        found = [base.knock_out(model, edits, one) for base in bases]
        knocked.append([torch.cat(parts) for parts in zip(*found, strict=True)])
    total, direct, others, norms = (torch.stack(parts, 1) for parts in zip(*knocked, strict=True))
    return SelfRepair(
        sets, bases[0].components, torch.cat([b.whole for b in bases]), total, direct, others, norms, model.name,
        task.name, task.cluster,
    )  # fmt: skip


def _sets(model: Model, heads: Iterable[Head | Sequence[Head]] | None) -> tuple[tuple[Head, ...], ...]:
    g = model.geometry
    if heads is None:
        return tuple(((layer, head),) for layer in range(g.layers) for head in range(g.heads))
    found = []
    for one in heads:
        pairs: Any = [one] if len(one) == 2 and all(isinstance(i, int) for i in one) else one
        for pair in pairs:
            if len(pair) != 2 or not (-g.layers <= pair[0] < g.layers and -g.heads <= pair[1] < g.heads):
                raise UserError(f"no head {tuple(pair)} in {model.name}: it has {g.layers} layers × {g.heads} heads")
        found.append(tuple(dict.fromkeys((layer % g.layers, head % g.heads) for layer, head in pairs)))
    if not found or not all(found):
        raise UserError("self-repair needs at least one head to knock out, and no empty sets")
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _Base:
    """The unedited run of a batch: its terms, and the scales that all terms are taken with."""

    task: Task
    prompts: Prompts
    columns: Tensor
    direction: AnswerDirection
    pulled: Pulled
    components: tuple[Component, ...]
    terms: Tensor
    whole: Tensor

    @staticmethod
    def of(model: Model, task: Task, prompts: Prompts) -> _Base:
        net, detail = model.net, Detail("heads")
        run = model.run(prompts, capture=_captured(model, detail))
        columns = run.prompts.answer_columns
        direction = answer_direction(net, task)
        pulled = pull(net, direction, run.acts, columns)
        components, terms = collect(net, run.acts, pulled, direction.bias, columns, run.prompts, detail)
        return _Base(task, run.prompts, columns, direction, pulled, components, terms, _whole(run, columns, task))

    def knock_out(
        self, model: Model, edits: Sequence[Edit], heads: tuple[Head, ...]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """total, direct, others and norms of one set."""
        detail = Detail("heads")
        run = model.run(self.prompts, edits=edits, capture=_captured(model, detail))
        bias = self.direction.bias
        _, terms = collect(model.net, run.acts, self.pulled, bias, self.columns, self.prompts, detail)
        total = _whole(run, self.columns, self.task) - self.whole
        change = terms - self.terms
        own = torch.tensor([(c.layer, c.head) in heads for c in self.components], device=change.device)
        return total, change[:, own].sum(1), change.masked_fill(own, 0.0), total - change.sum(1)


def _captured(model: Model, detail: Detail) -> list[str]:
    return [*needed_sites(model.net, detail), *(["logits_pre_cap"] if model.geometry.logit_cap else [])]


def _whole(run: Run, columns: Tensor, task: Task) -> Float[Tensor, " prompt"]:
    """The logit difference before any soft-cap."""
    return logit_diff_at(run.acts.get("logits_pre_cap", run.logits), columns, task)
