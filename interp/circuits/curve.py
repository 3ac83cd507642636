"""Faithfulness over circuit size, with the areas CPR and CMD of the MIB circuit track.

At each share k of the n edges the int(k·n) best ones are kept (top-n or greedy from the logits), disconnected
parts are pruned, and f(k) = (m(C_k) − m(∅))/(m(N) − m(∅)). x is the nominal k, whatever pruning removed.

    CPR = ∫ f dk (higher is better)        CMD = ∫ |1 − f| dk (lower is better)

by trapezoids over linear k between the smallest and the largest share. CPR is reported for signed scores by
default, CMD for absolute ones; tables hold both for both rankings. Source: 2504.13151.

    >>> round(cpr(SHARES, [0.28] * 10), 5), round(cmd(SHARES, [0.28] * 10), 5)
    (0.27972, 0.71928)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp import stats
from interp.circuits.running import Evaluator
from interp.circuits.select import Selection, select
from interp.circuits.values import Circuit, EdgeTable
from interp.interventions.effects import Progress
from interp.registry import UserError

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the edges at which the MIB circuit track evaluates."""

Numbers = Sequence[float] | Float[np.ndarray, " share"]


def cpr(shares: Numbers, f: Numbers) -> float:
    """Area under the faithfulness curve; NaN where a value is missing."""
    x, y = _curve(shares, f)
    return float(np.trapezoid(y, x))


def cmd(shares: Numbers, f: Numbers) -> float:
    """Area between the faithfulness curve and 1; NaN where a value is missing."""
    x, y = _curve(shares, f)
    return float(np.trapezoid(np.abs(1.0 - y), x))


def _curve(shares: Numbers, f: Numbers) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(shares, dtype=np.float64), np.asarray(f, dtype=np.float64)
    if x.shape != y.shape or len(x) < 2 or bool((np.diff(x) <= 0).any()):
        raise UserError(f"a curve needs rising shares and a value for each, got {x.tolist()} and {len(y)} values")
    return x, y


def edges_at(share: float, edges: int) -> int:
    """How many of `edges` edges a share keeps, before pruning."""
    if not 0 <= share <= 1:
        raise UserError(f"a share of the edges lies between 0 and 1, got {share}")
    return int(share * edges)


@dataclass(frozen=True, eq=False)
class Curve:
    """Circuits of growing size under one ranking, with what they score."""

    evaluator: Evaluator
    shares: tuple[float, ...]
    circuits: tuple[Circuit, ...]
    values: Float[Tensor, "share prompt"]
    selection: Selection
    absolute: bool

    @property
    def f(self) -> Float[np.ndarray, " share"]:
        """Faithfulness at each share."""
        return self.band.value

    @property
    def band(self) -> stats.Ratio:
        """Faithfulness with its interval over prompts."""
        return self.evaluator.faithfulness(self.values)

    @property
    def cpr(self) -> float:
        return cpr(self.shares, self.f)

    @property
    def cmd(self) -> float:
        return cmd(self.shares, self.f)

    def areas(self) -> dict[str, tuple[float, float, float]]:
        """CPR and CMD, each with its 95% interval: prompts are resampled for the whole curve at once."""
        at = self.evaluator
        x, whole, nothing = (t.double().cpu().numpy() for t in (self.values, at.whole, at.nothing))
        weights = at.resampling.weights / at.resampling.weights.sum(1, keepdims=True)
        gap = weights @ (whole - nothing)
        gap = np.where(np.abs(gap) > stats.COINCIDE * np.abs(weights @ np.abs(whole)), gap, np.nan)
        f = ((x - nothing) @ weights.T) / gap
        drawn = {"cpr": np.trapezoid(f, self.shares, axis=0), "cmd": np.trapezoid(np.abs(1 - f), self.shares, axis=0)}
        few = self.evaluator.task.n < stats.LEAST
        out = {}
        for name, own in (("cpr", self.cpr), ("cmd", self.cmd)):
            low, high = (np.nan, np.nan) if few else np.nanquantile(drawn[name], [0.025, 0.975])
            out[name] = (own, float(low), float(high))
        return out

    @property
    def ranking(self) -> str:
        """How edges were chosen, in words."""
        return f"{self.selection}, {'absolute' if self.absolute else 'signed'} scores"

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the curve schema: one per share, then CPR and CMD."""
        band, raw = self.band, self.values.double().mean(1).tolist()
        out: list[dict[str, Any]] = []
        for i, (share, circuit) in enumerate(zip(self.shares, self.circuits, strict=True)):
            out.append({
                "series": "faithfulness", "algorithm": self.ranking, "x_name": "share of edges", "x": share,
                "items": len(circuit), "value": band.value[i], "baseline": raw[i], "ci_low": band.low[i],
                "ci_high": band.high[i], "n": self.evaluator.task.n, "unit": "fraction", "reason": band.reason[i],
            })  # fmt: skip
        for name, (value, low, high) in self.areas().items():
            out.append({
                "series": name, "algorithm": self.ranking, "value": value, "ci_low": low, "ci_high": high,
                "n": self.evaluator.task.n, "unit": "fraction", "reason": band.reason[-1],
            })  # fmt: skip
        return out


def faithfulness_curve(
    evaluator: Evaluator,
    scores: EdgeTable,
    *,
    shares: Sequence[float] = SHARES,
    selection: Selection = "top",
    absolute: bool = False,
    progress: Progress | None = None,
) -> Curve:
    """The curve of a ranking of the graph's edges."""
    edges = len(evaluator.graph.edges)
    circuits = tuple(select(evaluator.graph, scores, edges_at(k, edges), selection, absolute=absolute) for k in shares)
    return Curve(evaluator, tuple(shares), circuits, evaluator.values(circuits, progress), selection, absolute)
