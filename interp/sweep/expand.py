"""From a sweep file to its cells: every combination checked, hashed and given its place, before anything runs.

Steps: combine (experiments × grid × zip × list), leave out the exclusions, check each config as `interp run`
would, hash it as `run_cell` will. A setting that is wrong raises UserError with the line it stands on. Files
named by settings are read once per sweep, whatever the number of cells that name them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interp.cells import EXPERIMENTS, Config, Experiment, cell_hash, named_files
from interp.names import check_setting, marked_settings
from interp.registry import NameOf, UserError, unknown
from interp.results.store import cell_path
from interp.sweep.positions import Located
from interp.sweep.spec import Block, Exclusion, Preset, Resources, SweepFile, resources_of

MOST_COMBINATIONS = 200_000
"""Of one block, before exclusions: a plan of them takes half a minute; more is a slip of the pen."""

Given = dict[str, tuple[Any, tuple[str | int, ...]]]
"""Settings, each with its place in the file."""


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One cell of a sweep: what is run, and where it will lie."""

    key: str
    """Beginning of its hash: its name within the sweep."""
    experiment: str
    config: Mapping[str, Any]
    """Settings that differ from the defaults or were given."""
    place: str
    """`<experiment>/<cell>` under the results folder."""
    digest: str
    resources: int = 0
    """Index into the plan's list of resources."""


@dataclass(frozen=True)
class Expansion:
    """All cells of a sweep, in the file's order."""

    cells: list[SweepCell]
    resources: list[Resources]
    excluded: list[tuple[Exclusion, int]]
    """Every exclusion of the file, and how many cells it left out."""
    repeated: int = 0
    """Combinations that gave a cell which was there already."""
    shared: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """What the cells of one job have in common, by key."""


def expand(sweep: SweepFile, found: Located, preset: Preset) -> Expansion:
    """Every cell of the file under this preset. Raises UserError with the line of what is wrong."""
    _known_somewhere(sweep, found)
    files, names = Files(), Names(found)
    cells: dict[str, SweepCell] = {}
    kinds: list[Resources] = []
    left_out: Counter[int] = Counter()
    exclusions: list[Exclusion] = []
    shared: dict[str, tuple[Any, ...]] = {}
    repeated = 0
    for number, block in enumerate(sweep.cells):
        place = ("cells", number)
        base = resources_of(sweep.resources, block.resources, found, (*place, "resources"))
        resources = resources_of(base, preset.resources, found, ("presets",))
        if resources not in kinds:
            kinds.append(resources)
        rules = [*sweep.exclude, *block.exclude]
        first = len(exclusions)
        exclusions += rules
        for experiment, values, at in _combinations(sweep, block, preset, resources, found, place):
            config = _checked(experiment, values, block.preset, found, at, place)
            hit = next((i for i, rule in enumerate(rules) if _matches(rule.when, experiment, config)), None)
            if hit is not None:
                left_out[first + hit] += 1
                continue
            if preset.only and not _matches(preset.only, experiment, config):
                continue
            cell = cell_of(experiment, config, files, kinds.index(resources))
            if cell.key in cells:
                repeated += 1
                continue
            names.check(config, at, place)
            cells[cell.key] = cell
            shared[cell.key] = tuple(_held(config, name) for name in sweep.group.by)
    return Expansion(list(cells.values()), kinds, _summed(exclusions, left_out), repeated, shared)


def _summed(exclusions: Sequence[Exclusion], left_out: Mapping[int, int]) -> list[tuple[Exclusion, int]]:
    """Exclusions of the file stand once per block in the list; they are counted together."""
    total: dict[int, tuple[Exclusion, int]] = {}
    for i, rule in enumerate(exclusions):
        before = total.get(id(rule), (rule, 0))[1]
        total[id(rule)] = (rule, before + left_out.get(i, 0))
    return list(total.values())


def _combinations(
    sweep: SweepFile, block: Block, preset: Preset, resources: Resources, found: Located, place: tuple[str | int, ...]
) -> Iterator[tuple[Experiment, dict[str, Any], dict[str, tuple[str | int, ...]]]]:
    """Experiment, settings, and where in the file each setting stands."""
    grid = [[(k, v, (*place, "grid", k, i)) for i, v in enumerate(vs)] for k, vs in block.grid.items()]
    rows = max((len(v) for v in block.side_by_side.values()), default=1)
    zipped = [[(k, v[i], (*place, "zip", k, i)) for k, v in block.side_by_side.items()] for i in range(rows)]
    listed = [
        [(k, v, (*place, "list", i, k)) for k, v in one.items()] for i, one in enumerate(block.one_by_one or [{}])
    ]
    count = math.prod(map(len, grid)) * len(zipped) * len(listed) * len(block.experiments)
    if count > MOST_COMBINATIONS:
        raise found.error((*place, "grid"), f"{count} combinations; at most {MOST_COMBINATIONS} are made of one block")
    for i, name in enumerate(block.experiments):
        experiment = _experiment(name, found, (*place, "experiment", i))
        fields = experiment.config.model_fields
        common: Given = {k: (v, ("defaults", k)) for k, v in sweep.defaults.items() if k in fields}
        common |= {k: (v, (*place, "set", k)) for k, v in block.fixed.items()}
        last: Given = {k: (v, ("presets",)) for k, v in preset.override.items() if k in fields}
        if resources.dtype is not None and "dtype" in fields:
            last = {"dtype": (resources.dtype, ("resources", "dtype")), **last}
        for axes in itertools.product(*grid):
            for side in zipped:
                for one in listed:
                    given = {**common, **{k: (v, at) for k, v, at in (*axes, *side, *one)}, **last}
                    yield experiment, {k: v for k, (v, _) in given.items()}, {k: at for k, (_, at) in given.items()}


