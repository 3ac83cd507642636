"""Everything that is asked of a found circuit, as rows of the curve schema.

    metric               m(N), m(C), m(complement), m(∅), each with its interval; `baseline` is m(N)
    difference           m(C) − m(N) per prompt: its mean, interval and p; `x` is its standard deviation
    faithfulness         f(C), f(complement), f of each random circuit of the same size and their percentiles;
                         with scores: f over circuit size for signed and absolute rankings, CPR and CMD
    completeness, minimality   the IOI paper's tests (`components` is the set K that was knocked out)
    test: …              hypothesis tests; `value` is the statistic, `algorithm` the null hypothesis

Sources: 2504.13151, 2211.00593, 2410.13032, 2407.08734.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp import stats
from interp.circuits import hypotheses, ioi_tests
from interp.circuits.curve import SHARES, faithfulness_curve
from interp.circuits.random_circuits import random_circuits
from interp.circuits.running import Evaluator
from interp.circuits.select import Selection
from interp.circuits.values import Circuit
from interp.graph import Node

Row = dict[str, Any]
PERCENTILES = (5, 50, 95)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Rows, and the metric per prompt of the runs that have one."""

    rows: tuple[Row, ...]
    examples: dict[str, Float[Tensor, " prompt"]]
    """m per prompt, by name: whole model, circuit, complement, empty circuit."""


@dataclass(frozen=True)
class Settings:
    """What is computed, and how much of it."""

    random: int = 100
    """Random circuits of the same size."""
    draws: int = 20
    """Random sets K of the IOI tests."""
    greedy_steps: int = 10
    references: int = 100
    """Random edges that the minimality test compares with."""
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shares: tuple[float, ...] = SHARES
    selections: tuple[Selection, ...] = ("top",)
    epsilon: float = hypotheses.EPSILON
    quantile: float = hypotheses.QUANTILE
    permutations: int = hypotheses.PERMUTATIONS
    seed: int = 0


def evaluate(
    evaluator: Evaluator, circuit: Circuit, settings: Settings | None = None, step: Callable[[str], None] | None = None
) -> Evaluation:
    """All rows for one circuit. `step` is told the name of each part as it begins.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> from interp.circuits.discover import discover
    >>> circuit = discover(model, task, "eap", size=20).circuit
    >>> few = Settings(random=5, draws=2, greedy_steps=1, references=5, shares=(0.1, 1.0))
    >>> len(evaluate(Evaluator.of(model, task), circuit, few).rows) > 20
    True
    """
    how = settings or Settings()
    say = step or (lambda name: None)
    say("metric")
    rows, examples = _ends(evaluator, circuit)
    say("random circuits")
    others = random_circuits(evaluator.graph, len(circuit), how.random, np.random.default_rng(how.seed))
    rows += _random(evaluator, circuit, others)
    if circuit.scores is not None:
        for selection in how.selections:
            for absolute in (False, True):
                say(f"curve, {selection}, {'absolute' if absolute else 'signed'}")
                curve = faithfulness_curve(
                    evaluator, circuit.scores, shares=how.shares, selection=selection, absolute=absolute
                )
                rows += [{**row, "side": "circuit"} for row in curve.rows()]
    say("completeness")
    rows += _ioi(evaluator, circuit, how)
    say("hypothesis tests")
    rows += _tests(evaluator, circuit, others, examples, how)
    return Evaluation(tuple(rows), examples)


def _ends(evaluator: Evaluator, circuit: Circuit) -> tuple[list[Row], dict[str, Tensor]]:
    inside, outside = evaluator.values([circuit, ~circuit])
    examples = {
        "whole model": evaluator.whole, "circuit": inside, "complement": outside, "empty circuit": evaluator.nothing,
    }  # fmt: skip
    unit, n = evaluator.about()["unit"], evaluator.task.n
    sizes = [len(evaluator.graph.edges), len(circuit), len(~circuit), 0]
    base = float(evaluator.whole.double().mean())
    rows = []
    got = stats.summarize(_rows(*examples.values()), evaluator.resampling)
    for i, (name, size) in enumerate(zip(examples, sizes, strict=True)):
        rows.append({
            "series": "metric", "side": name, "items": size, "value": got.mean[i], "baseline": base,
            "stderr": got.stderr[i], "ci_low": got.low[i], "ci_high": got.high[i], "n": n, "unit": unit,
            "reason": got.reason[i],
        })  # fmt: skip
    gap = (inside - evaluator.whole).double()
    own = stats.summarize(_rows(gap), evaluator.resampling)
    rows.append({
        "series": "difference", "side": "circuit", "x_name": "standard deviation over prompts",
        "x": float(gap.std()) if n > 1 else None, "value": own.mean[0], "baseline": 0.0, "stderr": own.stderr[0],
        "ci_low": own.low[0], "ci_high": own.high[0], "p_value": own.p_value[0], "n": n, "unit": unit,
        "items": len(circuit), "reason": own.reason[0],
    })  # fmt: skip
    f = evaluator.faithfulness(torch.stack([inside, outside]))
    for i, (side, size) in enumerate((("circuit", len(circuit)), ("complement", len(~circuit)))):
        rows.append({
            "series": "faithfulness", "side": side, "items": size, "value": f.value[i], "ci_low": f.low[i],
            "ci_high": f.high[i], "n": n, "unit": "fraction", "reason": f.reason[i],
        })  # fmt: skip
    return rows, examples


