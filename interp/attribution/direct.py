"""Direct logit attribution (DLA): what each part of a model writes straight into the logit difference.

Steps:

1. one forward of the prompts (with any edits), keeping what was written;
2. the direction mean W_U[:, right] − mean W_U[:, wrong], pulled back through the final norm with this run's
   own denominator frozen (centred for LayerNorm only; gain 1 + w where the family says so), and through each
   post-norm likewise (`pulled.py`);
3. each writer's dot product with it (`terms.py`): embedding, positions, heads, MLPs or neurons, biases.

The terms of a prompt sum to its logit difference, read *before* a logit soft-cap (Gemma-2): the cap mixes
all logits' terms and has no sum. Positive terms help the right answer. Checked on every call.

Source: 2211.00593; A Mathematical Framework for Transformer Circuits (2021).
Limits: answers of one token; no residual norms (post-LayerNorm models); a term says nothing of what a part
does through later parts (`self_repair.py` compares the two).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.pulled import Pulled, answer_direction, check_linear, logit_diff_at, pull
from interp.attribution.terms import Component, Detail, Granularity, Sources, all_terms, check_labels, needed_sites
from interp.hooks.edits import Edit
from interp.hooks.prompts import Prompts
from interp.hooks.selection import Place
from interp.metrics import get_metric
from interp.models.model import Model
from interp.models.net import Net
from interp.registry import UserError, unknown
from interp.tasks.values import Side, Task

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[Sequence[slice]], Iterable[slice]]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest distance of the sum from the logit difference, in shares of the prompt's summed absolute terms."""


@dataclass(frozen=True, eq=False)
class DirectAttribution:
    """Terms of the logit difference, by prompt and component, in logits; positive helps the right answer."""

    components: tuple[Component, ...]
    terms: Float[Tensor, "prompt component"]
    """NaN where a prompt has no such token."""
    logit_diff: Float[Tensor, " prompt"]
    """What the terms sum to: the model's logit difference before any soft-cap."""
    capped: Float[Tensor, " prompt"]
    """The model's logit difference as its logits give it; equal to `logit_diff` where there is no cap."""
    granularity: str
    position: str = "answer"
    """Where logits are read."""
    side: str = "clean"
    model: str = ""
    task: str = ""
    cluster: Int[Tensor, " prompt"] | None = None
    unit: str = "logits"

    def __len__(self) -> int:
        return len(self.components)

    @property
    def labels(self) -> list[str]:
        """Short names of the components: `embed`, `L1.H3`, `L0.mlp_out` …"""
        return [c.label for c in self.components]

    def __getitem__(self, label: str) -> Float[Tensor, " prompt"]:
        """The terms of one component, by its label."""
        if label not in self.labels:
            raise unknown("component", label, self.labels)
        return self.terms[:, self.labels.index(label)]

    @property
    def total(self) -> Float[Tensor, " prompt"]:
        """The sum of each prompt's terms; equals `logit_diff` up to rounding."""
        return torch.where(self.terms.isnan().all(1), torch.nan, self.terms.nansum(1))

    @property
    def gap(self) -> float:
        """Largest |total − logit_diff|, in shares of the prompt's summed absolute terms."""
        size = self.terms.abs().nansum(1).clamp(min=torch.finfo(self.terms.dtype).tiny)
        return float(((self.total - self.logit_diff).abs() / size).nan_to_num().max())

    def by_head(self, layers: int, heads: int) -> Float[Tensor, "layer head"]:
        """Mean terms of the heads as a grid; terms split by source are summed."""
        grid = self.terms.new_zeros(layers, heads)
        for component, mean in zip(self.components, self.terms.nanmean(0), strict=True):
            if component.head is not None and component.layer is not None:
                grid[component.layer, component.head] += mean
        return grid

    def top(self, k: int) -> DirectAttribution:
        """The same with only the k neurons of largest mean absolute term; each MLP's others become one `rest` row."""
        neuron = [i for i, c in enumerate(self.components) if c.neuron is not None]
        size = self.terms[:, neuron].abs().nanmean(0)
        chosen = {neuron[i] for i in size.argsort(descending=True, stable=True)[:k].tolist()}
        kept = [i for i, c in enumerate(self.components) if c.neuron is None or i in chosen]
        layers = sorted({layer for i in neuron if (layer := self.components[i].layer) is not None})
        parts, rests = [self.terms[:, kept]], []
        for layer in layers:
            left = [i for i in neuron if i not in chosen and self.components[i].layer == layer]
            if left:
                rests.append(Component("mlp_out", layer, components="rest"))
                parts.append(self.terms[:, left].sum(1, keepdim=True))
        return replace(self, components=(*(self.components[i] for i in kept), *rests), terms=torch.cat(parts, 1))

    def table(self, seed: int = 0) -> pd.DataFrame:
        """One row per component of the attribution schema: mean term as `score`, 95% interval over prompts, n."""
        import numpy as np

        from interp.results.frames import score_rows
        from interp.stats import resampling

        cluster = None if self.cluster is None else self.cluster.cpu().numpy()
        how = resampling(len(self.terms), np.random.default_rng(seed), cluster)
        return score_rows(
            [c.key() for c in self.components], self.terms.T.double().cpu().numpy(), how, seed=seed, **self.columns()
        )

    def save(self, out: str | Path = "results", seed: int = 0) -> Path:
        """Write the table as a cell (`reproducible: false`: objects of a notebook have no name); its folder."""
        from interp.results.frames import Table
        from interp.results.schemas import ATTRIBUTION
        from interp.results.store import save

        table = Table(self.table(seed), ATTRIBUTION)
        name = "direct_logit_attribution"
        return save(table, out, experiment=name, model=self.model, task=self.task, run={"seed": seed}).path

    def _repr_html_(self) -> str:
        import numpy as np

        from interp.plots import bars
        from interp.plots.show import card
        from interp.stats import resampling, summarize

        top = self.terms.nanmean(0).abs().nan_to_num().argsort(descending=True, stable=True)[:12]
        how = resampling(
            len(self.terms), np.random.default_rng(0), None if self.cluster is None else self.cluster.cpu().numpy()
        )
        got = summarize(self.terms[:, top].T.double().cpu().numpy(), how)
        drawn = bars(
            got.mean, [self.components[i].label for i in top.tolist()], low=got.low, high=got.high, unit=self.unit,
            title="What is written straight into the logit difference",
        )  # fmt: skip
        facts = {
            "model": self.model, "task": self.task, "components": len(self), "prompts": len(self.terms),
            "logit difference": float(self.logit_diff.nanmean()), "sum of terms": float(self.total.nanmean()),
        }  # fmt: skip
        about = f"The {len(top)} largest terms; .table() has all."
        return card("Direct logit attribution", facts, figures=[drawn], about=about)

    def columns(self) -> dict[str, Any]:
        """The columns of a result table that are the same in every row."""
        return {
            "experiment": "direct_logit_attribution", "model": self.model, "task": self.task, "metric": "logit_diff",
            "method": "dla", "algorithm": "frozen_final_scale", "granularity": self.granularity,
            "positions": self.position, "unit": self.unit,
        }  # fmt: skip


