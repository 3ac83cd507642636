"""The sweep file: YAML, checked by pydantic, with the line number of whatever is wrong in it.

    name: heads                         # the file's name if not given
    out: results/heads                  # where cells go; --out and $INTERP_RESULTS otherwise
    publish: results/heads              # where the collected table and the report go, once every cell is done
    defaults: {n: 32}                   # for every cell whose experiment has the setting
    cells:
      - experiment: [activation_patching, ablation]
        preset: null                    # of the experiment
        set: {sites: z}                 # the same for all cells of this block
        grid: {task: [ioi, induction], seed: [0, 1, 2]}      # every combination
        zip: {sites: [z, mlp_out], by: [head, layer]}        # side by side, equal lengths
        list: [{direction: noise}]                           # one by one
        resources: {minutes: 20}        # over those of the file
    exclude:
      - {when: {task: induction, seed: [1, 2]}, reason: one draw is enough}
    presets:
      quick: {only: {seed: [0]}, override: {n: 8}}           # --preset quick
    resources: {cpus: 1, minutes: 60}
    group: {by: [model]}

A block's cells are experiments × grid × zip × list. Later settings win: defaults, the experiment's preset,
set, grid, zip, list, and a file preset's override.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from interp.registry import UserError, nearest, unknown
from interp.sweep.positions import Located, read_yaml

Settings = dict[str, Any]
Names = str | list[str]


class Part(pydantic.BaseModel):
    """Base of the file's parts: frozen, unknown keys are refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Resources(Part):
    """What one worker is given, and what is asked of the cluster."""

    gpus: int = Field(default=0, ge=0, description="GPUs of a worker")
    cpus: int | None = Field(
        default=None, ge=1, description="processor threads of a worker; locally the cores are divided"
    )
    memory_gb: float | None = Field(default=None, gt=0, description="memory of a worker (Slurm)")
    minutes: int = Field(default=60, ge=1, description="time limit of a job (Slurm); it is requeued and goes on")
    partition: str | None = Field(default=None, description="Slurm partition")
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    array_parallelism: int = Field(default=64, ge=1, description="jobs of one array that run at once (Slurm)")
    setup: list[str] = Field(
        default=[], description="shell lines before the worker (Slurm): module load, source, export"
    )
    slurm: dict[str, str | int | float | bool] = Field(
        default={}, description="further sbatch options, as sbatch names them"
    )
    requeues: int = Field(default=20, ge=0, description="how often a job may run into its time limit")
    device: str | None = Field(default=None, description="cuda where there are GPUs, else cpu")
    device_map: Any = Field(default=None, description="spread a model over several GPUs: auto, balanced, …")
    dtype: Literal["float32", "float64", "bfloat16", "float16"] | None = Field(
        default=None, description="number format, for experiments that have it; part of the cell's identity"
    )
    pack: int | None = Field(default=None, ge=1, description="edits per forward; halved where memory runs out")
    gpu_hour: float | None = Field(default=None, ge=0, description="price of a GPU for an hour, for the estimate")
    cpu_hour: float | None = Field(default=None, ge=0, description="price of a processor for an hour, for the estimate")

    @property
    def where(self) -> str:
        """The device that cells are run on."""
        return self.device or ("cuda" if self.gpus else "cpu")


class Group(Part):
    """Which cells share a job, and how many at most."""

    by: list[str] = Field(
        default=["model", "model_options", "dtype"], description="settings that are equal within a job"
    )
    most: int = Field(default=1000, ge=1, description="cells of a job at most")
    fill: float = Field(default=0.5, gt=0, le=1, description="share of the time limit that a job's estimate may fill")


class Exclusion(Part):
    """Cells left out: those whose settings are all as in `when` (a list: any of them)."""

    when: Settings = Field(min_length=1)
    reason: str = ""


class Block(Part):
    """Experiments and the settings they are run with."""

    experiment: Names
    preset: str | None = None
    fixed: Settings = Field(default={}, alias="set")
    grid: dict[str, list[Any]] = {}
    side_by_side: dict[str, list[Any]] = Field(default={}, alias="zip")
    one_by_one: list[Settings] = Field(default=[], alias="list")
    exclude: list[Exclusion] = []
    resources: Settings = {}

    @property
    def experiments(self) -> list[str]:
        return [self.experiment] if isinstance(self.experiment, str) else self.experiment

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Block:
        if not self.experiments:
            raise ValueError("no experiment is named")
        for kind, axes in (("grid", self.grid), ("zip", self.side_by_side)):
            empty = [k for k, v in axes.items() if not v]
            if empty:
                raise ValueError(f"{kind}.{empty[0]} is an empty list")
        lengths = {k: len(v) for k, v in self.side_by_side.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"lists of zip must be equally long, got {lengths}")
        twice = [k for k in self.grid if k in self.side_by_side or any(k in one for one in self.one_by_one)]
        twice += [k for k in self.side_by_side if any(k in one for one in self.one_by_one)]
        if twice:
            raise ValueError(f"{twice[0]!r} is given by two of grid, zip and list")
        return self


