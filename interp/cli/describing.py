"""What an experiment is and what can be set: the page of `interp run NAME --help`. Imports no torch."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from interp.cells import EXPERIMENTS, Experiment
from interp.names import existing, mark_of

WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "anything"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
OPEN = ("models", "tasks")
"""Kinds whose names are not all there is: the setting takes a folder or a file too."""


def print_experiment(experiment: str | Experiment) -> None:
    """Its docstring, its settings and its presets, on standard output."""
    exp = EXPERIMENTS[experiment] if isinstance(experiment, str) else experiment
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(Text(f"\n{_doc(exp)}\n\nSettings, each by --set NAME=VALUE:\n"))
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("name", "value", "default", "meaning"):
        grid.add_column(head, overflow="fold")
    for name, field in exp.config.model_fields.items():
        grid.add_row(*map(Text, (name, kind_of(field), _shown(field), meaning_of(field))))
    console.print(grid)
    console.print(Text("\nPresets, by --preset NAME:\n" if exp.presets else "\nIt has no presets."))
    for name, values in exp.presets.items():
        console.print(Text(f"{name}: {', '.join(f'{k}={_short(v)}' for k, v in values.items()) or 'the defaults'}"))
    console.print()


def kind_of(field: pydantic.fields.FieldInfo) -> str:
    """What a setting takes, in words.

    >>> from interp.context import ModelTaskConfig
    >>> [kind_of(ModelTaskConfig.model_fields[name]) for name in ("metric", "n", "task_options")]
    ['text', 'integer ≥ 1 or null', 'mapping']
    """
    held = {sign: _bound(field, name) for name, sign in BOUNDS.items()}
    # what only keeps a number inside its type is no news to a reader
    bounds = [f"{sign} {value}" for sign, value in held.items() if value is not None and value < 2**31]
    first, *others = dict.fromkeys(_words(field.annotation))
    return " or ".join([" ".join([first, *bounds]), *others])


def meaning_of(field: pydantic.fields.FieldInfo) -> str:
    """What a setting means, then what may stand there where that is a list of names."""
    names: list[str] = list(map(str, _choices(field.annotation)))
    mark = mark_of(field)
    if mark is not None:
        names = existing(mark)
        if mark.kind in OPEN:
            names[:1] = [f"named ones: {names[0]}"] if names else []
    said = field.description or ""
    words = {word.strip(".,;:") for word in said.split()}
    told = "" if {*names} <= words else ", ".join(names)
    return f"{said} ({told})" if said and told else said or told


def _words(annotation: Any) -> Iterator[str]:
    """The alternatives of a type, in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _words(inside[0])
    elif origin in (Union, types.UnionType):
        for one in inside:
            yield from _words(one)
    elif origin is Literal:
        yield "one of"
    elif origin in (tuple, list, set, frozenset):
        yield "list"
    elif origin is dict or annotation is dict:
        yield "mapping"
    else:
        yield WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _choices(annotation: Any) -> Iterator[Any]:
    """The values that a type spells out, inside lists too."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for one in get_args(annotation):
            yield from _choices(one)


def _bound(field: pydantic.fields.FieldInfo, name: str) -> Any:
    return next((getattr(m, name) for m in field.metadata if getattr(m, name, None) is not None), None)


def _shown(field: pydantic.fields.FieldInfo) -> str:
    return "(needed)" if field.is_required() else _short(field.get_default(call_default_factory=True), 36)


def _short(value: Any, most: int = 200) -> str:
    """A value as one would write it after --set."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _doc(exp: Experiment) -> str:
    """The docstring of the module, or the package, that it is defined in."""
    for module in dict.fromkeys((exp.run.__module__, exp.config.__module__)):
        while module:
            doc = getattr(sys.modules.get(module), "__doc__", None)
            if doc:
                return str(doc).strip()
            module = module.rpartition(".")[0]
    return exp.name
