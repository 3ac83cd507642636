"""Pages as text: a cell, two cells side by side, the index. Templates escape; scripts and styles are inlined.

A page carries a content policy that forbids every request, so that it is the same with the network and without.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from interp._version import __version__
from interp.plots.bundle import embedded, script
from interp.plots.figure import css
from interp.plots.svg import visible
from interp.registry import UserError
from interp.report.drawing import Drawn, NotDrawnError, limit_of
from interp.report.origin import origin, outcome, place_of, question, settings
from interp.report.source import Source
from interp.report.table import TableData, table_data
from interp.report.views import views_of
from interp.results.compare import compare, contrasts
from interp.results.schemas import Column, Schema

HERE = Path(__file__).parent
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Section:
    """The figures of one view; a figure that could not be drawn leaves its reason in `missing`."""

    name: str
    title: str
    about: str
    drawn: list[Drawn]
    missing: str = ""


@dataclass(frozen=True)
class Page:
    """One HTML file; `figures` are for `--figures`, by name."""

    html: str
    title: str
    figures: dict[str, Drawn] = field(default_factory=dict)


@cache
def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    env.filters["visible"] = visible
    return env


def static(name: str) -> Markup:
    """A file of `static/`, ours and free of `</`."""
    return Markup((HERE / "static" / name).read_text(encoding="utf-8"))


def sections_of(source: Source, limit: float | None = None) -> list[Section]:
    """Every view that fits, drawn. A figure that fails is said, in the page and in the log; the page is made."""
    found = []
    for name, view in views_of(source):
        try:
            drawn, missing = view.draw(source, limit, **view.options), ""
        except (NotDrawnError, UserError) as e:
            drawn, missing = [], str(e)
            log.warning("%s: %s is not drawn: %s", source.name, view.title, e)
        if drawn or missing:
            found.append(Section(name, view.title, view.about, drawn, missing))
    return found


def _render(template: str, groups: list[list[Section]], **more: Any) -> str:
    widgets = any(d.widget for group in groups for s in group for d in s.drawn)
    said = {
        "css": Markup(css()) + static("page.css"), "scripts": [static("table.js"), static("page.js")],
        "circuitsvis": Markup(script()) if widgets else None, "version": __version__, "embedded": _embedded,
    }  # fmt: skip
    return _templates().get_template(template).render(**said, **more)


def _embedded(value: Any) -> Markup:
    return Markup(embedded(value))


def cell_page(source: Source, others: str | None = None) -> Page:
    """The page of one table; `others` is the address of the index, where there is one."""
    sections = sections_of(source)
    head, asked = question(source.experiment) if source.run else (f"Collected rows: {source.name}", "")
    title = f"{head}: {place_of(source)}" if place_of(source) else head
    html = _render(
        "cell.html", [sections], title=title, head=head, question=asked, place=place_of(source),
        outcome=outcome(source), source=source, sections=sections, table=table_data(source), settings=settings(source),
        origin=origin(source), prompts=_prompts(source), others=others, columns=_columns(source),
        text=_beside(source),
    )  # fmt: skip
    figures = {f"{s.name}-{i + 1}" if len(s.drawn) > 1 else s.name: d for s in sections for i, d in enumerate(s.drawn)}
    return Page(html, title, figures)


def pair_page(a: Source, b: Source) -> Page:
    """Two tables side by side: the rows they share with their difference, figures on one scale, both origins."""
    alike = a.schema.main == b.schema.main
    limit = limit_of(a, b) if alike else None
    both = [sections_of(s, limit) for s in (a, b)]
    titles = list(dict.fromkeys((s.name, s.title) for group in both for s in group))
    rows = [(title, *[next((s for s in group if s.name == name), None) for group in both]) for name, title in titles]
    table, missing = _difference(a, b)
    contrast = contrasts(a.frame, b.frame, a.schema) if alike else {}
    heads = [question(s.experiment)[0] for s in (a, b)]
    html = _render(
        "pair.html", both, title=f"{heads[0]}: two results" if heads[0] == heads[1] else " beside ".join(heads),
        sources=[a, b], heads=heads, places=[place_of(s) for s in (a, b)], outcomes=[outcome(s) for s in (a, b)],
        rows=rows, table=table, missing=missing, contrast=contrast, settings=_side_by_side(a, b),
        origins=[origin(s) for s in (a, b)], names=[s.name for s in (a, b)],
    )  # fmt: skip
    figures = {f"{'ab'[i]}-{s.name}-{k + 1}": d for i, g in enumerate(both) for s in g for k, d in enumerate(s.drawn)}
    return Page(html, f"{a.name} beside {b.name}", figures)


def _difference(a: Source, b: Source) -> tuple[TableData | None, str]:
    if a.schema != b.schema:
        return None, f"The tables are of different kinds ({a.schema.name}, {b.schema.name}): no rows to compare."
    try:
        joined = compare(a.frame, b.frame, a.schema)
    except UserError as e:
        return None, f"Rows are not compared: {e}."
    main = a.schema.main
    known = {c.name: c for c in a.schema.columns}
    words = {f"{main}_a": f"{main} of a", f"{main}_b": f"{main} of b", "difference": "b − a", "found": "which has it"}
    columns = tuple(
        known.get(str(c)) or Column(str(c), "number" if joined[c].dtype == "float64" else "name", words.get(str(c), ""))
        for c in joined.columns
    )
    table = Source("difference", joined.reset_index(drop=True), Schema("difference", columns, "difference"))
    drawn = [(f"{main}_{s}", f"ci_low_{s}", f"ci_high_{s}") for s in "ab" if f"ci_low_{s}" in joined]
    return table_data(table, drawn or None, sort="difference"), ""


def _side_by_side(a: Source, b: Source) -> list[tuple[str, str, str]]:
    one, other = dict(settings(a)), dict(settings(b))
    return [(k, one.get(k, "–"), other.get(k, "–")) for k in dict.fromkeys([*one, *other])]


def _prompts(source: Source) -> list[tuple[list[str], dict[int, str]]]:
    """Tokens of the first prompts, and the labels at each position."""
    found = []
    for prompt in source.prompts():
        labels: dict[int, str] = {}
        for name, at in (prompt.get("labels") or {}).items():
            labels[int(at)] = f"{labels[int(at)]}, {name}" if int(at) in labels else str(name)
        found.append(([visible(t).replace(" ", "·") or "∅" for t in prompt["tokens"]], labels))
    return found


def _columns(source: Source) -> list[tuple[str, str]]:
    used = [c for c in source.schema.columns if c.name in source.frame and source.frame[c.name].notna().any()]
    return [(c.name, c.about) for c in used if c.about]


def _beside(source: Source) -> str | None:
    """The report that a sweep wrote beside its collected table."""
    path = source.folder / "report.md" if source.folder and not source.run else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else None


def index_page(rows: list[dict[str, Any]]) -> str:
    """All pages of a folder, by experiment."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["experiment"], []).append(row)
    asked = {name: question(name) if rows[0]["cell"] else ("Collected rows", "") for name, rows in groups.items()}
    return _templates().get_template("index.html").render(
        css=Markup(css()) + static("page.css"), scripts=[static("page.js")], circuitsvis=None, version=__version__,
        title="Results", groups=groups, asked=asked, count=len(rows), embedded=_embedded,
    )  # fmt: skip
