"""The circuit found in the embedded model `toy-ioi` on the IOI task, as a known circuit.

The edges are those of `toy-ioi.json`: ACDC on the discovery half of 200 prompts, loss |m(N) − m(C)| of the logit
difference, τ = 0.3 logits, pruned. What its parts do is shown by the experiment `toy_ioi_circuit`. This truth is a
finding, not a construction: edges outside it carry a little, and methods like the one that found it are favoured.
"""

from __future__ import annotations

from interp.circuits.known.registry import Known, register_known
from interp.circuits.named import read_circuit
from interp.interventions.sources import Recipe
from interp.metrics import get_metric
from interp.models.load import load_model
from interp.models.model import Model
from interp.tasks.load import load_task

FIRST_SEED = 1000
"""Prompts are drawn from seeds of their own: those the circuit was found on came from seed 0."""


@register_known("toy-ioi")
def toy_ioi(n: int = 32, seed: int = 0) -> Known:
    """The embedded model on other prompts than those the circuit was found on."""
    model = load_model("toy-ioi")
    assert isinstance(model, Model)
    task = load_task("ioi", model, n=n, seed=FIRST_SEED + seed)
    return Known(
        "toy-ioi", model, task, read_circuit("toy-ioi", model.geometry), Recipe("corrupt"), get_metric("kl"),
        get_metric("logit_diff"), "found here by ACDC on other prompts; not constructed",
        constructed=False,
    )  # fmt: skip