def _experiment(name: str, found: Located, place: tuple[str | int, ...]) -> Experiment:
    try:
        experiment = EXPERIMENTS[name]
    except UserError as e:
        raise found.error(place, str(e)) from None
    if experiment.version is None:
        raise found.error(place, f"experiment {name} has no version, so its cells are never reused: no sweep of it")
    return experiment


def _known_somewhere(sweep: SweepFile, found: Located) -> None:
    """A setting that no experiment of the file has is a misspelling, wherever cells are chosen or altered by it."""
    fields = {
        f for b in sweep.cells for n in b.experiments if n in EXPERIMENTS for f in EXPERIMENTS[n].config.model_fields
    }
    for place, names, chooses in _choices(sweep):
        known = fields | {"experiment"} if chooses else fields
        for name in names:
            if name not in known:
                text = str(unknown("setting of the sweep's experiments", name, sorted(known)))
                raise found.error((*place, name), text)


def _choices(sweep: SweepFile) -> Iterator[tuple[tuple[str | int, ...], Iterable[str], bool]]:
    """Where the file names settings outside its blocks' own: place, names, and whether cells are chosen by them."""
    yield ("defaults",), sweep.defaults, False
    for i, rule in enumerate(sweep.exclude):
        yield ("exclude", i, "when"), rule.when, True
    for number, block in enumerate(sweep.cells):
        for i, rule in enumerate(block.exclude):
            yield ("cells", number, "exclude", i, "when"), rule.when, True
    for name, preset in sweep.presets.items():
        yield ("presets", name, "only"), preset.only, True
        yield ("presets", name, "override"), preset.override, False


def _checked(
    experiment: Experiment, values: dict[str, Any], preset: str | None, found: Located,
    at: Mapping[str, tuple[str | int, ...]], place: tuple[str | int, ...],
) -> Config:  # fmt: skip
    try:
        return experiment.make_config(values, preset)
    except UserError as e:
        text = str(e)
        named = [k for k in values if f"setting {k} " in text or f"setting {k}." in text or f" {k!r}" in text]
        where = at[named[0]] if named else (*place, "preset") if preset and "preset" in text else place
        raise found.error(where, text) from None


class Names:
    """Metrics, tasks, sites and methods that settings name, each looked for once; models only where cells run."""

    def __init__(self, found: Located) -> None:
        self.found = found
        self._seen: set[tuple[NameOf, object]] = set()

    def check(self, config: Config, at: Mapping[str, tuple[str | int, ...]], place: tuple[str | int, ...]) -> None:
        """UserError, with the line, where one does not exist."""
        for setting, mark in marked_settings(type(config)).items():
            value = getattr(config, setting)
            if mark.kind == "models" or (mark, value) in self._seen:
                continue
            try:
                check_setting(mark, value)
            except UserError as e:
                raise self.found.error(at.get(setting, place), str(e)) from None
            self._seen.add((mark, value))


def _held(config: Config, name: str) -> Any:
    value = getattr(config, name, None)
    return repr(value) if isinstance(value, (dict, list)) else value


def _matches(when: Mapping[str, Any], experiment: Experiment, config: Config) -> bool:
    for name, wanted in when.items():
        value = experiment.name if name == "experiment" else getattr(config, name, _ABSENT)
        options = wanted if isinstance(wanted, list) else [wanted]
        if not any(_same(value, option) for option in options):
            return False
    return True


_ABSENT = object()


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, (tuple, list)) and isinstance(wanted, (tuple, list)):
        return list(value) == list(wanted)
    return bool(value == wanted)


def cell_of(experiment: Experiment, config: Config, files: Files, resources: int = 0) -> SweepCell:
    """The cell of a checked config: its name, place and digest."""
    digest = cell_hash(experiment, config, files.of(config))
    model, task = (getattr(config, name, None) for name in ("model", "task"))
    place = cell_path(Path(), experiment.name, model, task, digest).as_posix()
    given = config.model_dump(mode="json", exclude_unset=True)
    return SweepCell(digest[:16], experiment.name, given, place, digest, resources)


class Files:
    """`named_files` of many configs: a file is read once."""

    def __init__(self) -> None:
        self._is_file: dict[str, bool] = {}
        self._known: dict[tuple[str, ...], dict[str, str]] = {}

    def of(self, config: Config) -> dict[str, str]:
        names = tuple(sorted({t for v in config.__dict__.values() for t in self._texts(v)}))
        if not names:
            return {}
        if names not in self._known:
            self._known[names] = named_files(config)
        return self._known[names]

    def _texts(self, value: Any) -> Iterator[str]:
        if isinstance(value, Mapping):
            for v in value.values():
                yield from self._texts(v)
        elif isinstance(value, (list, tuple, set, frozenset)):
            for v in value:
                yield from self._texts(v)
        elif isinstance(value, (str, Path)) and self._file(str(value)):
            yield str(value)

    def _file(self, text: str) -> bool:
        if text not in self._is_file:
            try:
                self._is_file[text] = bool(text) and len(text) < 1024 and "\0" not in text and Path(text).is_file()
            except OSError:
                self._is_file[text] = False
        return self._is_file[text]