@torch.no_grad()
def direct_logit_attribution(
    model: Model,
    task: Task,
    *,
    granularity: Granularity | str = "heads",
    by_source: Sources | str = "none",
    labels: Sequence[str] | None = None,
    position: Place | None = None,
    side: Side = "clean",
    edits: Edit | Sequence[Edit] = (),
    batch_size: int | None = None,
    progress: Progress = list,
) -> DirectAttribution:
    """Each writer's term in the logit difference, per prompt.

    Args:
        granularity: `components` (whole attention and MLP layers), `heads`, or `neurons` (heads and neurons).
        by_source: split the heads' terms by the token they read: by real index (`position`) or by `label`.
        labels: which labels, for `by_source="label"`; all by default.
        position: where logits are read: a label or an integer; the answer position by default. A prompt that
            lacks the label gets NaN.
        edits: made in the run whose terms are taken. Where they change the stream itself a row `edits` holds
            what they put there, so that terms still sum.
        progress: wraps the sequence of batches.

    Raises UserError for answers of several tokens, missing wrong answers, models whose residual stream is
    normed or has no skip paths, and a model whose logit difference is not the sum (an unknown writer).

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> len(direct_logit_attribution(model, task, granularity="heads").table()) > 12
    True
    """
    _check(model, task, granularity, by_source)
    prompts = task.prompts(side)
    columns = prompts.answer_columns if position is None else prompts.column(position)
    wanted = tuple(labels) if labels is not None else tuple(sorted(prompts.labels))
    if by_source == "label":
        for label in wanted:
            prompts.real_index(label)
        check_labels(prompts, wanted)
    detail = Detail(granularity, by_source, int(prompts.mask.sum(1).max()), wanted)
    many = (edits,) if isinstance(edits, Edit) else tuple(edits)
    size = batch_size or rows_at_once(model, prompts)
    if many:
        size = len(prompts)  # an edit may hold another run's values row by row
    parts = [
        _batch(model, task.rows(rows), prompts.rows(rows), columns[rows], detail, many)
        for rows in progress([slice(i, i + size) for i in range(0, len(prompts), size)])
    ]
    result = DirectAttribution(
        parts[0].components, torch.cat([p.terms for p in parts]), torch.cat([p.logit_diff for p in parts]),
        torch.cat([p.capped for p in parts]), granularity, "answer" if position is None else str(position), side,
        model.name, task.name, task.cluster,
    )  # fmt: skip
    _check_sum(result, model)
    return result


