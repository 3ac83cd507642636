"""Hypothesis tests of a circuit C in a model N (2410.13032), each with its null hypothesis in words.

    equivalence          H0: |P(m(C) > m(N)) − ½| < ε. A small p says they differ; a large one says nothing
    equivalence reversed H0: |P(m(C) > m(N)) − ½| ≥ ε. A small p is evidence of equivalence, and it alone is
    independence         H0: the complement's scores are independent of the model's (HSIC, permutations)
    minimality           H0: knocking the edge out changes m(C) more than a share q* of knock-outs of random
                         edges that were added to C does; one test an edge, Bonferroni
    sufficiency          H0: C is closer to N than at most a share q* of random circuits of its size are
    partial necessity    H0: without C the model is hurt more than by removing at most a share q* of them

Shares count prompts, edges or random circuits; ties count half. p-values are exact binomial, at the worst
boundary of the null; intervals of shares are Clopper-Pearson, 95%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from interp.circuits.random_circuits import random_circuit, random_path
from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit
from interp.graph import Edge
from interp.registry import UserError

EPSILON = 0.1
QUANTILE = 0.9
PERMUTATIONS = 1000


@dataclass(frozen=True)
class Test:
    """The outcome of one test."""

    name: str
    null: str
    """The null hypothesis, in words."""
    statistic: float
    p_value: float
    n: int
    low: float | None = None
    high: float | None = None
    """Interval of the statistic where it is a share."""
    edge: Edge | None = None
    p_adjusted: float | None = None


def share_interval(wins: float, n: int) -> tuple[float, float]:
    """Clopper-Pearson interval of a share, 95%."""
    from scipy.stats import beta

    low = 0.0 if wins <= 0 else float(beta.ppf(0.025, wins, n - wins + 1))
    high = 1.0 if wins >= n else float(beta.ppf(0.975, wins + 1, n - wins))
    return low, high


def equivalence(
    circuit: Float[np.ndarray, " prompt"], whole: Float[np.ndarray, " prompt"], epsilon: float = EPSILON
) -> tuple[Test, Test]:
    """The equivalence test and its reverse, from the metric per prompt of the circuit and of the model."""
    if not 0 < epsilon < 0.5:
        raise UserError(f"epsilon lies between 0 and ½, got {epsilon}")
    n = len(whole)
    wins = _wins(np.asarray(circuit), np.asarray(whole))
    low, high = share_interval(wins, n)
    differ = _two_sided(wins, n, 0.5 + epsilon)
    # one p for each side; both must be rejected
    same = max(_at_most(wins, n, 0.5 + epsilon), _at_least(wins, n, 0.5 - epsilon))
    band = f"{epsilon:g}"
    return (
        Test("equivalence", f"|share - 1/2| < {band}", wins / n, differ, n, low, high),
        Test("equivalence reversed", f"|share - 1/2| >= {band}", wins / n, same, n, low, high),
    )


def independence(
    complement: Float[np.ndarray, " prompt"],
    whole: Float[np.ndarray, " prompt"],
    rng: np.random.Generator,
    permutations: int = PERMUTATIONS,
) -> Test:
    """HSIC of the complement's and the model's metric over prompts, with its permutation p-value."""
    a, b = _centred(_kernel(np.asarray(complement))), _kernel(np.asarray(whole))
    n = len(b)
    own = float((a * b).sum() / n**2)
    larger = 0
    for _ in range(permutations):
        order = rng.permutation(n)
        larger += float((a * b[np.ix_(order, order)]).sum() / n**2) >= own - 1e-15
    p = (larger + 1) / (permutations + 1)
    return Test("independence", "complement independent of model", own, p, n)


def minimality(
    evaluator: Evaluator,
    circuit: Circuit,
    rng: np.random.Generator,
    *,
    references: int = 100,
    q: float = QUANTILE,
) -> list[Test]:
    """One test per edge, largest change first. A small adjusted p says that the edge is superfluous.

    References are edges of random paths, each joined to C and then knocked out of the inflated circuit.
    """
    edges = circuit.edges
    if not edges:
        return []
    single = [circuit - Circuit.of(circuit.graph, [e]) for e in edges]
    inflated, reduced = _inflated(circuit, references, rng)
    values = evaluator.values([circuit, *single, *inflated, *reduced]).double().mean(1).numpy()
    changes = np.abs(values[1 : 1 + len(edges)] - values[0])
    reference = np.abs(values[1 + len(edges) :][: len(inflated)] - values[1 + len(edges) + len(inflated) :])
    n = len(reference)
    if not n:
        raise UserError("minimality needs edges outside the circuit to compare with; this one has every edge")
    tests = []
    for edge, change in zip(edges, changes.tolist(), strict=True):
        wins = float((change > reference).sum() + 0.5 * (change == reference).sum())
        p = _at_most(wins, n, q)
        low, high = share_interval(wins, n)
        adjusted = min(1.0, p * len(edges))
        null = f"share >= {q:g}"
        tests.append((change, Test("minimality", null, wins / n, p, n, low, high, edge, adjusted)))
    return [t for _, t in sorted(tests, key=lambda pair: -pair[0])]


def against_random(
    evaluator: Evaluator,
    circuit: Circuit,
    others: Sequence[Circuit],
    q: float = QUANTILE,
) -> tuple[Test, Test]:
    """Sufficiency and partial necessity against other circuits of the same size."""
    ones = [circuit, *others]
    values = evaluator.values([*ones, *(~c for c in ones)]).double().mean(1).numpy()
    whole = float(evaluator.whole.double().mean())
    near, hurt = np.abs(values[: len(ones)] - whole), np.abs(values[len(ones) :] - whole)
    n = len(others)
    out = []
    for name, wins in (
        ("sufficiency", _wins(near[1:], np.full(n, near[0]))),
        ("partial necessity", _wins(np.full(n, hurt[0]), hurt[1:])),
    ):
        low, high = share_interval(wins, n)
        out.append(Test(name, f"share <= {q:g}", wins / n, _at_least(wins, n, q), n, low, high))
    return out[0], out[1]


def _inflated(circuit: Circuit, count: int, rng: np.random.Generator) -> tuple[list[Circuit], list[Circuit]]:
    """Circuits with a random path added, and each again without one of the path's edges that are new."""
    graph = circuit.graph
    inflated: list[Circuit] = []
    reduced: list[Circuit] = []
    outside = (~circuit).mask
    tries = 0
    while len(inflated) < count and tries < 50 * count and bool(outside.any()):
        tries += 1
        path = sorted(random_path(graph, rng))
        new = [(u, v) for u, v in path if outside[u, v]]
        if not new:
            continue
        bigger = circuit.mask.clone()
        for u, v in new:
            bigger[u, v] = True
        smaller = bigger.clone()
        smaller[new[int(rng.integers(len(new)))]] = False
        inflated.append(Circuit(graph, bigger))
        reduced.append(Circuit(graph, smaller))
    return inflated, reduced


