"""`Known`: a model, a task and the true edges; and the registry of builders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from interp.circuits.values import Circuit
from interp.interventions.sources import Recipe
from interp.metric_values import Metric
from interp.models.model import Model
from interp.registry import Registry, UserError
from interp.tasks.values import Task

MODULES = ("planted", "tracr", "induction", "toy_ioi")


@dataclass(frozen=True, eq=False)
class Known:
    """A circuit that is known, with what is needed to look for it."""

    name: str
    model: Model
    task: Task
    truth: Circuit
    recipe: Recipe
    """What edges outside a circuit are replaced by, fixed before anything was run."""
    effect: Metric
    """What an ablation changes: a loss, 0 for the whole model, that sees every change of the output."""
    smooth: Metric
    """A metric with a gradient at the clean run, for gradient methods."""
    source: str
    """Where the truth comes from."""
    constructed: bool = True
    """True by construction; otherwise a finding in a trained model, where edges outside it may carry a little."""


Builder = Callable[..., Known]
KNOWN: Registry[Builder] = Registry("known circuit", group="interp.known_circuits")
register_known = KNOWN.register


def names() -> list[str]:
    """Names of the known circuits."""
    for module in MODULES:
        import_module(f"{__package__}.{module}")
    return KNOWN.names()


def known_circuit(name: str, n: int = 32, seed: int = 0, **options: Any) -> Known:
    """Build a known circuit with `n` prompts. UserError for an unknown name, or what is missing to build it."""
    if n < 1:
        raise UserError(f"a known circuit needs at least 1 prompt, got n={n}")
    names()
    return KNOWN[name](n=n, seed=seed, **options)
