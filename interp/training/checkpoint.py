"""Checkpoints of a training run: safetensors and JSON, published by one rename, resumed exactly.

A checkpoint is a folder `step-000500/`: model.safetensors (parameters and buffers, shared ones once),
optimizer.safetensors (AdamW's moments and step counts by parameter index), rng.safetensors (generator
states), state.json (step, seconds, loss scale, and the run's identity, checked on resume). Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from interp.registry import UserError

PREFIX = "step-"


@dataclass(frozen=True)
class State:
    """What a checkpoint knows besides tensors: `step` steps are done, `seconds` were spent on them."""

    step: int
    seconds: float
    identity: Mapping[str, Any]
    scaler: Mapping[str, float] | None = None


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters names a shared (tied) tensor once; state_dict would name it twice
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {f"{i}.{key}": torch.as_tensor(value) for i, row in state.items() for key, value in row.items()}


def _generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def save(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State, device: torch.device, keep: int
) -> Path:
    """Write a checkpoint below `folder`, whole or not at all, and drop all but the newest `keep`."""
    final = folder / f"{PREFIX}{state.step:06d}"
    part = folder / f".partial-{final.name}-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_file({k: v.detach().contiguous().cpu() for k, v in _tensors(model).items()}, part / "model.safetensors")
    moments = {k: v.contiguous().cpu() for k, v in _optimiser_tensors(optimiser).items()}
    save_file(moments, part / "optimizer.safetensors")
    save_file(_generator_states(device), part / "rng.safetensors")
    facts = {
        "step": state.step, "seconds": state.seconds, "identity": state.identity, "scaler": state.scaler,
    }  # fmt: skip
    (part / "state.json").write_text(json.dumps(facts, indent=2) + "\n")
    shutil.rmtree(final, ignore_errors=True)
    part.rename(final)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints below a folder, oldest first."""
    return sorted(p for p in folder.glob(f"{PREFIX}*") if (p / "state.json").is_file())


def read_state(path: Path) -> State:
    """The facts of one checkpoint."""
    return State(**json.loads((path / "state.json").read_text()))


def check_identity(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise UserError where a checkpoint belongs to a run of another identity, naming what differs."""
    differs = sorted(k for k in {*found, *expected} if found.get(k) != expected.get(k))
    if differs:
        each = ", ".join(f"{k} {found.get(k)!r} there, {expected.get(k)!r} asked" for k in differs)
        raise UserError(f"checkpoint {path} is of another run: {each}; choose another --out or start afresh")


@torch.no_grad()
def restore(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device) -> State:
    """Put a checkpoint's tensors and generator states back; the model and optimiser continue where it left."""
    saved = load_file(path / "model.safetensors")
    for name, tensor in _tensors(model).items():
        if name not in saved:
            raise UserError(f"checkpoint {path} has no tensor {name!r}; it has {len(saved)} others")
        tensor.copy_(saved[name])
    rows: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load_file(path / "optimizer.safetensors").items():
        index, name = key.split(".", 1)
        rows.setdefault(int(index), {})[name] = tensor
    optimiser.load_state_dict({"state": rows, "param_groups": optimiser.state_dict()["param_groups"]})
    states = load_file(path / "rng.safetensors")
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    return read_state(path)


def clear(folder: Path) -> None:
    """Delete the checkpoints below a folder, and nothing else in it."""
    for path in checkpoints(folder):
        shutil.rmtree(path)
