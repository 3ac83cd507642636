"""Registries: named rows with one helpful error.

A registry holds rows that this package defines and rows that other packages bring, either by calling
`register` (a decorator) or through an entry-point group `interp.<kind>`. Names from entry points are
listed without importing the module behind them; the module is imported when the row is asked for.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class UserError(ValueError):
    """Bad input from the outside: its message says what was given, what was expected and what exists.

    >>> raise UserError("a window holds at least the token itself, got 0")
    Traceback (most recent call last):
        ...
    interp.registry.UserError: a window holds at least the token itself, got 0
    """


def nearest(name: str, choices: list[str], most: int = 3) -> list[str]:
    """The choices that look most like `name`, best first."""
    return difflib.get_close_matches(name, choices, n=most, cutoff=0.5)


def unknown(kind: str, name: object, choices: list[str]) -> UserError:
    """The one error for a name that does not exist.

    >>> print(unknown("metric", "logit_dif", ["kl", "logit_diff"]))
    unknown metric 'logit_dif'; did you mean logit_diff? There are: kl, logit_diff
    """
    near = nearest(str(name), choices)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    listing = ", ".join(choices) if choices else "none"
    return UserError(f"unknown {kind} {name!r}{hint} There are: {listing}")


@dataclass(frozen=True)
class NameOf:
    """Marks a setting that holds a name of a kind, or several: `Annotated[str, NameOf("metrics")]`.

    Help shows the names; a wrong one is told before torch is imported (`interp.names`). `also` are words that the
    setting takes beside them.
    """

    kind: Literal["models", "tasks", "metrics", "sites", "methods", "recipes"]
    also: tuple[str, ...] = ()


class Registry(Generic[T]):
    """Named rows of one kind. Duplicate names are refused; unknown names raise with the nearest ones."""

    def __init__(self, kind: str, group: str | None = None, of: type | None = None) -> None:
        self.kind = kind
        self.group = group
        self.of = of
        """What a row from an entry point must be an instance of, where that is checked."""
        self._rows: dict[str, T] = {}
        self._points: dict[str, EntryPoint] | None = None
        self._path: list[str] = []

    def add(self, name: str, row: T) -> T:
        """Add a row; a name that is taken raises."""
        if name in self._rows:
            raise UserError(f"{self.kind} {name!r} is already registered")
        self._rows[name] = row
        return row

    def register(self, name: str | None = None) -> Callable[[F], F]:
        """Decorator: register a function or class under `name` (its own name by default).

        >>> fruits: Registry[object] = Registry("fruit")
        >>> @fruits.register()
        ... def pear() -> None: ...
        >>> fruits.names()
        ['pear']
        """

        def keep(row: F) -> F:
            self.add(name or row.__name__, row)  # type: ignore[arg-type]
            return row

        return keep

    def _outside(self) -> dict[str, EntryPoint]:
        if self.group is None:
            return {}
        if self._points is None or self._path != sys.path:  # once a path: it reads every package's metadata
            self._path = list(sys.path)
            self._points = {e.name: e for e in entry_points(group=self.group)}
        return {name: point for name, point in self._points.items() if name not in self._rows}

    def names(self) -> list[str]:
        """All names, sorted, entry points included (their modules are not imported)."""
        return sorted({*self._rows, *self._outside()})

    def where(self, name: str) -> str | None:
        """`module:attribute` of an entry point that is not loaded yet, else None."""
        point = self._outside().get(name)
        return point.value if point else None

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._outside()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> T:
        if name not in self._rows:
            point = self._outside().get(name)
            if point is None:
                raise unknown(self.kind, name, self.names())
            row = self._load(point)
            # the module behind the entry point may have registered the row itself while loading
            self._rows.setdefault(name, row)
        return self._rows[name]

    def _load(self, point: EntryPoint) -> T:
        """The row behind an entry point; UserError, naming the package that brought it, where there is none."""
        brought = f" of package {point.dist.name}" if point.dist else ""
        where = f"{self.kind} {point.name!r}{brought} ({point.value})"
        try:
            row: T = point.load()
        except (ImportError, AttributeError) as e:
            raise UserError(f"{where} cannot be loaded: {e}") from e
        if self.of is not None and not isinstance(row, self.of):
            raise UserError(f"{where} is a {type(row).__name__}, a {self.of.__name__} was expected")
        return row
