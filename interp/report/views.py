"""Which figures belong to which table: one row per view, chosen by the columns that a table has.

A view is drawn where every column it needs is filled, and its schemas, experiments and artifact (where it names any)
are the table's. So an experiment of one's own gets its figures without a line here; one that wants others adds a
`View` by `VIEWS.add`, or by the entry-point group `interp.views`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from interp.registry import Registry
from interp.report import drawing

if TYPE_CHECKING:
    from interp.report.drawing import Drawn
    from interp.report.source import Source


@dataclass(frozen=True)
class View:
    """A kind of figure. `draw(source, limit, **options)` gives the figures; `order` sorts views on a page."""

    title: str
    draw: Callable[..., list[Drawn]]
    order: int
    about: str = ""
    needs: tuple[str, ...] = ()
    """Columns that must have values; those in `options` as rows, columns or x are checked like these."""
    schemas: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    artifact: str = ""
    unless: tuple[str, ...] = ()
    """Columns with which it does not fit: where another view says it better."""
    bare: bool = False
    """Whether tables that are no cell (a sweep's collected rows, of many experiments) have it too."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, source: Source) -> bool:
        """Whether this view is for this table."""
        if not source.run and not self.bare:
            return False
        if any(c in source.frame and source.frame[c].notna().any() for c in self.unless):
            return False
        if self.schemas and source.schema.name not in self.schemas:
            return False
        if self.experiments and source.experiment not in self.experiments:
            return False
        if self.artifact and self.artifact not in source.artifacts:
            return False
        return all(c in source.frame and source.frame[c].notna().any() for c in self.needs)


VIEWS: Registry[View] = Registry("view", "interp.views", of=View)


def views_of(source: Source) -> list[tuple[str, View]]:
    """The views that fit, in the order of a page."""
    fitting = [(name, VIEWS[name]) for name in VIEWS.names() if VIEWS[name].fits(source)]
    return sorted(fitting, key=lambda row: (row[1].order, row[0]))


def _map(name: str, order: int, title: str, rows: str, columns: str, about: str = "") -> None:
    VIEWS.add(
        name, View(title, drawing.maps, order, about, (rows, columns), options={"rows": rows, "columns": columns})
    )


VIEWS.add("circuit", View(
    "Circuit", drawing.circuit, 10, "Edges that are in the circuit. Click an edge to keep it in view.",
    artifact="circuit.json",
))  # fmt: skip
VIEWS.add("edges", View(
    "Edges", drawing.edges, 11, "Click an edge to keep it in view.", ("src", "dst"), ("effect", "attribution"),
))  # fmt: skip
_map("layer-head", 20, "Layer × head", "layer", "head")
_map("layer-kv-head", 21, "Layer × key/value head", "layer", "kv_head")
_map("layer-expert", 22, "Layer × expert", "layer", "expert")
VIEWS.add("layer-position", View(
    "Layer × position", drawing.maps, 23, "", ("layer", "pos"),
    options={"rows": "layer", "columns": "pos", "tokens": True},
))  # fmt: skip
_map("layer-label", 24, "Layer × labelled token", "layer", "pos_label")
_map("sender-receiver", 25, "Sender × receiver", "src", "dst")
VIEWS.add("tokens", View(
    "On the text", drawing.on_text, 30, "The numbers of single prompts, on their tokens.", ("pos",),
))  # fmt: skip
VIEWS.add("attention", View(
    "Attention patterns", drawing.patterns, 40, "Choose a head to see it large; hover over a token.",
    artifact="patterns.safetensors",
))  # fmt: skip
VIEWS.add("curves", View(
    "Curves", drawing.curves, 15, "", ("x",),
    options={"x": "x", "x_name": "x_name", "series": "series", "unordered": ("draw",)},
))  # fmt: skip
VIEWS.add("steps", View(
    "Over training", drawing.curves, 16, "", ("step",), ("numerics",), options={"x": "step", "series": "layer"},
))  # fmt: skip
VIEWS.add("checks", View("Checks that held", drawing.checks, 50, "", ("passed",)))
VIEWS.add("largest", View("Largest rows", drawing.largest, 28, unless=("x", "step", "passed", "nan")))
