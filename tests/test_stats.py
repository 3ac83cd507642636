"""Intervals against hand-computed numbers, simulated coverage, and independence of order and packs."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.stats import (
    Resampling,
    benjamini_hochberg,
    interval,
    ratio,
    resampling,
    summarize,
)

FIELDS = ("mean", "stderr", "low", "high", "p_value", "n")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def same(a: object, b: object, rows: object = slice(None)) -> bool:
    return all(np.array_equal(getattr(a, f)[rows], getattr(b, f), equal_nan=True) for f in FIELDS)


def test_known_row() -> None:
    got = interval([1.0, 2.0, 3.0, 4.0, 5.0], rng())
    assert got.mean == 3.0
    assert got.stderr == pytest.approx(0.7071067811865476)  # sqrt(2.5 / 5)
    # t = 3 / 0.70711 = 4.2426, 4 degrees of freedom; the table says p = 0.0132
    assert got.p_value == pytest.approx(0.013235, abs=2e-6)
    assert got.n == 5
    assert got.reason is None


def test_percentiles_are_those_of_given_draws() -> None:
    """All 5^5 resamples of five prompts, enumerated: the interval is the exact bootstrap distribution's."""
    x = np.array([0.0, 0.0, 0.0, 0.0, 10.0])
    draws = np.array([[row.count(i) for i in range(5)] for row in itertools.product(range(5), repeat=5)], float)
    got = summarize(x[None], Resampling(draws, np.arange(5), "prompts"))
    # the mean is 2·k, k ~ Binomial(5, 1/5): P(0) = .328, P(k ≤ 2) = .942, P(k ≤ 3) = .99328 → 2.5% is 0, 97.5% is 6
    assert (got.low[0], got.high[0]) == (0.0, 6.0)


def test_draws_match_the_exact_distribution() -> None:
    how = resampling(5, rng())
    counts = how.weights
    assert counts.shape == (2000, 5)
    assert (counts.sum(1) == 5).all()
    assert (counts[:, 4] == 0).mean() == pytest.approx(0.8**5, abs=0.03)


def test_coverage() -> None:
    """Of 400 simulated samples of 40, about 95% of the intervals hold the true mean."""
    x = rng(1).exponential(size=(400, 40))
    got = summarize(x, resampling(40, rng()))
    held = ((got.low <= 1) & (got.high >= 1)).mean()
    assert 0.90 <= held <= 0.97


def test_coverage_with_templates() -> None:
    """Prompts of one template move together: only the clustered interval covers."""
    g = rng(2)
    templates = np.repeat(np.arange(20), 5)
    x = g.normal(size=(300, 20))[:, templates] + 0.1 * g.normal(size=(300, 100))
    clustered = summarize(x, resampling(100, rng(), templates))
    naive = summarize(x, resampling(100, rng()))
    assert 0.88 <= ((clustered.low <= 0) & (clustered.high >= 0)).mean() <= 0.98
    assert ((naive.low <= 0) & (naive.high >= 0)).mean() < 0.75
    # under the null, p under 0.05 comes about 5% of the time, and far more often if templates are ignored
    assert (clustered.p_value < 0.05).mean() < 0.10
    assert (naive.p_value < 0.05).mean() > 0.25


def test_cluster_robust_error_by_hand() -> None:
    # five templates of two equal prompts: exactly the standard error of the five template means
    x = np.repeat([1.0, 2.0, 3.0, 4.0, 5.0], 2)
    got = summarize(x[None], resampling(10, rng(), [0, 0, 7, 7, 2, 2, 3, 3, 9, 9]))
    assert got.stderr[0] == pytest.approx(0.7071067811865476)
    assert got.p_value[0] == pytest.approx(0.013235, abs=2e-6)
    # and the bootstrap draws whole templates: the five prompts' own bootstrap at the same draws
    alone = summarize(x[None, ::2], resampling(5, rng()))
    assert got.n[0] == 10
    assert abs(got.low[0] - alone.low[0]) < 0.25


def test_few_templates_are_taken_as_given() -> None:
    assert resampling(8, rng(), [0, 0, 1, 1, 2, 2, 3, 3]).unit == "prompts"
    assert resampling(8, rng(), [0, 1, 2, 3, 4, 4, 4, 4]).unit == "templates"


def test_a_row_in_few_templates_gets_no_interval() -> None:
    x = np.full((1, 12), np.nan)
    x[0, :8] = np.arange(8)
    got = summarize(x, resampling(12, rng(), np.repeat(np.arange(6), 2)))
    assert got.reason == ("4 templates < 5",)
    assert np.isnan(got.low[0])
    assert got.mean[0] == 3.5


@pytest.mark.parametrize("n", [1, 2, 4])
def test_too_few(n: int) -> None:
    got = interval(list(range(n)), rng())
    assert (got.low, got.high, got.p_value, got.n) == (None, None, None, n)
    assert got.reason == f"n = {n} < 5"
    assert got.mean == (n - 1) / 2