class Preset(Part):
    """A variant of the sweep, chosen by `--preset`."""

    about: str = ""
    only: Settings = Field(default={}, description="keep cells with these settings (a list: any of them)")
    override: Settings = Field(default={}, description="settings over all others, where an experiment has them")
    resources: Settings = {}


class SweepFile(Part):
    """The file as a whole."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: str = ""
    out: str | None = None
    publish: str | None = Field(default=None, description="folder for table.parquet and report.md, once all is done")
    defaults: Settings = {}
    cells: list[Block] = Field(
        min_length=1, description="a list of blocks, each with `experiment:` and what it is run on"
    )
    exclude: list[Exclusion] = []
    presets: dict[str, Preset] = {}
    resources: Resources = Resources()
    group: Group = Group()
    retries: int = Field(default=2, ge=0, description="how often a cell whose worker died is tried again in one run")
    track: Literal["wandb", "mlflow"] | None = Field(
        default=None, description="also report finished cells to a tracker"
    )


def read_file(path: str | Path) -> tuple[SweepFile, Located]:
    """Read and check a sweep file; the first thing wrong raises UserError with its line."""
    found = read_yaml(Path(path))
    if not isinstance(found.value, dict):
        raise found.error((), f"expected a mapping with cells, got {type(found.value).__name__}")
    try:
        return SweepFile.model_validate(found.value), found
    except pydantic.ValidationError as e:
        raise _first(e, found) from None


def resources_of(base: Resources, over: Mapping[str, Any], found: Located, place: tuple[str | int, ...]) -> Resources:
    """`base` with the settings of a block or preset over it."""
    try:
        return Resources.model_validate({**base.model_dump(), **over})
    except pydantic.ValidationError as e:
        raise _first(e, found, place, Resources) from None


def chosen_preset(sweep: SweepFile, name: str | None) -> Preset:
    """The preset of this name; none is asked for: one that changes nothing."""
    if name is None:
        return Preset()
    if name not in sweep.presets:
        raise unknown("preset of the sweep", name, sorted(sweep.presets))
    return sweep.presets[name]


def _first(
    e: pydantic.ValidationError, found: Located, under: tuple[str | int, ...] = (),
    model: type[pydantic.BaseModel] = SweepFile,
) -> UserError:  # fmt: skip
    first = e.errors()[0]
    place = (*under, *first["loc"])
    name = ".".join(str(p) for p in place)
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, first["loc"][:-1])
        near = nearest(str(place[-1]), known)
        hint = f"; did you mean {near[0]}?" if near else "."
        return found.error(place, f"unknown key {name!r}{hint} There are: {', '.join(known)}")
    message = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r}"
    if first["type"] == "missing":
        message = "is missing"
    part = _PART.search(message) if first["type"] == "value_error" else None
    if part:
        place = (*place, *(p for p in part.groups() if p))
    field = model.model_fields.get(str(first["loc"][0])) if len(first["loc"]) == 1 else None
    if field is not None and field.description:
        message += f": {field.description}"
    more = f" ({e.error_count() - 1} more wrong)" if e.error_count() > 1 else ""
    return found.error(place, f"{name or 'the file'}: {message}{given}{more}")


_PART = re.compile(r"\b(grid|zip)\b(?:\.(\w+))?")
"""What a message of a whole block speaks of, where it stands on a line of its own."""
_PARTS: Mapping[str, type[pydantic.BaseModel]] = {
    "cells": Block, "exclude": Exclusion, "presets": Preset, "resources": Resources, "group": Group,
}  # fmt: skip


def _fields_at(model: type[pydantic.BaseModel], place: tuple[str | int, ...]) -> list[str]:
    for step in place:
        if step in _PARTS and step in model.model_fields:
            model = _PARTS[str(step)]
    return sorted(field.alias or name for name, field in model.model_fields.items())
