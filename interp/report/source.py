"""What a page is about: a finished cell, or a table that stands alone (a sweep's collected rows)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.registry import UserError
from interp.results.schemas import SCHEMAS, Column, Schema
from interp.results.store import Cell, read_parquet

_PATTERN = re.compile(r"L(\d+)\.pattern")


@dataclass(frozen=True, eq=False)
class Source:
    """A table with everything that a page shows beside it. `run` is run.json, empty for a bare table."""

    name: str
    frame: pd.DataFrame
    schema: Schema
    run: Mapping[str, Any] = field(default_factory=dict)
    examples: pd.DataFrame | None = None
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def main(self) -> str | None:
        """The column that figures draw; None where the table has none with a number in it."""
        name = self.schema.main
        return name if name in self.frame and self.frame[name].notna().any() else None

    @property
    def ends(self) -> tuple[str, str] | None:
        """Columns of the interval of the main number: `ci_low` and `ci_high`, or its own `<main>_low` and `_high`."""
        for low, high in (("ci_low", "ci_high"), (f"{self.main}_low", f"{self.main}_high")):
            if all(c in self.frame and self.frame[c].notna().any() for c in (low, high)):
                return low, high
        return None

    def between(self, low: str, high: str) -> str:
        """What lies between two such columns, by their meaning: `95% interval`, or `fastest to slowest`."""
        about = {c.name: c.about for c in self.schema.columns}
        said = about.get(low, "")
        if "95%" in said or low.startswith("ci_low"):
            return "95% interval"
        return f"{said} to {about.get(high, '')}" if said else "range"

    @property
    def confident(self) -> tuple[str, str] | None:
        """`ends` where they are those of a 95% interval."""
        return self.ends if self.ends and self.between(*self.ends) == "95% interval" else None

    @property
    def experiment(self) -> str:
        return str(self.run.get("experiment") or self.name.split("/")[0])

    def varying(self) -> list[str]:
        """Key columns that are not the same in every row."""
        key = [c for c in self.schema.key if c in self.frame]
        return [c for c in key if self.frame[c].nunique(dropna=False) > 1]

    def prompts(self) -> list[dict[str, Any]]:
        """The first prompts as their run recorded them: `tokens`, and `labels` by name."""
        found = self.run.get("prompts")
        return [p for p in found if isinstance(p, dict) and p.get("tokens")] if isinstance(found, list) else []

    def patterns(self) -> list[tuple[list[str], list[str], Float[np.ndarray, "head query key"]]]:
        """Attention of the kept prompts: tokens, names of the heads, weights of all layers' heads."""
        path = self.artifacts.get("patterns.safetensors")
        if path is None:
            return []
        from safetensors.numpy import load_file

        layers = sorted((int(m[1]), a) for k, a in load_file(path).items() if (m := _PATTERN.fullmatch(k)))
        if not layers:
            return []
        said = self._pattern_tokens()
        found = []
        for i in range(len(layers[0][1])):
            tokens = said[i] if i < len(said) else [str(p) for p in range(layers[0][1].shape[-1])]
            names = [f"L{layer}.h{h}" for layer, a in layers for h in range(a.shape[1])]
            found.append((tokens, names, np.concatenate([a[i] for _, a in layers])[:, : len(tokens), : len(tokens)]))
        return found

    def _pattern_tokens(self) -> list[list[str]]:
        path = self.artifacts.get("patterns.json")
        if path is None:
            return []
        found = _json(path).get("tokens")
        return [[str(t) for t in row] for row in found] if isinstance(found, list) else []

    def circuit(self) -> pd.DataFrame | None:
        """Edges of the cell's circuit: src, dst, score, in_graph."""
        path = self.artifacts.get("circuit.json")
        edges = _json(path).get("edges") if path is not None else None
        if not isinstance(edges, dict) or not edges:
            return None
        rows = [
            {"src": name.partition("->")[0], "dst": name.partition("->")[2], "score": e.get("score"),
             "in_graph": bool(e.get("in_graph", True))}
            for name, e in edges.items()
        ]  # fmt: skip
        frame = pd.DataFrame(rows)
        return frame.assign(score=pd.to_numeric(frame["score"]))


def of_cell(cell: Cell) -> Source:
    """The source of a finished cell."""
    return Source(cell.name, cell.table(), cell.schema(), cell.run(), cell.examples(), cell.artifacts(), cell.path)


def of_table(path: Path, name: str) -> Source:
    """The source of a bare `table.parquet`: columns are told by the schemas' words, where they have them."""
    frame = read_parquet(path)
    known = {c.name: c for schema in SCHEMAS.names() for c in SCHEMAS[schema].columns}
    kinds = {"string": "name", "Int64": "index", "float64": "number", "boolean": "flag"}
    columns = tuple(
        Column(
            n, kinds.get(str(frame[n].dtype), "name"), known[n].about if n in known else "", n in known and known[n].key
        )
        for n in frame.columns
    )
    main = next((s for s in ("effect", "score", "value") if s in frame), "")
    return Source(name, frame, Schema("collected", columns, main), folder=path.parent)


def bare_tables(out: Path) -> list[tuple[Path, str]]:
    """Tables under `out` that are no cells: `<out>/<name>/table.parquet`."""
    found = sorted(Path(out).glob("*/table.parquet"))
    return [(p, p.parent.name) for p in found if not p.parent.name.startswith(".")]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"{path} cannot be read: {e}") from None
    return found if isinstance(found, dict) else {}