def test_no_spread() -> None:
    zero, one = interval([0.0] * 8, rng()), interval([1.0] * 8, rng())
    assert (zero.mean, zero.low, zero.high, zero.p_value) == (0.0, 0.0, 0.0, 1.0)
    # all eight signs agree: 2 / 2^8
    assert (one.mean, one.low, one.high, one.p_value) == (1.0, 1.0, 1.0, 2 / 256)


def test_missing_prompts_leave_only_their_row() -> None:
    x = rng(3).normal(size=(2, 30))
    holes = x.copy()
    holes[1, :10] = np.nan
    how = resampling(30, rng())
    got, full = summarize(holes, how), summarize(x, how)
    assert got.n.tolist() == [30, 20]
    assert same(full, summarize(x[:1], how), slice(0, 1))
    assert got.mean[1] == pytest.approx(x[1, 10:].mean())
    by_hand = [np.average(x[1, 10:], weights=w[10:]) for w in how.weights]
    assert [got.low[1], got.high[1]] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]).tolist())


def test_infinite_values_are_named() -> None:
    x = rng().normal(size=(2, 9))
    x[0, 3] = np.inf
    got = summarize(x, resampling(9, rng()))
    assert got.reason == ("an infinite value", None)
    assert np.isnan([got.mean[0], got.stderr[0], got.low[0], got.p_value[0]]).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(5, 70), st.floats(-8, 8))
def test_rows_do_not_know_their_neighbours(seed: int, n: int, size: float) -> None:
    """Order and split of rows change no bit, whatever the matrix product underneath does."""
    g = rng(seed)
    x = g.normal(size=(37, n)) * 10**size
    x[g.random(x.shape) < 0.05] = np.nan
    how = resampling(n, rng(seed))
    got = summarize(x, how)
    order = g.permutation(37)
    assert same(got, summarize(x[order], how), order)
    assert same(got, summarize(x[5:6], how), slice(5, 6))
    assert same(got, summarize(np.asfortranarray(x[:20]), how), slice(0, 20))
    shares = ratio(x, x[0] + 1, x[1], how)
    part = ratio(x[order], x[0] + 1, x[1], how)
    assert np.array_equal(shares.low[order], part.low, equal_nan=True)


def test_same_seed_same_numbers() -> None:
    x = rng(5).normal(size=20)
    assert interval(x, rng(4)) == interval(x, rng(4))
    assert interval(x, rng(4)).low != interval(x, rng(5)).low


def test_ratio_by_hand() -> None:
    clean, corrupt = np.full(6, 4.0), np.full(6, 2.0)
    x = np.stack([clean, corrupt, np.full(6, 3.0), clean + 1])
    got = ratio(x, clean, corrupt, resampling(6, rng()))
    assert got.value.tolist() == [1.0, 0.0, 0.5, 1.5]
    assert got.low.tolist() == [1.0, 0.0, 0.5, 1.5]
    assert got.reason == (None,) * 4


def test_ratio_resamples_pairs_together() -> None:
    """A value that is always halfway has no spread, however much clean and corrupt spread."""
    clean, corrupt = rng(1).normal(5, 1, 40), rng(2).normal(0, 1, 40)
    got = ratio((0.5 * (clean + corrupt))[None], clean, corrupt, resampling(40, rng()))
    assert [got.value[0], got.low[0], got.high[0]] == pytest.approx([0.5, 0.5, 0.5])


def test_ratio_where_clean_and_corrupt_coincide() -> None:
    clean = rng().normal(size=20)
    for corrupt in (clean, clean + 1e-9, clean[::-1].copy()):
        got = ratio(clean[None] + 1, clean, corrupt, resampling(20, rng()))
        assert np.isnan([got.value[0], got.low[0], got.high[0]]).all()
        assert got.reason == ("clean and corrupt coincide",)


def test_ratio_over_a_gap_that_may_be_zero() -> None:
    g = rng(6)
    clean, corrupt = g.normal(0.05, 1, 30), g.normal(0, 1, 30)
    got = ratio(clean[None], clean, corrupt, resampling(30, rng()))
    assert got.value[0] == pytest.approx(1)
    assert np.isnan([got.low[0], got.high[0]]).all()
    assert got.reason == ("the interval of clean - corrupt holds 0",)


def test_benjamini_hochberg_by_hand() -> None:
    # sorted .001 .008 .039 .041 .6 → ×5/rank: .005 .02 .065 .05125 .6 → running minimum from the right
    got = benjamini_hochberg([0.039, 0.001, np.nan, 0.041, 0.6, 0.008])
    assert got[[0, 1, 3, 4, 5]] == pytest.approx([0.05125, 0.005, 0.05125, 0.6, 0.02])
    assert np.isnan(got[2])
    assert benjamini_hochberg([]).shape == (0,)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"\[row, 5 prompts\]"):
        summarize(np.zeros((2, 6)), resampling(5, rng()))
    with pytest.raises(ValueError, match="one template for each of 5"):
        resampling(5, rng(), [0, 1])


def test_many_rows_are_fast() -> None:
    x = rng().normal(size=(500, 64))
    start = time.perf_counter()
    summarize(x, resampling(64, rng()))
    assert time.perf_counter() - start < 2
