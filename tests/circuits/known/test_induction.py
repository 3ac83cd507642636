"""The published induction models, where the shared data is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from interp.circuits.known import known_circuit
from interp.circuits.roc import auroc
from interp.circuits.values import per_edge
from interp.interventions.edges import edge_effects
from interp.metrics import get_metric
from interp.registry import UserError


@pytest.mark.parametrize(("name", "least", "apart"), [("induction-2l", 1.0, 10), ("induction-2l-finetuned", 0.9, 5)])
def test_the_mechanism_is_found(shared: Path, name: str, least: float, apart: int) -> None:
    known = known_circuit(name, n=64, folder=shared / "models" / "induction-2l")
    run = known.model.run(known.task.clean)
    assert get_metric("accuracy")(run.logits, known.task).mean() >= least
    effects = edge_effects(known.model, known.task, None, known.effect, recipe=known.recipe).mean
    truth = per_edge(known.truth.graph, known.truth.mask)
    assert auroc(effects.numpy(), truth.numpy()) == 1.0
    assert effects[truth].min() > apart * effects[~truth].max()


def test_a_folder_without_the_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no"):
        known_circuit("induction-2l", folder=tmp_path)
