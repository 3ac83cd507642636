"""`interp run`: flags to a config, the config to a cell, the cell to a table on the screen."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from interp.cells import EXPERIMENTS, Config, Experiment, named_files, run_cell
from interp.cli.reading import print_cell
from interp.names import check_names
from interp.registry import UserError, unknown

# the loader in C stops at brackets a thousand deep; the other reads all of them, in quadratic time
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Flags:
    """The command line of one run. `named` are --model, --task, --n and --seed, where given."""

    named: Mapping[str, Any]
    settings: tuple[str, ...] = ()
    preset: str | None = None
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    pack: int | None = None
    plain: bool | None = None
    out: Path | None = None
    run_json: Path | None = None

    def values(self) -> dict[str, Any]:
        """Settings by --set (dots reach into mappings), then those with flags of their own."""
        merged: dict[str, Any] = {}
        for text in self.settings:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise UserError(f"--set {text!r}: expected KEY=VALUE, for example --set sites=z")
            _put(merged, key.strip().split("."), _yaml(text, value))
        return {**merged, **self.named}

    def on(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Settings for run_cell that no hash holds; those of `recorded` where no flag was given."""
        chosen = {
            name: getattr(self, name) if getattr(self, name) is not None else recorded.get(name)
            for name in ("device", "threads", "pack")
        }
        chosen["device"] = chosen["device"] or "cpu"
        return {**chosen, "dtype": self.dtype, "plain": self.plain, "out": self.out, "command": command()}


def command() -> str:
    """This command line as one would type it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec else "interp"
    program = ["interp"] if module == "interp" else ["python", "-m", module]
    return shlex.join([*program, *sys.argv[1:]])


def run_one(experiment: str | Experiment | None, flags: Flags) -> int:
    """Run one cell and show it."""
    recorded = _recorded(flags.run_json) if flags.run_json else {}
    if experiment is None:
        experiment = recorded.get("experiment")
    if experiment is None:
        raise UserError(f"which experiment? There are: {', '.join(EXPERIMENTS.names()) or 'none'}")
    exp = EXPERIMENTS[experiment] if isinstance(experiment, str) else experiment
    if recorded:
        _check_recorded(exp, recorded, flags.run_json)
    values = _merged(recorded.get("config", {}), flags.values())
    config = exp.make_config(values, flags.preset)
    if recorded and not (flags.values() or flags.preset or flags.dtype or flags.plain):
        _check_files(config, recorded)
    check_names(config)
    cell = run_cell(exp, config, show=sys.stderr.isatty(), **flags.on(recorded))
    print_cell(cell)
    return 0


def _recorded(path: Path) -> dict[str, Any]:
    file = path / "run.json" if path.is_dir() else path
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"--from {path}: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise UserError(f"--from {path}: no JSON: {e}") from None
    kinds = {"experiment": str, "version": int | None, "config": dict}
    if not isinstance(read, dict) or not all(k in read and isinstance(read[k], kind) for k, kind in kinds.items()):
        raise UserError(f"--from {path}: expected a cell's run.json with experiment, version and config")
    if not isinstance(read.get("files", {}), dict):
        raise UserError(f"--from {path}: files must be digests by name, got {read['files']!r}")
    return read


def _check_recorded(exp: Experiment, recorded: Mapping[str, Any], path: Path | None) -> None:
    if recorded["experiment"] != exp.name:
        raise UserError(f"--from {path} is of experiment {recorded['experiment']!r}, not of {exp.name!r}")
    if recorded["version"] != exp.version:
        raise UserError(
            f"--from {path} was made by version {recorded['version']} of {exp.name}; this is version {exp.version},"
            " whose numbers differ"
        )


def _check_files(config: Config, recorded: Mapping[str, Any]) -> None:
    now = named_files(config)
    for name, digest in recorded.get("files", {}).items():
        if now.get(name) != digest:
            state = "has other content now" if name in now else "is not there"
            raise UserError(f"file {name!r}, which the recorded run read, {state} (recorded sha256 {digest[:16]})")


def _yaml(text: str, value: str) -> Any:
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(value, _Loader)):
            raise UserError(f"--set {text!r}: the value must not refer to itself (*); write it out")
        return yaml.load(value, _Loader) if value.strip() else ""  # a safe loader, in C or not
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, AttributeError, LookupError, RecursionError) as e:
        # yaml's own, and those of the makers of values: a date that is none, a number of no digits, endless brackets
        why = getattr(e, "problem", None) or "it cannot be read"
        raise UserError(f"--set {text!r}: the value is no YAML: {why}") from None


def _put(into: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        into = into.setdefault(key, {})
        if not isinstance(into, dict):
            raise unknown("setting", ".".join(keys), [key])
    into[keys[-1]] = value


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mappings merged key by key."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        out[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return out
