"""Replay equals the plain way, whatever is drawn: bitwise where rows and positions are the plain run's.

Elsewhere within the promise in float32, and in float64, where rounding cannot hide a wrong shortcut, to 12 places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from interp.interventions import plan
from interp.interventions.plan import Options, make_plan
from tests.interventions.drawn import Case, cases
from tests.tiny import HF_KINDS, KINDS, tiny

WITHIN, IN_DOUBLE = 1e-5, 1e-12
"""Share of the metric's scale that replay may differ by."""
IN_DOUBLE_WHOLLY = ("gpt2", "bloom", "falcon", "native")
"""Beginnings of the kinds that never go through float32; the others' norms or softmax do, whatever their dtype."""
STEEPEST = 4
"""Two passes, each rounded on its own, times the steepest metric: no drawn one moves by more than twice its logits."""

PHASES = (Phase.generate, Phase.shrink)
QUICK, FEW, LONG = 7, 3, 200
"""Draws for each kind; few for the families beyond the first."""
REST = tuple(kind for kind in HF_KINDS if kind not in KINDS)


def compare(case: Case, prefix: bool, pack: int | None, wide: bool, seen: Counter[str]) -> None:
    """Planned against plain, in float64 too if `wide`; counts which promise applied and what was tried."""
    planned_way = make_plan(case.model, case.interventions, case.reader, Options(prefix=prefix, pack=pack))
    held = {**planned_way.base.run.acts, "final": planned_way.base.final}
    before = {address: value.clone() for address, value in held.items()}
    planned, plain = planned_way.run(), case.plain()
    for address, value in held.items():  # passes write to memory of their own only
        assert torch.equal(value, before[address]), address
    assert planned.shape == plain.shape
    assert bool(plain.isfinite().all())
    bitwise = not prefix and pack == 1
    if bitwise:
        assert torch.equal(planned, plain), f"differs by {float((planned - plain).abs().max())}"
    else:
        close(case, planned, plain)
    if wide:
        double = case.in_double()
        again = make_plan(double.model, double.interventions, double.reader, Options(prefix=prefix, pack=pack))
        within = IN_DOUBLE if case.kind.startswith(IN_DOUBLE_WHOLLY) else WITHIN
        assert bool(((again.run() - double.plain()).abs() <= within * size_of(case, plain)).all())
    replayed = sum(len(p.items) for p in planned_way.passes)
    seen.update(
        {"bitwise" if bitwise else "close": replayed, "idle": len(planned_way.idle), "plain": len(planned_way.plain)}
    )
    seen["double"] += replayed * wide
    seen["late"] += sum(i.first > 0 for p in planned_way.passes for i in p.items)
    seen["ragged"] += sum(len(p.firsts) > 1 for p in planned_way.passes)
    seen["packed"] += sum(len(p.items) > 1 for p in planned_way.passes)
    seen["moved"] += int(((plain - plain.mean(0)).abs() > 1e-4).any())


def size_of(case: Case, plain: Tensor) -> float:
    """What differences are measured against.

    Numbers far from the base run's (an edit may drive them there) round at their own size; where clean and corrupt
    agree there is no scale, and what is left is the rounding of logits of size 1.
    """
    return max(case.scale, float(plain.abs().max()) / 8, 0.1)


def close(case: Case, planned: Tensor, plain: Tensor) -> None:
    """Within the promise in float32, or within what float32 makes of these very logits.

    A model without norms makes its own rounding as large as an edit makes its activations; how large, the plain
    pass in float64 tells.
    """
    apart = (planned - plain).abs().amax(1)
    if bool((apart <= WITHIN * size_of(case, plain)).all()):
        return
    both = zip(case.logits(), case.in_double().logits(), strict=True)
    rounding = torch.stack([(single - double).abs().max() for single, double in both])
    assert bool((apart <= STEEPEST * rounding).all()), f"{planned} is not {plain}, rounding {rounding}"


@contextmanager
def overhead(tokens: float) -> Iterator[None]:
    """First columns made one where that saves this many tokens; 0 keeps every one to itself."""
    before = plan.PASS_OVERHEAD, plan.SEGMENT_OVERHEAD
    plan.PASS_OVERHEAD, plan.SEGMENT_OVERHEAD = tokens, tokens * 1e5
    try:
        yield
    finally:
        plan.PASS_OVERHEAD, plan.SEGMENT_OVERHEAD = before


def check(draws: int, seeded: bool, kinds: tuple[str, ...] = KINDS) -> Counter[str]:
    """So many draws of each kind; what was seen."""
    seen: Counter[str] = Counter()
    for number, kind in enumerate(kinds):
        mostly, seldom = st.sampled_from([True, True, False]), st.sampled_from([False, False, True])
        packs, merges = st.sampled_from([None, None, 1, 2, 3]), st.sampled_from([0.0, 48.0])

        @given(cases((kind,)), mostly, packs, seldom, merges, seldom)
        def equal(case: Case, prefix: bool, pack: int | None, alone: bool, merge: float, wide: bool) -> None:
            with overhead(merge):
                compare(case, False if alone else prefix, 1 if alone else pack, wide, seen)

        profile = settings(
            max_examples=draws, deadline=None, database=None, phases=PHASES, suppress_health_check=list(HealthCheck)
        )
        profile(seed(number)(equal) if seeded else equal)()
    return seen


def _rare(seen: Counter[str], least: int, causal: bool = True) -> list[str]:
    """Classes of which fewer were drawn."""
    late = ("late", "ragged") if causal else ()  # every column of a bidirectional model changes with any other
    every = ("bitwise", "close", "double", "idle", "plain", *late, "packed", "moved")
    return [what for what in every if seen[what] < least]


def _both_classes(seen: Counter[str], least: int, causal: bool = True) -> None:
    rare = _rare(seen, least, causal)
    assert not rare, f"fewer than {least} draws were {', '.join(rare)}: {dict(seen)}"


@pytest.mark.slow
def test_replay_equals_plain_whatever_is_drawn() -> None:
    _both_classes(check(QUICK, seeded=True), 10)


@pytest.mark.slow
def test_replay_equals_plain_on_every_family() -> None:
    _both_classes(check(FEW, seeded=True, kinds=REST), 1)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, *REST])
def test_replay_equals_plain_in_thousands_of_draws(kind: str) -> None:
    causal = tiny(kind).geometry.causal
    seen = check(LONG, seeded=False, kinds=(kind,))
    if _rare(seen, 5, causal):  # a class that is rare in this kind takes more draws
        seen += check(LONG, seeded=False, kinds=(kind,))
    _both_classes(seen, 5, causal)
