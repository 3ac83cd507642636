"""A pair of sides gives the same whether it is run in one pass or one after the other, or both the plain way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES, sites_of
from interp.interventions import pair as pairs
from interp.interventions.ablation import ablate
from interp.interventions.pair import Pair
from interp.interventions.patching import patch
from interp.interventions.plan import Options
from interp.models.model import Model
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.interventions.drawn import in_double, model_of
from tests.interventions.test_replay_properties import (
    IN_DOUBLE,
    IN_DOUBLE_WHOLLY,
    PHASES,
    REST,
    STEEPEST,
    WITHIN,
    overhead,
)
from tests.tiny import KINDS, VOCAB


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Aligned pairs: each row has its own length, and its own tokens in which the sides differ."""
    width = draw(st.integers(2, 7))
    lengths = draw(st.lists(st.integers(2, width), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    clean = [torch.randint(1, VOCAB, (n,), generator=generator) for n in lengths]
    moved = [draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in lengths]
    same_first = draw(st.sampled_from([True, True, False]))  # and not at the start: the donor may be run from there on
    first = draw(st.integers(1, min(lengths) - 1))
    corrupt = []
    for row, flags in zip(clean, moved, strict=True):
        differs = torch.tensor([i == first or (f and i > first) for i, f in enumerate(flags)] if same_first else flags)
        corrupt.append(torch.where(differs, row % (VOCAB - 1) + 1, row))
    side = draw(st.sampled_from(["left", "right"]))
    prompts = [Prompts.of([row.tolist() for row in rows], pad_side=side) for rows in (clean, corrupt)]
    long = draw(st.sampled_from([1, 1, 2]))
    answers = torch.randint(1, VOCAB, (2, len(lengths), 1, long), generator=generator)
    right, wrong = (Answers.of(of_side.tolist()) for of_side in answers)
    return Task.of("pairs", *prompts, right, wrong)


def effects(model: Model, task: Task, how: dict[str, Any], options: Options, sites: Sequence[str]) -> Tensor:
    """The metric of each row: patched, or with the other side's value in it as an ablation; then of both sides."""
    how = dict(how)
    if how.pop("ablated"):
        for name in ("window", "direction", "together"):
            how.pop(name)
        found = ablate(model, task, sites, ablation="corrupt", options=options, **how)
    else:
        found = patch(model, task, sites, options=options, **how)
    return torch.cat([found.values, found.clean[None], found.corrupt[None]])


def compare(
    model: Model, kind: str, task: Task, how: dict[str, Any], sites: Sequence[str], apart: bool, seen: Counter[str]
) -> None:
    """Planned against plain, in float64 too; counts how the pair was run."""
    walk, walks = Pair._walk, []

    def counted(pair: Pair, *given: Any) -> Any:
        walks.append(pair)
        return walk(pair, *given)

    cheap = mock.patch.object(pairs, "AGAIN", (0, 0.0) if apart else pairs.AGAIN)
    with cheap, mock.patch.object(Pair, "_walk", counted):
        planned = effects(model, task, how, Options(), sites)
    assert len(walks) <= 2, "each side is run once"
    assert len(set(walks)) <= 1
    for pair in walks[:1]:
        seen["from a later column" if pair.start else "in one"] += 1
        seen["to the metric's columns" if pair.ends_early else "to the end"] += 1
    plain, double = (effects(m, task, how, Options(plain=True), sites) for m in (model, in_double(kind)))
    again = effects(in_double(kind), task, how, Options(), sites)
    assert torch.equal(planned.isnan(), plain.isnan())
    size = max(float(plain.nan_to_num().abs().max()), 1.0)
    rounding = float((plain - double).nan_to_num().abs().max())
    off = float((planned - plain).nan_to_num().abs().max())
    assert off <= max(WITHIN * size, STEEPEST * rounding), (off, rounding)
    within = IN_DOUBLE if kind.startswith(IN_DOUBLE_WHOLLY) else WITHIN
    assert float((again - double).nan_to_num().abs().max()) <= within * size
    seen["moved"] += int(((plain[:-2] - plain[0]).nan_to_num().abs() > 1e-4).any())
    seen["padded"] += int(task.clean.padded)


@st.composite
def hows(draw: st.DrawFn, model: Model) -> tuple[list[str], dict[str, Any]]:
    """Sites, and how they are swept; mostly sites whose rows may differ in length."""
    names = [s.name for s in sites_of(model.geometry) if not s.name.startswith("logits")]
    simple = [n for n in ("z", "resid_pre", "resid_post", "attn_out", "mlp_out", "v", "q", "embed") if n in names]
    some = st.sampled_from(draw(st.sampled_from([simple, simple, names])))
    chosen = draw(st.lists(some, min_size=1, max_size=2, unique=True))
    sites = [SITES[name] for name in chosen]
    heads = all({"head", "kv_head"} & set(site.axes) for site in sites)
    windows = [1, 1, 2] if all(site.in_block for site in sites) else [1]
    return chosen, {
        "by": draw(st.sampled_from(["layer", "position", *(("head", "head+position") if heads else ())])),
        "metric": draw(st.sampled_from(["logit_diff", "logit_diff", "logit_diff", "kl", "cross_entropy"])),
        "direction": draw(st.sampled_from(["denoise", "noise"])),
        "window": draw(st.sampled_from(windows)), "together": draw(st.booleans()),
        "ablated": draw(st.sampled_from([False, False, True])),
    }  # fmt: skip


def check(draws: int, kinds: Sequence[str], seeded: bool) -> Counter[str]:
    """So many draws of each kind; what was seen."""
    seen: Counter[str] = Counter()
    for number, kind in enumerate(kinds):
        _of_kind(kind, draws, number if seeded else None, seen)
    return seen


def _of_kind(kind: str, draws: int, number: int | None, seen: Counter[str]) -> None:
    model = model_of(kind)

    @given(tasks(), hows(model), st.sampled_from([0.0, 48.0]), st.sampled_from([True, True, False]))
    def equal(task: Task, how: tuple[list[str], dict[str, Any]], merge: float, apart: bool) -> None:
        with overhead(merge):
            compare(model, kind, task, how[1], how[0], apart, seen)

    profile = settings(
        max_examples=draws, deadline=None, database=None, phases=PHASES, suppress_health_check=list(HealthCheck)
    )
    profile(equal if number is None else seed(number)(equal))()


def _rare(seen: Counter[str], least: int, g: Geometry | None = None) -> list[str]:
    """Classes of which fewer were drawn; of one kind of model, those that it has. What edits of a parallel block are
    given is computed after its z."""
    classes = ["in one", "to the end", "moved", "padded"]
    classes += ["from a later column"] if g is None or g.causal else []
    classes += ["to the metric's columns"] if g is None or not g.parallel else []
    return [what for what in classes if seen[what] < least]


@pytest.mark.slow
def test_pairs_are_the_same_in_one_and_apart() -> None:
    seen = check(4, KINDS, seeded=True) + check(1, REST, seeded=True)
    assert not _rare(seen, 10), dict(seen)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, *REST])
def test_pairs_are_the_same_in_many_draws(kind: str) -> None:
    seen = check(60, (kind,), seeded=False)
    assert not _rare(seen, 3, model_of(kind).geometry), dict(seen)
