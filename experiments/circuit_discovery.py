"""Circuit discovery: which edges of the model's graph a behaviour needs.

Methods: `acdc` (at `tau`, or for a size), `masks` (learned gates), and every attribution method that scores
edges (`eap`, `eap_ig_inputs`, `exact`, …) with `top` or `greedy` selection. One row per edge: score (positive
helps), rank, whether it is kept; for ACDC also the step at which it was decided and the loss after it. Kept
edges rank highest; ACDC's scores are the thresholds at which edges go. The circuit lies in the cell as
`artifacts/circuit.json` (MIB layout) and `circuit.graphml`.

    interp run circuit_discovery --model toy-ioi --task ioi
    interp run circuit_discovery --set method=eap_ig_inputs --set share=0.2
    interp run circuit_discovery --set method=acdc --set size=30

Prompts are the `discovery` part of the task (half of them, seeded), so that the rest stays for
`circuit_evaluation`. Sources: 2304.14997, 2310.10348, 2406.16778, 2504.13151.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for
from interp.context import MethodName, MetricOrAuto

if TYPE_CHECKING:
    from interp.circuits.discover import Discovery
    from interp.results.schemas import Schema
    from interp.tasks.values import Task


class CircuitDiscovery(ModelTaskConfig):
    """Settings of `circuit_discovery`."""

    metric: MetricOrAuto = Field("auto", description="auto: kl for acdc and masks, logit_diff for scores")
    method: MethodName = Field("acdc", description="acdc, masks, or an attribution method that scores edges")
    tau: float | None = Field(None, gt=0, description="acdc: threshold; 0.01 where no size is given")
    size: int | None = Field(None, ge=1, description="edges to keep")
    share: float | None = Field(None, gt=0, le=1, description="edges to keep, as a share of the graph's; 0.1")
    selection: Literal["top", "greedy"] = Field("top", description="how scores become a circuit")
    absolute: bool = Field(False, description="rank by the size of scores")
    loss: Literal["metric", "gap", "absolute"] | None = Field(None, description="loss made of the metric")
    order: Literal["late", "early", "random"] = Field("late", description="acdc: which parents are tried first")
    ablation: Literal["corrupt", "mean", "zero", "resample"] = Field("corrupt", description="value outside the circuit")
    ungrouped: bool = Field(False, description="a k and a v for every query head")
    steps: int = Field(5, ge=1, description="steps of the integral of eap_ig_*")
    mask_steps: int = Field(200, ge=1, description="training steps of masks")
    positions: Literal["all", "label"] = Field(
        "all", description="label: edges from span to span of labelled tokens, scored by eap"
    )
    part: Literal["discovery", "evaluation", "all"] = Field("discovery", description="which prompts are used")
    part_share: float = Field(0.5, gt=0, lt=1, description="share of the prompts that are for discovery")


def part_of(task: Task, part: str, share: float, seed: int) -> Task:
    """The discovery or the evaluation part of a task, or all of it."""
    if part == "all":
        return task
    one, two = task.split(share, seed)
    return one if part == "discovery" else two


def schema() -> Schema:
    """Attribution, with what became of each edge."""
    from interp.results.schemas import ATTRIBUTION, Column

    return ATTRIBUTION.plus(
        "discovery",
        Column("kept", "flag", "whether the edge is in the circuit"),
        Column("rank", "index", "place in the ranking, 0 is best"),
        Column("step", "index", "ACDC: when the edge was decided, from 0"),
        Column("tried", "flag", "ACDC: whether a run was needed (false: nothing read the node)"),
        Column("loss", "number", "ACDC: loss of the circuit after the decision"),
    )


def run(config: CircuitDiscovery, context: Context) -> Table:
    """One discovery; ACDC's decisions stream to the row log and resume."""
    from interp.circuits.discover import discover
    from interp.interventions.options import bar, options_of
    from interp.interventions.sources import Recipe

    model = context.model
    task = part_of(context.task, config.part, config.part_share, config.seed)
    if config.positions == "label":
        return _by_label(config, model, task)
    resumable = config.method == "acdc" and config.size is None and config.share is None
    found = discover(
        model, task, config.method, metric=config.metric, recipe=Recipe(config.ablation, seed=config.seed),
        ungrouped=config.ungrouped, size=config.size, share=config.share, tau=config.tau, loss=config.loss,
        order=config.order, selection=config.selection, absolute=config.absolute, steps=config.steps,
        mask_steps=config.mask_steps, options=options_of(context), progress=bar(context, config.method),
        log=context.rows if resumable else None,
    )  # fmt: skip
    return _table(config, found, task)


