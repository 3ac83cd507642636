"""Ablating and patching circuits, complements and single edges, against running circuits the plain way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.circuits.interventions import circuit_interventions
from interp.circuits.named import named_circuits, read_circuit
from interp.circuits.random_circuits import random_circuit
from interp.circuits.values import Circuit
from interp.graph import Graph
from interp.interventions.circuit import circuit_effects
from interp.interventions.edges import edge_effects
from interp.interventions.sources import Recipe
from interp.registry import UserError
from tests.interventions.pairs import random_task
from tests.tiny import tiny


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_ablated_circuits_and_complements(kind: str) -> None:
    model = tiny(kind)
    task = random_task(model)
    circuit = random_circuit(Graph(model.geometry), 25, np.random.default_rng(0))
    recipe = Recipe("zero")
    keeps = circuit_effects(model, task, [(~circuit).edges, circuit.edges], recipe=recipe)
    for i, part in enumerate(("circuit", "complement")):
        got = circuit_interventions(model, task, circuit, part, recipe=recipe)  # type: ignore[arg-type]
        torch.testing.assert_close(got.values[0], keeps.values[i], atol=1e-5, rtol=0)
        assert got.table()["side"].tolist() == [part]
    members = circuit_interventions(model, task, circuit, "members", recipe=recipe)
    alone = edge_effects(model, task, circuit.edges, recipe=recipe)
    torch.testing.assert_close(members.values, alone.values, atol=1e-5, rtol=0)
    assert len(members.table()) == 25


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_patching_every_edge_gives_the_other_run(kind: str) -> None:
    model = tiny(kind)
    task = random_task(model)
    full = Circuit.full(Graph(model.geometry))
    denoised = circuit_interventions(model, task, full, direction="denoise")
    torch.testing.assert_close(denoised.values[0], denoised.clean, atol=1e-5, rtol=0)
    torch.testing.assert_close(denoised.baseline, denoised.corrupt, atol=1e-5, rtol=0)
    noised = circuit_interventions(model, task, full, direction="noise")
    torch.testing.assert_close(noised.values[0], noised.corrupt, atol=1e-5, rtol=0)
    nothing = circuit_interventions(model, task, full, "complement", direction="denoise")
    torch.testing.assert_close(nothing.values[0], nothing.corrupt, atol=1e-5, rtol=0)


def test_denoising_one_edge_is_noising_it_from_the_other_side() -> None:
    from dataclasses import replace

    model = tiny("gpt2")
    task = random_task(model)
    circuit = random_circuit(Graph(model.geometry), 12, np.random.default_rng(1))
    got = circuit_interventions(model, task, circuit, "members", direction="denoise")
    swapped = replace(task, clean=task.corrupt, corrupt=task.clean)
    want = circuit_interventions(model, swapped, circuit, "members", direction="noise")
    torch.testing.assert_close(got.values, want.values, atol=1e-5, rtol=0)


def test_refused() -> None:
    model = tiny("gpt2")
    full = Circuit.full(Graph(model.geometry))
    with pytest.raises(UserError, match="belongs to another model"):
        circuit_interventions(tiny("llama"), random_task(tiny("llama")), full)
    with pytest.raises(UserError, match=r"neither a file .* nor a named circuit"):
        read_circuit("no-such", model.geometry)
    for name, path in named_circuits().items():
        assert path.is_file(), name
