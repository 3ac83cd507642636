"""The circuit of toy-ioi on the IOI task: how faithful it is, and an intervention for everything said about it.

The circuit is the named one (`interp/circuits/known/toy-ioi.json`), found on the discovery half of 200 prompts; all
numbers here are of the evaluation half. Rows, by `role`: the circuit, its complement and 100 random circuits of its
size; `minimality` for every node; then one row per claim of what a part does (`roles.py`), with the bounds between
which its number (95% interval included) must lie, and whether it does. The artifact `toy_ioi_circuit.md` is the
write-up, its numbers those of the table.

    interp run toy_ioi_circuit

Sources: 2211.00593 (minimality), 2410.13032 (random circuits).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from experiments.toy_ioi_circuit.roles import Claim, Scene
    from interp.circuits.values import Circuit
    from interp.results.schemas import Schema


class ToyIoiCircuit(ModelTaskConfig):
    """Settings of `toy_ioi_circuit`."""

    model: Literal["toy-ioi"] = Field("toy-ioi", description="the model whose circuit it is")
    task: Literal["ioi"] = Field("ioi", description="the task it was found on")
    metric: Literal["logit_diff"] = Field("logit_diff", description="what is measured")
    n: int = Field(200, ge=2, description="prompts; half of them are used")
    random: int = Field(100, ge=2, description="random circuits of the same size")
    draws: int = Field(20, ge=0, description="random sets of the minimality test")


def schema() -> Schema:
    """Effects, with what was predicted."""
    from interp.results.schemas import EFFECT, Column

    return EFFECT.plus(
        "roles",
        Column("role", "name", "what the part is said to be", key=True),
        Column("intervention", "name", "what is done", key=True),
        Column("expected_low", "number", "least value that fits the claim (null: none)"),
        Column("expected_high", "number", "largest value that fits the claim (null: none)"),
        Column("fits", "flag", "whether the number and its interval lie between them"),
    )


def run(config: ToyIoiCircuit, context: Context) -> Table:
    """Run the circuit, then every claim."""
    from experiments.circuit_discovery import part_of
    from experiments.toy_ioi_circuit.roles import Scene, claims
    from experiments.toy_ioi_circuit.write_up import page
    from interp.circuits.files import found_on
    from interp.circuits.named import circuit_file, read_circuit
    from interp.circuits.splits import require_disjoint

    task = part_of(context.task, "evaluation", 0.5, config.seed)
    require_disjoint(found_on(circuit_file("toy-ioi")), task)
    scene = Scene(context.model, task)
    circuit = read_circuit("toy-ioi", context.model.geometry)
    frame = _frame(_circuit_claims(scene, circuit, config), claims(scene), scene, config)
    return Table(frame, schema(), artifacts={"toy_ioi_circuit.md": page(frame, circuit, task.n)})


def _circuit_claims(scene: Scene, circuit: Circuit, config: ToyIoiCircuit) -> list[Claim]:
    """The circuit against its complement and random ones, and each node's minimality."""
    import numpy as np

    from experiments.toy_ioi_circuit.roles import NO_LIMIT, Claim
    from interp.circuits.ioi_tests import minimality
    from interp.circuits.random_circuits import random_circuits

    ev = scene.evaluator
    rng = np.random.default_rng(config.seed)
    others = random_circuits(ev.graph, len(circuit), config.random, rng)
    values = ev.values([circuit, ~circuit, *others])
    best = values[2:].mean(1).argsort()[int(0.95 * (config.random - 1))]
    size = f"{len(circuit)} of {len(ev.graph.edges)} edges"
    out = [
        Claim("circuit", size, "all other edges corrupt", values[0], ev.whole, 0.9, 1.1),
        Claim("complement", size, "the circuit's edges corrupt", values[1], ev.whole, -NO_LIMIT, 0.2),
        Claim("random circuits", f"{config.random} of the same size", "95th percentile of their faithfulness",
              values[2 + int(best)], ev.whole, -NO_LIMIT, 0.5),
    ]  # fmt: skip
    for d in minimality(ev, circuit, rng, draws=config.draws):
        out.append(
            Claim("minimality", str(d.node), _after(d.nodes), d.left, d.right, -NO_LIMIT, NO_LIMIT)
        )  # fmt: skip
    return out


def _after(nodes: tuple[Any, ...]) -> str:
    gone = ", ".join(map(str, nodes))
    return f"taken out of the circuit after {gone}" if gone else "taken out of the circuit"


def _frame(whole: list[Claim], parts: list[Claim], scene: Scene, config: ToyIoiCircuit) -> pd.DataFrame:
    """One row per claim, those about logits with the share of the gap that is left."""
    import pandas as pd

    from interp.results.frames import adjusted, effect_rows

    ev = scene.evaluator
    clean, corrupt = ev.whole.double().numpy(), ev.nothing.double().numpy()
    frames = []
    for c in (*whole, *parts):
        logits = c.metric == "logit_diff"
        ends: dict[str, Any] = {"clean": clean, "corrupt": corrupt} if logits else {}
        frame = effect_rows(
            [{"role": c.role, "components": c.parts, "intervention": c.what}], _row(c.values), _row(c.baseline)[0],
            ev.resampling, schema=schema(), experiment="toy_ioi_circuit", model="toy-ioi", task="ioi",
            metric=c.metric, unit="logits" if logits else "probability", ablation="corrupt", seed=config.seed,
            split="evaluation part", corruption=str(scene.task.meta.get("corruption")), **ends,
        )  # fmt: skip
        frames.append(_judged(frame, c))
    return adjusted(pd.concat(frames, ignore_index=True))[schema().names]


def _judged(frame: pd.DataFrame, claim: Claim) -> pd.DataFrame:
    """Bounds, and whether the interval of the share of the gap (or of the attention) lies between them."""
    from math import isfinite

    if not (isfinite(claim.low) or isfinite(claim.high)):
        return frame
    prefix = "normalized_" if claim.metric == "logit_diff" else "ci_"
    low, high = (float(frame[prefix + end].iloc[0]) for end in ("low", "high"))
    return frame.assign(
        expected_low=claim.low if isfinite(claim.low) else None,
        expected_high=claim.high if isfinite(claim.high) else None,
        fits=claim.low <= low and high <= claim.high,
    )


def _row(values: Any) -> np.ndarray:
    import numpy as np

    return np.asarray(values.double().cpu().numpy())[None]


EXPERIMENT = Experiment(
    "toy_ioi_circuit", 1, ToyIoiCircuit, run, {"smoke": {"seed": 7, "n": 40, "random": 10, "draws": 2}}
)