def same_size(circuit: Circuit, count: int, rng: np.random.Generator) -> list[Circuit]:
    """Random circuits with as many edges."""
    return [random_circuit(circuit.graph, len(circuit), rng) for _ in range(count)]


def _wins(a: np.ndarray, b: np.ndarray) -> float:
    """How often a lies above b; ties (to rounding) count half."""
    gap = a - b
    tied = np.abs(gap) <= 1e-6 * np.maximum(np.abs(a), np.abs(b))
    return float((gap[~tied] > 0).sum() + 0.5 * tied.sum())


def _at_most(wins: float, n: int, share: float) -> float:
    """P(X ≤ wins) for X binomial; half a win is rounded up, which makes p larger."""
    from scipy.stats import binom

    return float(binom.cdf(np.ceil(wins), n, share))


def _at_least(wins: float, n: int, share: float) -> float:
    from scipy.stats import binom

    return float(binom.sf(np.floor(wins) - 1, n, share))


def _two_sided(wins: float, n: int, share: float) -> float:
    """P that the share lies at least as far from ½ as it does, where the true share is `share`."""
    far = abs(wins - n / 2)
    below, above = np.floor(n / 2 - far + 1e-9), np.ceil(n / 2 + far - 1e-9)
    if above <= below:
        return 1.0
    return min(1.0, _at_most(float(below), n, share) + _at_least(float(above), n, share))


def _kernel(x: np.ndarray) -> np.ndarray:
    """Gaussian kernel matrix with the median distance as bandwidth."""
    gap = np.abs(x[:, None] - x[None])
    median = float(np.median(gap[np.triu_indices(len(x), 1)])) if len(x) > 1 else 0.0
    scale = median if median > 0 else 1.0
    return np.asarray(np.exp(-(gap**2) / (2 * scale**2)))


def _centred(k: np.ndarray) -> np.ndarray:
    return np.asarray(k - k.mean(0) - k.mean(1, keepdims=True) + k.mean())