def _table(config: CircuitDiscovery, found: Discovery, task: Task) -> Table:
    import numpy as np
    import pandas as pd

    from interp import stats
    from interp.circuits.files import graphml, to_json
    from interp.circuits.splits import prompt_digests
    from interp.results.frames import score_rows, typed

    kind, graph = schema(), found.circuit.graph
    rank = {e: i for i, e in enumerate(found.ranking)}
    steps = {s.edge: (i, s) for i, s in enumerate(found.steps)}
    rows: list[dict[str, Any]] = []
    for e in graph.edges:
        row: dict[str, Any] = {
            "src": str(e.src), "dst": str(e.dst), "score": found.circuit.score(e), "kept": e in found.circuit,
            "rank": rank[e],
        }  # fmt: skip
        if e in steps:
            at, step = steps[e]
            row |= {"step": at, "tried": step.tried, "loss": step.loss}
        rows.append(row)
    frame = pd.DataFrame.from_records(rows).assign(**_about(config, found, task))
    if found.per_prompt is None:
        frame["reason"] = f"{config.method} gives one number for all prompts"
    else:
        clusters = None if task.cluster is None else task.cluster.cpu().numpy()
        how = stats.resampling(task.n, np.random.default_rng(config.seed), clusters)
        keys = [{"src": str(e.src), "dst": str(e.dst)} for e in graph.edges]
        by_edge = score_rows(keys, found.per_prompt.double().cpu().numpy(), how).set_index(["src", "dst"])
        spread = ["stderr", "ci_low", "ci_high", "p_value", "p_adjusted", "reason"]
        frame = frame.join(by_edge[spread], on=["src", "dst"])
    data = {**to_json(found.circuit), "discovered_on": prompt_digests(task)}
    artifacts = {"circuit.json": data, "circuit.graphml": graphml(found.circuit)}
    pruned = found.circuit.pruned()
    notes = {
        "edges_kept": len(found.circuit), "edges_kept_connected": len(pruned), "edges": len(graph.edges),
        "forward_equivalents": None if np.isnan(found.cost) else found.cost,
        "training": [dict(h) for h in found.history],
    }  # fmt: skip
    return Table(typed(frame, kind), kind, artifacts=artifacts, notes=notes)


def _by_label(config: CircuitDiscovery, model: Any, task: Task) -> Table:
    """Position-aware edges: one row per edge and pair of spans."""
    from interp.circuits.by_label import LabelRunner, label_mask
    from interp.registry import UserError
    from interp.results.frames import typed

    if config.method != "eap" or config.ablation == "resample":
        raise UserError("positions=label scores edges by method=eap, with ablation corrupt, mean or zero")
    runner = LabelRunner.prepare(
        model, task, "logit_diff" if config.metric == "auto" else config.metric, ablation=config.ablation,
        ungrouped=config.ungrouped,
    )  # fmt: skip
    exists = label_mask(runner.graph, len(runner.names))
    n = config.size if config.size is not None else max(1, int((config.share or 0.1) * int(exists.sum())))
    found = runner.circuit(n, absolute=config.absolute)
    assert found.scores is not None
    size = found.scores.abs() if config.absolute else found.scores
    order = size.masked_fill(~exists, -float("inf")).flatten().argsort(descending=True, stable=True)
    rank = order.argsort()
    about = {
        "model": config.model, "task": config.task, "metric": runner.sides.metric.name, "method": "eap",
        "direction": "ablate", "ablation": runner.ablation, "granularity": "edge by span", "positions": "label",
        "components": "ungrouped" if config.ungrouped else "grouped", "n": task.n, "seed": config.seed,
        "unit": runner.sides.metric.unit_for(task), "algorithm": "gradient of open gates",
        "reason": "one backward pass over all prompts: no spread",
    }  # fmt: skip
    rows = [
        {"src": str(runner.graph.sources[u]), "dst": str(runner.graph.slots[v]), "src_label": runner.names[s],
         "dst_label": runner.names[t], "score": float(found.scores[u, v, s, t]),
         "kept": bool(found.mask[u, v, s, t]), "rank": int(rank.view_as(exists)[u, v, s, t]), **about}
        for u, v, s, t in exists.nonzero().tolist()
    ]  # fmt: skip
    kind = schema()
    return Table(typed(rows, kind), kind, notes={"edges_kept": len(found), "edges": int(exists.sum())})


def _about(config: CircuitDiscovery, found: Discovery, task: Task) -> dict[str, Any]:
    meta = task.meta
    stated: dict[str, Any] = {
        "model": config.model, "task": config.task, "split": meta.get("split"), "corruption": meta.get("corruption"),
        "metric": found.metric.name, "method": config.method, "direction": "ablate", "granularity": "edge",
        "components": "ungrouped" if config.ungrouped else "grouped", "positions": "all", "side": "circuit",
        "n": task.n, "unit": found.metric.unit_for(task), "seed": config.seed,
        "ablation": config.ablation, **found.about,
    }  # fmt: skip
    if "part" in meta:
        stated["split"] = f"{meta.get('split')}, {meta['part']} part"
    return {k: v if isinstance(v, int) else str(v) for k, v in stated.items() if v is not None}


EXPERIMENT = Experiment(
    "circuit_discovery",
    1,
    CircuitDiscovery,
    run,
    {"smoke": {"n": 16}, "eap": {"method": "eap_ig_inputs", "share": 0.2}},
)

if __name__ == "__main__":
    raise SystemExit(main_for("circuit_discovery"))
