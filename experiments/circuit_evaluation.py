"""Circuit evaluation: how much of a behaviour a circuit explains, and how sure that is.

The circuit comes from a file (`circuit=`, MIB JSON or GraphML), or is found here by `method` on the discovery
part of the prompts; it is evaluated on the evaluation part. Prompts it was found on are refused.

Rows, by `series`: metric and faithfulness of circuit, complement and 100 random circuits of its size; the
faithfulness curve with band, CPR and CMD for signed and absolute scores; the IOI paper's completeness and
minimality; hypothesis tests, the reversed equivalence test among them.

    interp run circuit_evaluation --model toy-ioi --task ioi
    interp run circuit_evaluation --set circuit=results/circuit_discovery/toy-ioi.ioi-…/artifacts/circuit.json
    interp run circuit_evaluation --n 200 --set circuit=toy-ioi
    interp run circuit_evaluation --set 'classes={"movers": ["a1.h0", "a1.h1"]}'

Sources: 2504.13151, 2211.00593, 2410.13032, 2407.08734.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from experiments.circuit_discovery import part_of
from interp.cells import Context, Experiment, ModelTaskConfig, Table
from interp.cli import main_for
from interp.context import MethodName, MetricOrAuto

if TYPE_CHECKING:
    import pandas as pd

    from interp.circuits.evaluate import Evaluation
    from interp.circuits.running import Evaluator
    from interp.circuits.values import Circuit


class CircuitEvaluation(ModelTaskConfig):
    """Settings of `circuit_evaluation`."""

    circuit: str | None = Field(None, description="circuit file (.json, .graphml) or named circuit; else found here")
    method: MethodName = Field("eap_ig_inputs", description="without a file: discovery method")
    size: int | None = Field(None, ge=1, description="without a file: edges to keep")
    share: float | None = Field(None, gt=0, le=1, description="without a file: edges to keep, as a share; 0.2")
    tau: float | None = Field(None, gt=0, description="without a file, acdc: threshold")
    selection: Literal["top", "greedy"] = Field("top", description="how scores become a circuit")
    absolute: bool = Field(False, description="without a file: rank by the size of scores")
    discovery_metric: MetricOrAuto = Field(
        "auto", description="without a file: kl for acdc and masks, logit_diff for scores"
    )
    ablation: Literal["corrupt", "mean", "zero", "resample"] = Field("corrupt", description="value outside the circuit")
    ungrouped: bool = Field(False, description="without a file: a k and a v for every query head")
    part: Literal["discovery", "evaluation", "all"] = Field("evaluation", description="prompts to evaluate on")
    part_share: float = Field(0.5, gt=0, lt=1, description="share of the prompts that are for discovery")
    random: int = Field(100, ge=0, description="random circuits of the same size")
    draws: int = Field(20, ge=0, description="random sets of the completeness and minimality tests")
    classes: dict[str, tuple[str, ...]] = Field({}, description="classes of nodes, by name")
    shares: tuple[float, ...] | None = Field(None, description="shares of the curve; MIB's by default")


def run(config: CircuitEvaluation, context: Context) -> Table:
    """Find or read the circuit, then evaluate it."""
    from interp.circuits.curve import SHARES
    from interp.circuits.evaluate import Settings, evaluate
    from interp.circuits.files import found_on, to_json
    from interp.circuits.named import circuit_file, read_circuit
    from interp.circuits.running import Evaluator
    from interp.circuits.splits import require_disjoint
    from interp.interventions.options import options_of
    from interp.interventions.sources import Recipe

    model = context.model
    task = part_of(context.task, config.part, config.part_share, config.seed)
    recipe = Recipe(config.ablation, seed=config.seed)
    if config.circuit is not None:
        circuit, how = read_circuit(config.circuit, model.geometry), "file"
        require_disjoint(found_on(circuit_file(config.circuit)), task)
    else:
        circuit, how = _found(config, context), config.method
    evaluator = Evaluator.of(
        model, task, config.metric, recipe=recipe, ungrouped=circuit.graph.ungrouped, options=options_of(context)
    )
    settings = Settings(
        random=config.random, draws=config.draws, classes=dict(config.classes),
        shares=config.shares or SHARES, selections=("top", "greedy"), seed=config.seed,
    )  # fmt: skip
    steps = iter(context.progress(range(PARTS), "evaluating", PARTS))
    found = evaluate(evaluator, circuit, settings, step=lambda name: next(steps, None))  # type: ignore[arg-type,return-value]
    return _table(found, evaluator, circuit, how, to_json(circuit))


PARTS = 8
"""Parts of an evaluation, for the progress bar: metric, random circuits, four curves, IOI tests, hypotheses."""


def _found(config: CircuitEvaluation, context: Context) -> Circuit:
    from interp.circuits.discover import discover
    from interp.circuits.splits import require_disjoint
    from interp.interventions.options import bar, options_of
    from interp.interventions.sources import Recipe

    task = part_of(context.task, "discovery", config.part_share, config.seed)
    require_disjoint(task, part_of(context.task, config.part, config.part_share, config.seed))
    share = config.share if config.size is not None or config.tau is not None else config.share or 0.2
    return discover(
        context.model, task, config.method, metric=config.discovery_metric, size=config.size, share=share,
        tau=config.tau, selection=config.selection, absolute=config.absolute, ungrouped=config.ungrouped,
        recipe=Recipe(config.ablation, seed=config.seed), options=options_of(context),
        progress=bar(context, config.method),
    ).circuit  # fmt: skip


def _table(found: Evaluation, evaluator: Evaluator, circuit: Circuit, how: str, data: dict[str, Any]) -> Table:
    import pandas as pd

    from interp.results.frames import typed
    from interp.results.schemas import CURVE

    about = {**evaluator.about(), "method": how}
    part = evaluator.task.meta.get("part")
    if part is not None:
        about["split"] = f"{about.get('split')}, {part} part"
    frame = pd.DataFrame.from_records([{**about, **row} for row in found.rows])
    notes = {"edges_kept": len(circuit), "edges": len(circuit.graph.edges), "nodes": [str(n) for n in circuit.nodes]}
    return Table(
        typed(frame, CURVE), CURVE, examples=_examples(found, about), artifacts={"circuit.json": data}, notes=notes
    )


def _examples(found: Evaluation, about: dict[str, Any]) -> pd.DataFrame:
    import numpy as np

    from interp.results.frames import example_rows
    from interp.results.schemas import CURVE

    keys = [{"series": "metric", "side": name} for name in found.examples]
    values = np.stack([v.double().cpu().numpy() for v in found.examples.values()])
    constants = {k: v for k, v in about.items() if k in CURVE.key}
    return example_rows(keys, values, CURVE, **constants)


EXPERIMENT = Experiment("circuit_evaluation", 1, CircuitEvaluation, run, {"smoke": {"n": 24, "random": 10, "draws": 3}})

if __name__ == "__main__":
    raise SystemExit(main_for("circuit_evaluation"))
