"""Hypothesis tests of circuits: exact numbers, and that each comes out right where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from interp.circuits.hypotheses import against_random, equivalence, independence, minimality, same_size, share_interval
from interp.circuits.random_circuits import random_circuit
from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit
from interp.registry import UserError
from tests.interventions.pairs import random_task
from tests.tiny import tiny


def scores(wins: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    whole = np.ones(n)
    return np.where(np.arange(n) < wins, 2.0, 0.5), whole


def test_equivalence_by_hand() -> None:
    differ, same = equivalence(*scores(9, 10))
    # at the boundary 0.6: as far from ½ as 9 of 10 are 9, 10, 0 and 1
    want = binom.pmf([0, 1, 9, 10], 10, 0.6).sum()
    assert differ.p_value == pytest.approx(want)
    assert (differ.statistic, differ.n) == (0.9, 10)
    assert (differ.low, differ.high) == pytest.approx(binomtest(9, 10).proportion_ci(method="exact"))
    # the reversed test needs both one-sided ones
    assert same.p_value == pytest.approx(max(binom.cdf(9, 10, 0.6), binom.sf(8, 10, 0.4)))
    few, even = equivalence(*scores(5, 10))
    assert few.p_value == 1.0
    # ten prompts that split evenly are no evidence of equivalence; two thousand are
    assert even.p_value == pytest.approx(float(binom.cdf(5, 10, 0.6)))
    assert even.p_value > 0.3
    assert equivalence(*scores(1000, 2000))[1].p_value < 1e-15
    assert equivalence(*scores(1400, 2000))[0].p_value < 1e-15
    assert equivalence(*scores(1400, 2000))[1].p_value > 0.999


def test_ties_count_half() -> None:
    one = np.ones(400)
    differ, same = equivalence(one, one)
    assert (differ.statistic, differ.p_value) == (0.5, 1.0)
    assert same.p_value < 0.001
    with pytest.raises(UserError, match="between 0 and"):
        equivalence(one, one, epsilon=0.5)


def test_the_error_rate_is_kept_at_the_boundary() -> None:
    """At a true share of 0.6 the first test rejects in at most 5% of cases, and so does the reversed one."""
    rng = np.random.default_rng(0)
    wins = rng.binomial(200, 0.6, size=400)
    p = np.array([[t.p_value for t in equivalence(*scores(int(w), 200))] for w in wins])
    assert (p < 0.05).mean(0).max() <= 0.08


def test_intervals_of_shares() -> None:
    for wins, n in ((0, 7), (3, 7), (7, 7)):
        assert share_interval(float(wins), n) == pytest.approx(binomtest(wins, n).proportion_ci(method="exact"))


def test_independence_sees_dependence_only_where_it_is() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(60)
    related = independence(a**2 + 0.1 * rng.standard_normal(60), a, rng, permutations=200)
    assert related.p_value == pytest.approx(1 / 201)
    p = [
        independence(rng.standard_normal(40), rng.standard_normal(40), rng, permutations=99).p_value for _ in range(60)
    ]
    assert 0.3 < np.mean(p) < 0.7
    assert independence(np.ones(10), a[:10], rng, permutations=50).p_value == 1.0


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    model = tiny("gpt2")
    return Evaluator.of(model, random_task(model, (9, 7, 8, 9, 6, 7)))


def test_minimality_points_at_edges_that_do_nothing(evaluator: Evaluator) -> None:
    rng = np.random.default_rng(3)
    base = random_circuit(evaluator.graph, 25, rng)
    # a q edge into a head of which nothing else is kept and that leads nowhere
    loose = next(
        f"input->{s}" for s in evaluator.graph.slots if s.part == "q" and s.node not in base.nodes
    )  # fmt: skip
    circuit = base | Circuit.of(evaluator.graph, [loose])
    tests = minimality(evaluator, circuit, rng, references=60)
    assert len(tests) == 26
    idle = next(t for t in tests if str(t.edge) == loose)
    assert idle.p_adjusted is not None
    assert idle.p_adjusted < 0.05
    best = tests[0]
    assert best.p_value > idle.p_value
    assert best.statistic > idle.statistic
    assert all(t.p_adjusted == pytest.approx(min(1.0, t.p_value * 26)) for t in tests)
    with pytest.raises(UserError, match="this one has every edge"):
        minimality(evaluator, Circuit.full(evaluator.graph), rng)


def test_the_whole_model_beats_and_an_empty_circuit_loses(evaluator: Evaluator) -> None:
    rng = np.random.default_rng(0)
    full = Circuit.full(evaluator.graph)
    others = same_size(random_circuit(evaluator.graph, 30, rng), 40, rng)
    enough, _ = against_random(evaluator, full, others)
    assert enough.statistic == 1.0
    assert enough.p_value == pytest.approx(0.9**40)
    _, needed = against_random(evaluator, Circuit.empty(evaluator.graph), others)
    assert (needed.statistic, needed.p_value) == (0.0, 1.0)
    # a circuit against copies of itself: every comparison is a tie, and no evidence
    own = random_circuit(evaluator.graph, 30, rng)
    for test in against_random(evaluator, own, [own] * 40):
        assert test.statistic == 0.5
        assert test.p_value > 0.99
