"""Pages as files: `<out>/<experiment>/<cell>.html`, `index.html`, and figures as PNG and SVG where they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from interp.registry import UserError
from interp.report.origin import outcome, place_of
from interp.report.page import Page, cell_page, index_page, pair_page
from interp.report.source import Source, bare_tables, of_cell, of_table
from interp.results.store import find_cell, list_cells

OUT = Path("build/report")


def write_pages(names: Sequence[str], results: Path, out: Path, figures: bool = False) -> list[Path]:
    """One page for one cell, one page for two side by side, pages with an index for more. Returns what to open."""
    if not names:
        raise UserError("name the cells to show, or give --all")
    sources = [named_source(name, results) for name in names]
    if len(sources) == 1:
        return [_write(cell_page(sources[0]), page_path(out, sources[0].name), figures)]
    if len(sources) == 2:
        parts = [s.name.replace("/", "-") for s in sources]
        return [_write(pair_page(*sources), out / f"{parts[0]}--{parts[1]}.html", figures)]
    return _write_indexed(sources, out, figures)


def write_all(
    results: Path, out: Path, figures: bool = False, on_page: Callable[[Path], None] | None = None
) -> list[Path]:
    """A page for every table under `results`, and an index. Returns the index first, then the pages."""
    cells = [lambda c=c: of_cell(c) for c in list_cells(results)]  # type: ignore[misc]
    bare = [lambda p=p, n=n: of_table(p, n) for p, n in bare_tables(results)]  # type: ignore[misc]
    if not cells and not bare:
        raise UserError(f"there is no table under {results}")
    return _write_indexed([*cells, *bare], out, figures, on_page)


def named_source(name: str, results: Path) -> Source:
    """A cell as `find_cell` finds it, or a folder with a bare table."""
    for path in (Path(name), results / name):
        if (path / "table.parquet").is_file() and not (path / "run.json").is_file():
            return of_table(path / "table.parquet", path.name)
    return of_cell(find_cell(results, name))


def page_path(out: Path, name: str) -> Path:
    """Where the page of this cell lies."""
    return out / f"{name}.html"


def _write_indexed(
    sources: Sequence[Source | Callable[[], Source]], out: Path, figures: bool,
    on_page: Callable[[Path], None] | None = None,
) -> list[Path]:  # fmt: skip
    rows, pages = [], []
    for given in sources:
        source = given() if callable(given) else given  # one table in memory at a time
        path = page_path(out, source.name)
        up = "../" * source.name.count("/")
        pages.append(_write(cell_page(source, f"{up}index.html"), path, figures))
        rows.append({
            "experiment": source.experiment, "name": source.name, "address": path.relative_to(out).as_posix(),
            "place": place_of(source) or source.name, "outcome": outcome(source), "rows": len(source.frame),
            "cell": bool(source.run),
            "settings": _settings(source),
        })  # fmt: skip
        if on_page:
            on_page(path)
    index = out / "index.html"
    index.write_text(index_page(rows), encoding="utf-8")
    return [index, *pages]


def _settings(source: Source) -> str:
    """What the command set, to tell cells of one experiment apart."""
    command = str(source.run.get("command") or "")
    words = command.split()
    said = {"--set": "", "--preset": "preset ", "--n": "n="}
    return ", ".join(said[flag] + word for flag, word in pairwise(words) if flag in said)


def _write(page: Page, path: Path, figures: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page.html, encoding="utf-8")
    if figures:
        folder = path.with_suffix("")
        folder.mkdir(exist_ok=True)
        for name, drawn in page.figures.items():
            for suffix in (".svg", ".png"):
                drawn.figure.save(folder / f"{name}{suffix}")
    return path
