"""Experiments and cells: one experiment with one Config gives one folder with a table and its origin.

`run_cell` is the one way from a config to a table, for the shell, clusters and notebooks:

1. the config is checked, files named in it are digested, and the hash of {experiment, version, config,
   digests} names the cell's folder (device, threads, pack and out are not in the hash);
2. a finished cell with this hash is returned untouched, once the model's weights and the task's prompts are
   the recorded ones (else an error that names both hashes);
3. otherwise the experiment runs; long ones stream keyed rows through `context.rows` and resume;
4. the table is published by one rename, with run.json beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pydantic

from interp.context import Config, Context, Loaders, ModelTaskConfig, check_same, identity_of
from interp.registry import Registry, UserError, nearest, unknown
from interp.results.frames import Table
from interp.results.origin import Origin
from interp.results.rowlog import canonical
from interp.results.store import Cell, cell_path, finished, publish
from interp.results.writing import check_writable

__all__ = [
    "Cell", "Config", "Context", "EXPERIMENTS", "Experiment", "Loaders", "ModelTaskConfig", "Table", "cell_hash",
    "run_cell",
]  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A named, versioned `run(config, context) -> Table`. A new version means: same config, other numbers.

    `presets` maps a name to settings; `smoke` is the one that the tests run, in seconds. `version=None`
    marks a function that makes no promise: its cells are never reused.

    >>> def run(config: Config, context: Context) -> Table:
    ...     '''Nothing much.'''
    >>> Experiment("mine", 1, ModelTaskConfig, run, {"smoke": {"n": 8}}).make_config({"seed": 3}, "smoke").n
    8
    """

    name: str
    version: int | None
    config: type[Config]
    run: Callable[[Any, Context], Table]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def make_config(self, values: Mapping[str, Any], preset: str | None = None) -> Config:
        """The config with these settings over the preset's; wrong ones raise one-line UserErrors."""
        if preset is not None and preset not in self.presets:
            raise unknown(f"preset of {self.name}", preset, sorted(self.presets))
        merged = {**(self.presets[preset] if preset else {}), **values}
        try:
            return self.config.model_validate(merged)
        except pydantic.ValidationError as e:
            raise config_error(self.name, self.config, e) from None


MOST_AT_ONCE = 2**20
"""Threads, or edits in a forward pass."""
EXPERIMENTS: Registry[Experiment] = Registry("experiment", "interp.experiments", of=Experiment)


def config_error(name: str, config: type[pydantic.BaseModel], e: pydantic.ValidationError) -> UserError:
    """The first thing wrong with a config, as one line with the nearest names."""
    first = e.errors()[0]
    place = ".".join(str(p) for p in first["loc"])
    fields = sorted(config.model_fields)
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        return unknown(f"setting of {name}", place, fields)
    given = "" if first["type"] == "missing" else f", got {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("tuple_type", "list_type"):
        message = f"a list is expected, such as [{first['input']}]"
    more = f" ({e.error_count() - 1} more wrong)" if e.error_count() > 1 else ""
    near = nearest(place, fields) if place not in fields and "." not in place else []
    hint = f"; did you mean {near[0]}?" if near else ""
    return UserError(f"setting {place or '(all)'} of {name}: {message}{given}{hint}{more}")


def named_files(config: Config) -> dict[str, str]:
    """sha256 of every file that a setting names (a text with a dot or a slash that is a file), by its name."""
    found: dict[str, str] = {}

    def look(value: Any) -> None:
        if isinstance(value, Mapping):
            for v in value.values():
                look(v)
        elif isinstance(value, (list, tuple, set, frozenset)):
            for v in value:
                look(v)
        elif isinstance(value, Path) or (isinstance(value, str) and 0 < len(value) < 1024 and set("./\\") & set(value)):
            path = Path(value)
            if os.path.isfile(path):  # unlike Path.is_file, a long sentence is no file to it
                with path.open("rb") as file:
                    found[str(value)] = hashlib.file_digest(file, "sha256").hexdigest()

    look(config.model_dump(mode="python"))
    return dict(sorted(found.items()))


