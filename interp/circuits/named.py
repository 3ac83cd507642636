"""A circuit by name or file: what `circuit=` takes.

Files end in .json or .graphml (`files.py`). Names are those of circuits that ship with this package, in
`interp/circuits/known/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from interp.circuits.files import SUFFIXES, load_circuit
from interp.circuits.values import Circuit
from interp.hooks.geometry import Geometry
from interp.registry import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel


def named_circuits() -> dict[str, Path]:
    """Circuits that ship with the package, by name."""
    root = Path(str(files("interp.circuits.known")))
    return {path.stem: path for path in sorted(root.glob("*.json"))}


def circuit_file(name_or_file: str | Path) -> Path:
    """The file of a circuit. UserError for a name that is none."""
    if Path(name_or_file).suffix in SUFFIXES:
        return Path(name_or_file)
    known = named_circuits()
    if str(name_or_file) not in known:
        raise UserError(
            f"circuit {str(name_or_file)!r} is neither a file ({' or '.join(SUFFIXES)}) nor a named circuit; named: "
            f"{', '.join(known) or 'none'}. A circuit that was discovered lies in its cell: …/artifacts/circuit.json"
        )
    return known[str(name_or_file)]


def read_circuit(name_or_file: str | Path, geometry: Geometry) -> Circuit:
    """A circuit for a model of this shape. UserError for a name that is none, and a file that does not fit."""
    return load_circuit(circuit_file(name_or_file), geometry)


def refuse_unused(config: BaseModel, unused: Sequence[str]) -> None:
    """UserError where `unused` settings, which a run with `circuit` ignores, were changed; or `part` without one."""
    changed = [n for n in type(config).model_fields if getattr(config, n) != type(config).model_fields[n].default]
    if "circuit" not in changed:
        if "part" in changed:
            raise UserError("part= chooses a part of a circuit: it needs circuit=FILE or a named circuit")
        return
    for name in unused:
        if name in changed:
            raise UserError(f"{name}= has no meaning with circuit=, whose edges are what is changed; leave one out")
