"""The floor times the products that the plan counts, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.benchmark.floor import floor_of, products, whole_flops
from experiments.benchmark.ours import sweep
from experiments.benchmark.patching_rows import timed
from experiments.benchmark.shapes import make_case
from interp.interventions.cost import reading_flops


class Multiplied(TorchDispatchMode):
    """Counts the operations of products with weights, torch's own and oneDNN's; attention's are of many matrices at
    once, or one kernel."""

    flops = 0

    def __torch_dispatch__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, overload = fn.__name__.split(".")
        if name in ("mm", "addmm", "addmm_"):
            x, weight = args[:2] if name == "mm" else args[1:3]
            self.flops += 2 * x.numel() * weight.shape[-1]
        elif name == "_linear_pointwise":
            self.flops += 2 * args[0].numel() * args[2 if overload == "binary" else 1].shape[0]
        return fn(*args, **(kwargs or {}))


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
    with Multiplied() as done:
        sweep(case, kind)
    assert done.flops == sum(2 * a.numel() * b.shape[-1] for a, b in every if a.ndim == 2), "what is really multiplied"
    assert timed(floor_of(plan))[0] > 0
    assert min(x.numel() for pair in every for x in pair) > 0
