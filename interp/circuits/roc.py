"""A ranking of edges or nodes against those known to be true: AUROC, ROC points, precision and recall.

AUROC is the share of (true, false) pairs ranked rightly, ties counting half; its interval is a bootstrap over
true and false items separately. Precision and recall are those of the ranking's first m items, m being the
true number: they are then equal unless ties cross the cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from interp import stats
from interp.registry import UserError


@dataclass(frozen=True)
class Agreement:
    """How a ranking agrees with the truth."""

    auroc: float
    low: float
    high: float
    precision: float
    """Of the first m ranked, m the true number; ties at the cut are shared out evenly."""
    recall: float
    true: int
    items: int


def auroc(scores: Float[np.ndarray, " item"], truth: Bool[np.ndarray, " item"]) -> float:
    """Share of (true, false) pairs in which the true one scores higher; ties count half. NaN without a pair.

    >>> auroc(np.array([3.0, 1.0, 2.0]), np.array([True, False, True]))
    1.0
    """
    from scipy.stats import rankdata

    true = int(truth.sum())
    false = len(truth) - true
    if not true or not false:
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[truth].sum() - true * (true + 1) / 2) / (true * false))


def agreement(
    scores: Float[np.ndarray, " item"], truth: Bool[np.ndarray, " item"], rng: np.random.Generator
) -> Agreement:
    """AUROC with its interval, precision and recall at the true size. UserError for scores that are not finite."""
    scores, truth = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=bool)
    if scores.shape != truth.shape:
        raise UserError(f"{len(scores)} scores for {len(truth)} items")
    if not np.isfinite(scores).all():
        raise UserError(f"{int((~np.isfinite(scores)).sum())} scores are not finite")
    m = int(truth.sum())
    hits = _hits_at(scores, truth, m)
    low, high = _interval(scores, truth, rng)
    return Agreement(
        auroc(scores, truth), low, high, hits / m if m else np.nan, hits / m if m else np.nan, m, len(truth)
    )


def roc(
    scores: Float[np.ndarray, " item"], truth: Bool[np.ndarray, " item"]
) -> tuple[Float[np.ndarray, " cut"], Float[np.ndarray, " cut"]]:
    """False and true positive rates, one point per distinct score, from (0, 0) to (1, 1)."""
    order = np.argsort(-scores, kind="stable")
    sorted_scores, sorted_truth = scores[order], truth[order]
    last = np.append(np.flatnonzero(np.diff(sorted_scores)), len(scores) - 1)
    true = np.cumsum(sorted_truth)[last]
    false = np.cumsum(~sorted_truth)[last]
    return np.append(0.0, false / max(1, (~truth).sum())), np.append(0.0, true / max(1, truth.sum()))


def _hits_at(scores: np.ndarray, truth: np.ndarray, m: int) -> float:
    if not m:
        return 0.0
    cut = np.sort(scores)[::-1][m - 1]
    above, tied = scores > cut, scores == cut
    places = m - int(above.sum())
    return float(truth[above].sum() + places * truth[tied].sum() / tied.sum())


def _interval(scores: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    true, false = scores[truth], scores[~truth]
    if len(true) < stats.LEAST or len(false) < stats.LEAST:
        return float("nan"), float("nan")
    wins = (true[:, None] > false[None]).astype(np.float64) + 0.5 * (true[:, None] == false[None])
    draws = np.empty(stats.RESAMPLES)
    for i in range(stats.RESAMPLES):
        a = np.bincount(rng.integers(len(true), size=len(true)), minlength=len(true))
        b = np.bincount(rng.integers(len(false), size=len(false)), minlength=len(false))
        draws[i] = a @ wins @ b / wins.size
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