def _random(evaluator: Evaluator, circuit: Circuit, others: Sequence[Circuit]) -> list[Row]:
    if not others:
        return []
    f = evaluator.faithfulness(evaluator.values(others))
    common = {"items": len(circuit), "n": evaluator.task.n, "unit": "fraction"}
    rows: list[Row] = [
        {"series": "faithfulness", "side": "random circuit", "x_name": "draw", "x": i, "value": f.value[i],
         "ci_low": f.low[i], "ci_high": f.high[i], "reason": f.reason[i], **common}
        for i in range(len(others))
    ]  # fmt: skip
    if np.isfinite(f.value).all():
        for p in PERCENTILES:
            rows.append({
                "series": "faithfulness", "side": "random circuits", "x_name": "percentile", "x": p,
                "value": float(np.percentile(f.value, p)), **common, "n": len(others),
            })  # fmt: skip
    return rows


def _ioi(evaluator: Evaluator, circuit: Circuit, how: Settings) -> list[Row]:
    rng = np.random.default_rng(how.seed)
    unit, n = evaluator.about()["unit"], evaluator.task.n
    complete = ioi_tests.completeness(
        evaluator, circuit, rng, classes=how.classes, draws=how.draws, greedy_steps=how.greedy_steps
    )
    minimal = ioi_tests.minimality(evaluator, circuit, rng, classes=how.classes, draws=how.draws)
    rows: list[Row] = []
    for series, found in (("completeness", complete), ("minimality", minimal)):
        for i, d in enumerate(found):
            got = stats.summarize(_rows(d.left - d.right), evaluator.resampling)
            rows.append({
                "series": series, "side": "circuit", "algorithm": d.name, "components": _names(d.nodes),
                "src": None if d.node is None else str(d.node), "x_name": "draw", "x": i, "value": d.value,
                "baseline": float(d.right.double().mean()), "stderr": got.stderr[0], "n": n, "unit": unit,
                "items": len(d.nodes), "reason": got.reason[0],
            })  # fmt: skip
    return rows


def _tests(
    evaluator: Evaluator, circuit: Circuit, others: Sequence[Circuit], examples: dict[str, Tensor], how: Settings
) -> list[Row]:
    rng = np.random.default_rng(how.seed)
    inside, outside, whole = (_array(examples[k]) for k in ("circuit", "complement", "whole model"))
    tests = list(hypotheses.equivalence(inside, whole, how.epsilon))
    tests.append(hypotheses.independence(outside, whole, rng, how.permutations))
    if others:
        tests += hypotheses.against_random(evaluator, circuit, others, how.quantile)
    if 0 < len(circuit) < len(evaluator.graph.edges):
        tests += hypotheses.minimality(evaluator, circuit, rng, references=how.references, q=how.quantile)
    rows: list[Row] = []
    for t in tests:
        rows.append({
            "series": f"test: {t.name}", "side": "circuit", "algorithm": f"H0: {t.null}", "value": t.statistic,
            "ci_low": t.low, "ci_high": t.high, "p_value": t.p_value, "p_adjusted": t.p_adjusted, "n": t.n,
            "items": len(circuit), "unit": "HSIC" if t.name == "independence" else "fraction",
            "src": None if t.edge is None else str(t.edge.src), "dst": None if t.edge is None else str(t.edge.dst),
        })  # fmt: skip
    return rows


def _names(nodes: Sequence[Node]) -> str:
    return "+".join(map(str, nodes)) or "none"


def _array(t: Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy()


def _rows(*values: Tensor) -> np.ndarray:
    return np.stack([_array(v) for v in values])