def cell_hash(experiment: Experiment, config: Config, files: Mapping[str, str] | None = None) -> str:
    """sha256 of canonical JSON {experiment, version, full config with defaults, digests of named files}."""
    value = {
        "experiment": experiment.name, "version": experiment.version,
        "config": config.model_dump(mode="json"), "files": named_files(config) if files is None else files,
    }  # fmt: skip
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def run_cell(
    experiment: Experiment | str,
    config: Config | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    threads: int | None = None,
    pack: int | None = None,
    plain: bool | None = None,
    show: bool = False,
    command: str | None = None,
    loaders: Loaders | None = None,
) -> Cell:
    """Run one experiment with one config, or return the finished cell it already has.

    `dtype` and `plain`, where given, become settings of the config, because they change numbers. Raises
    UserError for bad input, before anything is written; whatever the experiment raises passes through, and
    rows it streamed stay for the next run. `out` defaults to $INTERP_RESULTS, else ./results.

    >>> import tempfile
    >>> cell = run_cell("ablation", {"model": "toy-ioi", "task": "ioi", "n": 8}, out=tempfile.mkdtemp())
    >>> len(cell.table())
    12
    """
    exp = EXPERIMENTS[experiment] if isinstance(experiment, str) else experiment
    cfg = _with_flags(exp, config, {"dtype": dtype, "plain": plain})
    for name, count in (("threads", threads), ("pack", pack)):
        if count is not None and not 1 <= count <= MOST_AT_ONCE:
            raise UserError(f"--{name} must be {'at least 1' if count < 1 else f'at most {MOST_AT_ONCE}'}, got {count}")
    folder = out_folder(out)
    files = named_files(cfg)
    digest = cell_hash(exp, cfg, files)
    model_name, task_name = (getattr(cfg, name, None) for name in ("model", "task"))
    path = cell_path(folder, exp.name, model_name, task_name, digest)
    context = Context(
        cfg, resolve_device(device), getattr(cfg, "dtype", "float32"), threads, pack, getattr(cfg, "plain", False),
        path, show, loaders or Loaders(),
    )  # fmt: skip
    origin = Origin(context.device, context.dtype, threads, pack, context.plain, command)
    with _threads(threads):
        if finished(path) and exp.version is not None:
            return _reuse(Cell(path, reused=True), context)
        check_writable(folder)
        if exp.version is None:
            context.unregistered(f"experiment {exp.name} has no version")
        try:
            table = exp.run(cfg, context)
        finally:
            context.close()
    run = origin.record(
        experiment=exp.name, version=exp.version, config=cfg.model_dump(mode="json"), hash=digest,
        files=files, seed=getattr(cfg, "seed", None), model=model_name, task=task_name,
        weights=context.weights, tasks=context.tasks,
        parts=context.parts, prompts=context.prompts,
        reproducible=not context.unnamed, unregistered=context.unnamed,
    )  # fmt: skip
    return publish(context.place, _stated(table, exp, cfg), run)


def _stated(table: Table, exp: Experiment, config: Config) -> Table:
    """The table with what the config says of every row, in columns the experiment left empty."""
    known = {
        "experiment": exp.name,
        **{k: getattr(config, k, None) for k in ("model", "task", "split", "metric", "seed")},
    }
    empty = {
        k: v for k, v in known.items()
        if v is not None and k in table.frame and table.frame[k].isna().all() and not isinstance(v, (list, tuple))
    }  # fmt: skip
    filled = {k: pd.Series([v] * len(table.frame), dtype=table.frame[k].dtype) for k, v in empty.items()}
    return replace(table, frame=table.frame.assign(**filled))


def _with_flags(exp: Experiment, config: Config | Mapping[str, Any], flags: Mapping[str, Any]) -> Config:
    if not isinstance(config, Config | Mapping):
        raise UserError(f"settings of {exp.name} are a mapping, such as {{'n': 16}}, or its config; got {config!r}")
    values = config.model_dump(mode="python") if isinstance(config, Config) else dict(config)
    for name, value in flags.items():
        if value is not None:
            if name not in exp.config.model_fields:
                raise UserError(f"{exp.name} has no setting {name}, so --{name} does not apply to it")
            values[name] = value
    return exp.make_config(values)


def out_folder(out: str | Path | None) -> Path:
    """Where results go: `out`, else $INTERP_RESULTS, else ./results. Nothing is created."""
    folder = Path(out or os.environ.get("INTERP_RESULTS") or "results")
    blocked = next((p for p in (folder, *folder.parents) if os.path.exists(p) and not os.path.isdir(p)), None)
    if blocked:
        raise UserError(f"results cannot go to {folder}: {blocked} is a file, a folder was expected")
    return folder


def resolve_device(device: str) -> str:
    """The device's name; `auto` is the first GPU where there is one. One that is absent raises UserError."""
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda", "mps", "auto") or (index and not index.isdigit()):
        raise unknown("device", device, ["auto", "cpu", "cuda", "cuda:<number>", "mps"])
    if kind == "cpu":
        return "cpu"
    import torch

    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count() if kind == "cuda" else int(torch.backends.mps.is_available())
    if int(index or 0) >= count:
        raise UserError(f"device {device!r} is not here: this machine has {count} {kind} device(s)")
    return device


def _reuse(cell: Cell, context: Context) -> Cell:
    now = {what: identity_of(context, what) for what in ("weights", "tasks")}
    check_same(cell.run(), now, str(cell.path))
    return cell


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    if threads is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
