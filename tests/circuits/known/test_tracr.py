"""Compiled programs: the converted model is Tracr's own, and exact patching finds the true edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("tracr", reason="needs tracr-pypi (extra `compiled`)")

from interp.circuits.known import Known, known_circuit
from interp.circuits.known import tracr as compiled
from interp.circuits.known.judge import SILENT, explain, false_effects
from interp.circuits.roc import auroc
from interp.circuits.values import per_edge
from interp.interventions.edges import edge_effects

pytestmark = pytest.mark.slow
FOUND = ["tracr-x-proportion", "tracr-count", "tracr-histogram", "tracr-sort"]
"""Nothing is silent there."""
PARTLY = {"tracr-reverse": 13, "tracr-sort-unique": 10, "tracr-shuffle-dyck": 40}
"""With silent edges; number of true ones."""


def effects_of(known: Known) -> np.ndarray:
    found = edge_effects(known.model, known.task, None, known.effect, recipe=known.recipe)
    return found.mean.numpy()


@pytest.mark.parametrize("name", FOUND)
def test_every_true_edge_is_found(name: str) -> None:
    known = known_circuit(name)
    effects = effects_of(known)
    truth = per_edge(known.truth.graph, known.truth.mask).numpy()
    assert false_effects(known, effects) == []
    assert auroc(effects, truth) >= 0.99
    assert explain(known, effects) == []
    # the claim behind each true edge: without it the program's output differs
    assert effects[truth].min() > SILENT


@pytest.mark.parametrize("name", sorted(PARTLY))
def test_missed_edges_are_redundant_or_constant(name: str) -> None:
    known = known_circuit(name)
    effects = effects_of(known)
    truth = per_edge(known.truth.graph, known.truth.mask).numpy()
    assert int(truth.sum()) == PARTLY[name]
    assert false_effects(known, effects) == []
    silent = explain(known, effects)
    assert len(silent) == int((truth & (np.abs(effects) <= SILENT)).sum()) > 0
    assert {s.why for s in silent} <= {"redundant", "constant"}
    for s in silent:
        assert (s.joint > 1e-4) == (s.why == "redundant") == bool(s.partners)
    assert auroc(effects, truth) > 0.9


@pytest.mark.parametrize(
    ("name", "words", "want"),
    [
        ("tracr-histogram", ["a", "b", "a", "c"], [2, 1, 2, 1]),
        ("tracr-count", ["a", "b", "a"], [2, 2, 2]),
        ("tracr-x-proportion", ["x", "w", "x", "x"], [1, 0.5, 2 / 3, 0.75]),
        ("tracr-reverse", ["a", "b", "d"], ["d", "b", "a"]),
        ("tracr-sort", [3, 1, 3], [1, 3, 3]),
        ("tracr-sort-unique", [4, 1, 3, 2], [1, 2, 3, 4]),
        ("tracr-shuffle-dyck", ["(", "{", ")", "}"], [True] * 4),
        ("tracr-shuffle-dyck", ["(", "}", "(", ")"], [False] * 4),
    ],
)
def test_the_converted_model_runs_the_program(
    name: str, words: list[Any], want: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    convert = compiled.native

    def keep(program: Any, outputs: list[int]) -> Any:
        kept.append((program, outputs))
        return convert(program, outputs)

    monkeypatch.setattr(compiled, "native", keep)
    known = known_circuit(name, n=2)
    program, outputs = kept[0]
    own = program.apply([compiled.BOS, *words])
    tokens = program.input_encoder.encode([compiled.BOS, *words])
    logits = known.model.run([tokens]).logits[0]
    theirs = torch.tensor(np.array(own.transformer_output[0]))[:, outputs].double()
    torch.testing.assert_close(logits, theirs, atol=1e-4, rtol=1e-4)
    got = own.decoded[1:]
    assert got == want or np.allclose(np.array(got, dtype=float), np.array(want, dtype=float), atol=1e-3)
