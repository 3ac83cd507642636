"""Settings that every experiment built on replay shares, and how they become planner options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from interp.interventions.plan import Options


@runtime_checkable
class Settings(Protocol):
    """What is read off an experiment's context."""

    pack: int | None
    plain: bool
    show: bool


def options_of(context: Settings, *, exact: bool = False) -> Options:
    """Planner options of a run: pack size and plain execution as asked.

    >>> from types import SimpleNamespace
    >>> options_of(SimpleNamespace(plain=False, pack=8, show=False)).pack
    8
    """
    from interp.interventions.plan import Options

    return Options(plain=context.plain, pack=context.pack, exact=exact)


def one_or_many(sites: str | Sequence[str]) -> list[str]:
    """Sites as a list."""
    return [sites] if isinstance(sites, str) else list(sites)


def bar(context: Any, about: str) -> Callable[[int, int], None] | None:
    """A progress bar on standard error where the context shows one, with rate and time left.

    The context closes it when the run ends, whichever way.
    """
    return context.bar(about) if context.show else None
