"""How well estimates agree with exact patching: Pearson correlation and top-k overlap, by layer and kind of edge.

    pearson   correlation of two methods' mean scores over the rows of a group, −1 to 1
    overlap   share of the k rows largest in size by exact patching that are also among the k largest by the
              estimate, k a tenth of the group (at least 1)
    signs     share of rows with the same sign, of those whose exact score is not 0

A group is all rows, or those of one layer and kind: edges into q, k, v of a layer, into its MLP, into the
logits; nodes by site and layer. Intervals resample prompts; both methods see the same draws. Unsigned methods
(AtP*) are compared with the size of exact scores per prompt; their signs are null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from interp.attribution.scores import Scores, array
from interp.registry import UserError
from interp.stats import Resampling

Rows = Float[np.ndarray, "row prompt"]
MEASURES = ("pearson", "overlap", "signs")


@dataclass(frozen=True)
class Group:
    """Rows of one layer and kind."""

    kind: str
    """`all`, q, k, v, mlp, logits, or a site."""
    layer: int | None
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """One measure of one method in one group, with its interval."""

    measure: str
    group: Group
    value: float
    low: float
    high: float
    reason: str | None


def groups_of(scores: Scores) -> list[Group]:
    """All rows, then the rows of each kind in each layer."""
    found: dict[tuple[str, int | None], list[int]] = {}
    for i, key in enumerate(scores.keys):
        if scores.graph is not None:
            slot = scores.graph.edges[i].dst
            kind: str = slot.part or slot.node.kind
            where = None if slot.node.kind == "logits" else slot.node.layer
        else:
            kind, where = str(key["site"]), key.get("layer")
        found.setdefault((kind, where), []).append(i)
    return [Group("all", None, tuple(range(len(scores)))), *(Group(k, n, tuple(r)) for (k, n), r in found.items())]


def agree(estimate: Scores, exact: Scores, how: Resampling) -> list[Agreement]:
    """Every measure in every group. UserError where the two are not about the same rows."""
    if estimate.keys != exact.keys:
        raise UserError(f"{estimate} and {exact} do not score the same rows")
    one, two = array(estimate.values), array(exact.values)
    if not estimate.signed:
        two = np.abs(two)
    out = []
    for group in groups_of(exact):
        rows = list(group.rows)
        for measure in MEASURES:
            if measure == "signs" and not estimate.signed:
                out.append(Agreement(measure, group, np.nan, np.nan, np.nan, "the method's scores have no sign"))
                continue
            out.append(_measured(measure, group, one[rows], two[rows], how))
    return out


def _measured(measure: str, group: Group, one: Rows, two: Rows, how: Resampling) -> Agreement:
    fn = _FUNCTIONS[measure]
    value = float(fn(_mean(one, np.ones((1, how.n))), _mean(two, np.ones((1, how.n))))[0])
    if not np.isfinite(value):
        return Agreement(measure, group, np.nan, np.nan, np.nan, _why(measure, len(group.rows)))
    if how.n < 5:
        return Agreement(measure, group, value, np.nan, np.nan, f"n = {how.n}: no interval under 5 prompts")
    drawn = fn(_mean(one, how.weights), _mean(two, how.weights))
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Agreement(measure, group, value, float(low), float(high), None)


def _why(measure: str, rows: int) -> str:
    if measure == "signs":
        return "every exact score is 0"
    return f"{rows} row: no correlation" if rows < 2 else "scores that do not vary have no correlation"


def _mean(values: Rows, weights: Float[np.ndarray, "draw prompt"]) -> Float[np.ndarray, "draw row"]:
    held = np.isfinite(values)
    total = weights @ np.where(held, values, 0.0).T
    return np.asarray(total / np.maximum(weights @ held.T.astype(float), 1))


def _pearson(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    a, b = (x - x.mean(1, keepdims=True) for x in (one, two))
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(size > 0, (a * b).sum(1) / size, np.nan))


def _overlap(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    k = max(1, round(one.shape[1] / 10))
    tops = [np.argsort(-np.abs(x), axis=1, kind="stable")[:, :k] for x in (one, two)]
    return np.asarray([len(np.intersect1d(a, b)) / k for a, b in zip(*tops, strict=True)])


def _signs(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    moved = two != 0
    with np.errstate(invalid="ignore"):
        return np.asarray((moved & (np.sign(one) == np.sign(two))).sum(1) / moved.sum(1))


_FUNCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "pearson": _pearson, "overlap": _overlap, "signs": _signs,
}  # fmt: skip


def rows_of(found: Sequence[Agreement], scores: Scores, n: int) -> list[dict[str, Any]]:
    """Rows of a table of the effect schema: the group in `components` and `layer`, the measure in `metric`."""
    columns = scores.columns()
    return [
        {
            **{k: columns[k] for k in columns if k not in ("unit", "components", "metric")},
            "metric": a.measure, "components": a.group.kind, "layer": a.group.layer,
            "positions": None, "value": a.value, "ci_low": a.low, "ci_high": a.high, "n": n,
            "unit": "correlation" if a.measure == "pearson" else "fraction", "reason": a.reason, "seed": scores.seed,
        }
        for a in found
    ]  # fmt: skip
