"""The IOI paper's three tests, against the circuits run one by one, and on a circuit that is complete."""

from __future__ import annotations

import numpy as np
import pytest

from interp.circuits.ioi_tests import completeness, faithfulness, inner_nodes, minimality
from interp.circuits.random_circuits import random_circuit
from interp.circuits.running import Evaluator
from interp.circuits.values import Circuit
from interp.graph import Node
from interp.registry import UserError
from tests.interventions.pairs import random_task
from tests.tiny import tiny


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    model = tiny("gpt2")
    return Evaluator.of(model, random_task(model, (9, 7, 8, 9, 6, 7)))


def mean(evaluator: Evaluator, circuit: Circuit) -> float:
    return float(evaluator.values([circuit])[0].double().mean())


def test_the_whole_model_is_faithful_and_complete(evaluator: Evaluator) -> None:
    full = Circuit.full(evaluator.graph)
    assert faithfulness(evaluator, full).value < 1e-5
    found = completeness(evaluator, full, np.random.default_rng(0), draws=5, greedy_steps=2)
    assert {d.name for d in found} == {"empty", "random", "greedy"}
    assert max(d.value for d in found) < 1e-5


def test_each_difference_is_that_of_the_two_circuits(evaluator: Evaluator) -> None:
    circuit = random_circuit(evaluator.graph, 30, np.random.default_rng(1))
    nodes = inner_nodes(circuit)
    classes = {"pair": [str(nodes[0]), str(nodes[1])]}
    full = Circuit.full(evaluator.graph)
    found = completeness(evaluator, circuit, np.random.default_rng(0), classes=classes, draws=4, greedy_steps=3)
    for d in found:
        want = abs(mean(evaluator, circuit.without(d.nodes)) - mean(evaluator, full.without(d.nodes)))
        assert d.value == pytest.approx(want, abs=1e-5)
    assert found[0].value == pytest.approx(faithfulness(evaluator, circuit).value, abs=1e-6)
    assert set(next(d for d in found if d.name == "class pair").nodes) == set(nodes[:2])
    greedy = [d for d in found if d.name == "greedy"]
    assert [len(d.nodes) for d in greedy] == [1, 2, 3]
    # the first greedy step is the worst single node
    single = [abs(mean(evaluator, circuit.without([n])) - mean(evaluator, full.without([n]))) for n in nodes]
    assert greedy[0].value == pytest.approx(max(single), abs=1e-5)


def test_minimality_finds_idle_nodes(evaluator: Evaluator) -> None:
    circuit = random_circuit(evaluator.graph, 30, np.random.default_rng(2))
    found = minimality(evaluator, circuit, np.random.default_rng(0), draws=4)
    assert [d.node for d in found] == list(inner_nodes(circuit))
    for d in found:
        assert d.node is not None
        with_v, without_v = circuit.without(d.nodes), circuit.without([*d.nodes, d.node])
        assert d.value == pytest.approx(abs(mean(evaluator, without_v) - mean(evaluator, with_v)), abs=1e-5)
        # no K at all was tried too
        assert d.value >= abs(mean(evaluator, circuit.without([d.node])) - mean(evaluator, circuit)) - 1e-6
    idle = Circuit.of(evaluator.graph, ["input->logits", "input->a0.h0<q>"])
    only = minimality(evaluator, idle, np.random.default_rng(0))
    assert [(d.node, d.value) for d in only] == [(Node("head", 0, 0), pytest.approx(0.0, abs=1e-6))]


def test_a_class_must_lie_in_the_circuit(evaluator: Evaluator) -> None:
    circuit = Circuit.of_nodes(evaluator.graph, ["a0.h1"])
    with pytest.raises(UserError, match=r"node of class 'movers' .* 'a1\.h0'"):
        completeness(evaluator, circuit, np.random.default_rng(0), classes={"movers": ["a1.h0"]})