def rows_at_once(model: Model, prompts: Prompts) -> int:
    """Prompts of a batch: few enough that logits of all positions stay small."""
    return max(1, min(64, 2**25 // (prompts.width * model.geometry.d_vocab)))


def need_parts(model: object, what: str) -> None:
    """UserError for a model that runs plain only (no family row), whose parts nothing here can reach."""
    if not isinstance(model, Model):
        raise UserError(f"{what} needs a model of a known family, got {type(model).__name__} ({model!r})")


def _check(model: Model, task: Task, granularity: str, by_source: str) -> None:
    need_parts(model, "direct logit attribution")
    if granularity not in ("components", "heads", "neurons"):
        raise unknown("granularity", granularity, ["components", "heads", "neurons"])
    if by_source not in ("none", "position", "label"):
        raise unknown("by_source", by_source, ["none", "position", "label"])
    if granularity == "components" and by_source != "none":
        raise UserError("a split by source token is of heads' terms: use granularity='heads' or 'neurons'")
    if granularity == "neurons" and not model.geometry.mlp:
        raise UserError(f"model {model.name} has no MLPs, so no neurons; granularity='heads' fits it")
    need_single(task, "direct logit attribution")
    get_metric("logit_diff").check(task)
    check_linear(model.net, model.name)


def need_single(task: Task, what: str) -> None:
    """UserError where answers have several tokens: their log-probability is no sum of terms at one position."""
    if not task.single:
        widths = torch.cat([task.right.widths.flatten(), task.wrong.widths.flatten()])
        raise UserError(
            f"{what} reads one logit per answer, but task {task.name!r} has answers of up to {int(widths.max())} "
            "tokens; keep answers of one token, or score their first tokens as a task of their own"
        )


@dataclass(frozen=True, eq=False)
class _Part:
    components: tuple[Component, ...]
    terms: Tensor
    logit_diff: Tensor
    capped: Tensor


def _batch(
    model: Model, task: Task, prompts: Prompts, columns: Tensor, detail: Detail, edits: tuple[Edit, ...]
) -> _Part:
    net = model.net
    pre_cap = ["logits_pre_cap"] if model.geometry.logit_cap else []
    run = model.run(prompts, edits=edits, capture=[*needed_sites(net, detail), *pre_cap])
    columns = columns.to(run.logits.device)
    capped = logit_diff_at(run.logits, columns, task)
    whole = logit_diff_at(run["logits_pre_cap"], columns, task) if pre_cap else capped
    direction = answer_direction(net, task)
    pulled = pull(net, direction, run.acts, columns)
    components, terms = collect(net, run.acts, pulled, direction.bias, columns, run.prompts, detail)
    if edits:
        components = (*components, Component("edits"))
        terms = torch.cat([terms, (whole - terms.nansum(1))[:, None]], 1)
    absent = columns < 0
    return _Part(
        components, terms.masked_fill(absent[:, None], torch.nan),
        whole.masked_fill(absent, torch.nan), capped.masked_fill(absent, torch.nan),
    )  # fmt: skip


def collect(
    net: Net, acts: Any, pulled: Pulled, bias: Tensor, columns: Tensor, prompts: Prompts, detail: Detail
) -> tuple[tuple[Component, ...], Float[Tensor, "prompt component"]]:
    """All terms of one run, from its activations and a pulled-back direction (of this run or of another)."""
    pieces = list(all_terms(net, acts, pulled, bias, columns, prompts, detail))
    home = pulled.final.device
    return tuple(c for part, _ in pieces for c in part), torch.cat([t.to(home) for _, t in pieces], 1)


def _check_sum(result: DirectAttribution, model: Model) -> None:
    allowed = TOLERANCE.get(model.dtype, 1e-1)
    if result.gap > allowed:
        raise UserError(
            f"the terms of {model.name} do not sum to its logit difference (off by {result.gap:.2g} of their size, "
            f"{allowed:.0e} allowed): something writes to its residual stream that this attribution does not know. "
            "A function on a site inside model.hooks belongs in edits="
        )
