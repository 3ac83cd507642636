"""Every experiment's smoke preset on every kind of checkpoint: a table, or one clear line why there is none.

In CI one experiment of each room; the rest of those that take any checkpoint in the long tier.
"""

from __future__ import annotations

import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from interp.cells import EXPERIMENTS, Config, Experiment, Loaders, run_cell
from interp.registry import UserError
from tests.tiny import HF_KINDS, tiny
from tests.unchecked import unchecked

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
NAMES = sorted(PROJECT["entry-points"]["interp.experiments"])
TASK: dict[str, Any] = {"task": "induction", "task_options": {"period": 5}}
# experiment -> settings that fit a tiny model without a tokenizer, over its smoke preset
ROOMS: dict[str, dict[str, Any]] = {
    "activation_patching": TASK,
    "attribution_patching": TASK,
    "circuit_discovery": TASK,
    "qk_ov_circuits": {"task": None},
    "gradient_flow": {**TASK, "n": 4},
}
REST: dict[str, dict[str, Any]] = {
    "ablation": TASK,
    "attribution_agreement": TASK,
    "circuit_evaluation": TASK,
    "direct_logit_attribution": {**TASK, "granularity": "heads"},
    "head_behaviour": TASK,
    "head_census": {"task": None, "periods": (3, 5, 6)},
    "logit_lens": TASK,
    "path_patching": TASK,
    "self_repair": TASK,
    "path_expansion": {},
    "site_audit": {},
}
OWN_MODELS = {
    "benchmark": "times models of stated shapes against other tools",
    "ground_truth": "compiled, planted and trained models whose circuits are known",
    "module_debugging": "trains a plain PyTorch module to debug",
    "numerics": "trains a recipe and watches it",
    "reproduce_gpt2_small": "what is published for GPT-2 small",
    "sweep_faults": "breaks sweeps of a probe without a model",
    "toy_ioi_circuit": "the circuit of one model",
    "training_dynamics": "reads the kept checkpoints of a training run",
}
"""Experiments that by nature take no checkpoint of any family, and why; `tests/experiments/test_smoke.py` runs them."""
REFUSED = {
    "opt_post": "norms the residual|norms the stream|post-LayerNorm|no sum",
    "qwen3": "norms its queries and keys",
    "gemma3": "norms its queries and keys",
    "olmo2": "norms its queries and keys|norms the keys of a layer's kv heads",
    "stablelm_parallel": "norms its queries and keys|norms the keys of a layer's kv heads",
    "cohere_qk": "norms its queries and keys|norms the keys of a layer's kv heads",
    "qwen3_moe": "norms its queries and keys|routed MLPs|experts",
    "mixtral": "routed MLPs|experts",
    "qwen2_moe": "routed MLPs|experts",
}
"""What a kind may be refused for, and nothing else."""
REFUSED_BY = {"path_expansion": "attention-only"}
"""What an experiment may refuse every one of these kinds for."""


def refusal(experiment: Experiment, config: Config, out: Path, loaders: Loaders) -> str:
    """Why an experiment does not run; empty where it does."""
    try:
        run_cell(experiment, config, out=out, loaders=loaders)
    except UserError as error:
        return str(error)
    return ""


def smoke(name: str, kind: str, over: dict[str, Any], out: Path) -> None:
    experiment = EXPERIMENTS[name]
    loaders = Loaders(load_model=lambda _, **how: tiny(kind))
    fields = experiment.config.model_fields
    settings = {key: value for key, value in {"model": kind, **over}.items() if key in fields}
    config = experiment.make_config(settings, "smoke")
    may = "|".join(reason for reason in (REFUSED.get(kind), REFUSED_BY.get(name)) if reason)
    if may and (why := refusal(experiment, config, out, loaders)):
        assert re.search(may, why), f"{kind} refused by {name}: {why}"
        assert "\n" not in why
        return
    cell = run_cell(experiment, config, out=out, loaders=loaders)
    frame = cell.table()
    assert len(frame) > 0
    assert frame[cell.schema().main].notna().any()


def test_every_experiment_is_tried_on_every_family_or_says_why_not() -> None:
    assert sorted([*ROOMS, *REST, *OWN_MODELS]) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("kind", HF_KINDS)
def test_one_experiment_of_each_room(kind: str, tmp_path: Path) -> None:
    with unchecked():
        for name, over in ROOMS.items():
            smoke(name, kind, over, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", REST)
@pytest.mark.parametrize("kind", HF_KINDS)
def test_every_experiment(kind: str, name: str, tmp_path: Path) -> None:
    # an audit is a thousand runs; shapes and types are checked by the others
    with unchecked() if name == "site_audit" else nullcontext():
        smoke(name, kind, REST[name], tmp_path)
