"""Where a model's name leads: an embedded model, a local folder or file, the hub. Imports no torch.

A command asks here before it imports anything heavy, so that a misspelt name is told at once.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from interp.models import zoo
from interp.registry import UserError


@dataclass(frozen=True)
class Found:
    """Where a name led: a model folder on this machine."""

    name: str
    path: Path
    weights: str | None = None
    revision: str = ""
    named: bool = False
    """Whether `name` is to be kept as it was given (embedded and hub names), not taken from the folder."""


def find(name: str, revision: str | None = None, weights: str | None = None) -> Found:
    """Where a name leads; UserError saying what was tried and what exists where it leads nowhere."""
    if not name.strip():
        raise UserError(
            f"a model's name is empty; there are: {', '.join(zoo.names()) or 'none'}, folders and hub names"
        )
    embedded, path = zoo.folders(), _path(name)
    if name in embedded:
        _no_revision(name, revision)
        return Found(name, embedded[name], weights, named=True)
    if os.path.isdir(path):  # unlike Path.is_dir, False for a name that is too long
        _no_revision(name, revision)
        return Found(name, path.resolve(), weights)
    if os.path.isfile(path):
        _no_revision(name, revision)
        if path.suffix != ".safetensors":
            raise UserError(
                f"{path} is a file but not a .safetensors file; give a model folder or a safetensors file in one"
            )
        if weights is not None:
            raise UserError(f"{path} names a weight file already; leave weights= out")
        return Found(name, path.parent.resolve(), path.name)
    tried = [f"the embedded models ({_existing(name, list(embedded))})", f"a local folder ({path} does not exist)"]
    from interp.models import hub

    if not hub.could_be_hub_name(name):
        tried.append("not the hub (its names are spelt name or owner/name)")
        raise UserError(f"no model {name!r}; tried {', '.join(tried)}")
    try:
        snapshot = hub.fetch(name, revision)
    except UserError as error:
        raise UserError(f"no model {name!r}; tried {', '.join(tried)}, {error}") from error
    return Found(name, snapshot, weights, snapshot.name, named=True)


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError):  # there is no such user
        return Path(name)


def _existing(name: str, embedded: list[str]) -> str:
    near = difflib.get_close_matches(name, embedded, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}there are: {', '.join(embedded) or 'none'}"


def _no_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise UserError(f"revision={revision!r} is for hub names; {name!r} is on this machine")
