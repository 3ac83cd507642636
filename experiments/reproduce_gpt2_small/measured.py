"""What is measured of one fact, and the helpers that every topic shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from experiments.reproduce_gpt2_small.facts import Head, head_name
from interp.registry import UserError

if TYPE_CHECKING:
    from interp.models.model import Model
    from interp.stats import Resampling
    from interp.tasks.values import Task

LAYERS, HEADS = 12, 12


@dataclass(frozen=True)
class Got:
    """A measured number with its 95% interval over prompts, and the head's place among all heads."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    rank: int | None = None
    """From 0: how many heads have a larger number (a smaller one, where the fact says `least`)."""
    reason: str | None = None


Measured = Mapping[tuple[str, str], Got]
"""By quantity and place."""


def mean_of(values: Any, how: Resampling | None = None, rank: int | None = None) -> Got:
    """The mean of one number per prompt."""
    from interp import stats

    x = _array(values)[None]
    how = how or stats.resampling(x.shape[1], np.random.default_rng(0))
    got = stats.summarize(x, how)
    return Got(float(got.mean[0]), float(got.low[0]), float(got.high[0]), int(got.n[0]), rank, got.reason[0])


def share_of(part: Any, whole: Any, how: Resampling, *, drop: bool = False) -> Got:
    """Mean of `part` as a share of the mean of `whole`; with `drop`, one minus that."""
    from interp import stats

    x, y = _array(part), _array(whole)
    got = stats.ratio(x[None], y, np.zeros_like(y), how)
    value, low, high = (float(v[0]) for v in (got.value, got.low, got.high))
    if drop:
        value, low, high = 1 - value, 1 - high, 1 - low
    return Got(value, low, high, len(x), None, got.reason[0])


def resampling(task: Task, seed: int) -> Resampling:
    """Resamples of a task's prompts, by template where it names templates."""
    from interp import stats

    clusters = None if task.cluster is None else task.cluster.cpu().numpy()
    return stats.resampling(task.n, np.random.default_rng(seed), clusters)


def ranks(values: Float[np.ndarray, " item"], least: bool = False) -> list[int]:
    """Rank of each value from 0, the largest first (the smallest with `least`)."""
    order = np.argsort(values if least else -values, kind="stable")
    found = np.empty(len(values), dtype=int)
    found[order] = np.arange(len(values))
    return [int(r) for r in found]


def need_heads(model: Model, heads: Iterable[Head]) -> None:
    """UserError that names the first head the model lacks."""
    g = model.geometry
    for layer, head in heads:
        if layer >= g.layers or head >= g.heads:
            raise UserError(
                f"{model.name} has {g.layers} layers of {g.heads} heads: there is no {head_name((layer, head))}"
            )


def _array(values: Any) -> Float[np.ndarray, " prompt"]:
    return np.asarray(values.detach().double().cpu().numpy() if hasattr(values, "detach") else values, dtype=float)
