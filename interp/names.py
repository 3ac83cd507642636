"""Names that settings hold, checked before anything heavy is imported.

A setting says by `NameOf` of which kind its names are. What exists is read without torch: source files and
entry points (`interp.listing`), and registries of modules that are imported already, where a program has added
rows of its own. Only what is surely wrong is refused here; whether a site fits the model, or a task's options the
task, is found out where they are used.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import pydantic

from interp.hooks.addresses import Address
from interp.listing import listing
from interp.models.finding import find
from interp.registry import NameOf, UserError, unknown
from interp.tasks.sources import SUFFIXES, is_file_name

REGISTRIES = {
    "metrics": ("interp.metric_values:METRICS",),
    "tasks": ("interp.tasks.load:TASKS",),
    "sites": ("interp.hooks.sites:SITES",),
    "recipes": ("interp.training.recipes:RECIPES",),
    "methods": ("interp.attribution.methods:METHODS", "interp.circuits.discover:DISCOVERIES"),
}


def mark_of(field: pydantic.fields.FieldInfo) -> NameOf | None:
    """The kind of names that a setting holds, if any.

    >>> from interp.context import ModelTaskConfig
    >>> mark_of(ModelTaskConfig.model_fields["metric"])
    NameOf(kind='metrics', also=())
    """
    return next((m for m in (*field.metadata, *_marks(field.annotation)) if isinstance(m, NameOf)), None)


def existing(mark: NameOf) -> list[str]:
    """The names there are, this process' own among them, then words that stand for one."""
    names = {row.name for row in listing(mark.kind)}
    for place in REGISTRIES.get(mark.kind, ()):
        module, _, attribute = place.partition(":")
        if module in sys.modules:
            names |= {*getattr(sys.modules[module], attribute).names()}
    return [*sorted(names), *mark.also]


def check_names(config: pydantic.BaseModel) -> None:
    """UserError for the first setting with a name that does not exist; models last, since the hub may be asked."""
    marked = marked_settings(type(config))
    for setting, mark in sorted(marked.items(), key=lambda pair: pair[1].kind == "models"):
        if mark.kind == "models":
            revision = getattr(config, f"{setting}_options", {}).get("revision")
            for name in _listed(getattr(config, setting)):
                find(name, revision if isinstance(revision, str) else None)
        else:
            check_setting(mark, getattr(config, setting))


@functools.cache
def marked_settings(kind: type[pydantic.BaseModel]) -> dict[str, NameOf]:
    """The settings that hold names, and of what."""
    return {name: mark for name, field in kind.model_fields.items() if (mark := mark_of(field))}


def check_setting(mark: NameOf, value: str | Iterable[str] | None) -> None:
    """UserError where a setting names something that does not exist (models are not looked for here)."""
    if names := [name for name in _listed(value) if not (mark.kind == "tasks" and _is_table(name))]:
        _check(names, mark)


def _listed(value: str | Iterable[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _check(names: list[str], mark: NameOf) -> None:
    there = existing(mark)
    for name in (Address.parse(name).site for name in names) if mark.kind == "sites" else names:
        if name not in there:
            raise unknown(mark.kind.removesuffix("s"), name, there)


def _is_table(name: str) -> bool:
    """Whether a task's name is that of a file of pairs; UserError where it is one that cannot be."""
    if os.path.isfile(name) and not name.lower().endswith(SUFFIXES):
        raise UserError(f"{name} is a file, but a table's name ends in one of {', '.join(SUFFIXES)}")
    if is_file_name(name) and not os.path.isfile(name):
        raise UserError(f"no such file: {name}")
    return is_file_name(name)


def _marks(annotation: Any) -> Iterator[Any]:
    """What stands beside a type, one of its alternatives, or its items."""
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    elif get_origin(annotation) in (Union, types.UnionType, tuple, list):
        for one in get_args(annotation):
            yield from _marks(one)
