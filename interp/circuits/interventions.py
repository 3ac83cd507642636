"""Ablating and patching circuits: the circuit, its complement, or each of its edges.

    ablate   base: the clean run; the edges of the part are ablated                      effect = value − clean run
    noise    base: the clean run; the edges of the part carry the corrupt run's values   (ablation = corrupt)
    denoise  base: the corrupt run; the edges of the part carry the clean run's values

All other edges are live. `part`: `circuit` (its edges together), `complement` (all edges outside it together),
`members` (each of its edges alone, one row each).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from interp.circuits.values import Circuit, edge_mask
from interp.interventions.circuit import CircuitRunner, require_graph
from interp.interventions.effects import Effects, Progress
from interp.interventions.plan import DEFAULT, Options, make_plan
from interp.interventions.sources import Recipe
from interp.interventions.sweep import Sides, effects_of
from interp.metric_values import Metric
from interp.models.model import Model
from interp.registry import unknown
from interp.tasks.values import Side, Task

Part = Literal["circuit", "complement", "members"]
Direction = Literal["ablate", "noise", "denoise"]
PARTS = ("circuit", "complement", "members")


def circuit_interventions(
    model: Model,
    task: Task,
    circuit: Circuit,
    part: Part = "circuit",
    metric: str | Metric = "logit_diff",
    *,
    direction: Direction = "ablate",
    recipe: Recipe | None = None,
    options: Options = DEFAULT,
    progress: Progress | None = None,
) -> Effects:
    """The effect of changing what the edges of a part carry. UserError for a circuit of another model."""
    if part not in PARTS:
        raise unknown("part", part, list(PARTS))
    if direction not in ("ablate", "noise", "denoise"):
        raise unknown("direction", direction, ["ablate", "noise", "denoise"])
    require_graph(circuit.graph, model)
    side: Side = "corrupt" if direction == "denoise" else "clean"
    how = recipe or Recipe("mean")
    if direction != "ablate":
        how = Recipe("corrupt" if direction == "noise" else "clean", seed=how.seed)
    runner = CircuitRunner.prepare(Sides(model, task, metric), circuit.graph, how, side, options)
    changed, keys = _changed(circuit, part)
    values = runner.values(edge_mask(circuit.graph)[None] & ~changed, progress)
    about = {
        "method": "ablate" if direction == "ablate" else "patch", "algorithm": "circuit", "direction": direction,
        "ablation": runner.name if direction == "ablate" else None, "granularity": "edge",
        "components": "ungrouped" if circuit.graph.ungrouped else "grouped",
    }  # fmt: skip
    plan = make_plan(model, [], runner.reader, options, runner.base)
    return effects_of(runner.sides, side, keys, values, plan, about, how.seed)


def _changed(circuit: Circuit, part: Part) -> tuple[Tensor, Sequence[dict[str, Any]]]:
    """Edges that are changed, `[row, source, slot]`, and each row's key."""
    if part == "circuit":
        return circuit.mask[None], [{"side": "circuit"}]
    if part == "complement":
        return (~circuit).mask[None], [{"side": "complement"}]
    masks = torch.zeros(len(circuit), *circuit.mask.shape, dtype=torch.bool)
    keys = []
    for i, e in enumerate(circuit.edges):
        masks[i, circuit.graph.source_index[e.src], circuit.graph.slot_index[e.dst]] = True
        keys.append({"side": "member", "src": str(e.src), "dst": str(e.dst)})
    return masks, keys
