"""The floor times the products that the plan counts, and no others."""

from __future__ import annotations

import pytest

from experiments.benchmark.floor import floor_of, products, whole_flops
from experiments.benchmark.ours import sweep
from experiments.benchmark.patching_rows import timed
from experiments.benchmark.shapes import make_case
from interp.interventions.cost import reading_flops


@pytest.mark.parametrize("first", [0, 10])
@pytest.mark.parametrize("kind", ["head", "residual"])
def test_products_are_those_of_the_plan(first: int, kind: str) -> None:
    case = make_case("tiny", first)
    plan = sweep(case, kind).plan
    assert plan is not None
    g, rows = case.model.geometry, len(case.task.clean)
    read = sum(len(one.items) for one in plan.passes) + 2
    every = list(products(plan))
    counted = sum(2 * a.numel() * b.shape[-1] for a, b in every)
    assert counted + read * reading_flops(g, rows, 1, 2) == whole_flops(plan)
    assert timed(floor_of(plan))[0] > 0
    assert min(x.numel() for pair in every for x in pair) > 0
