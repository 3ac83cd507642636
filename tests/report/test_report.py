"""Pages: what they hold, which figures a table gets, the index, files; nothing from outside runs in them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from interp.cli import main
from interp.registry import UserError
from interp.report import VIEWS, View, write_all, write_pages
from interp.report.drawing import curves, largest, maps
from interp.report.page import cell_page, pair_page
from interp.report.source import Source, of_cell
from interp.report.table import table_data
from interp.report.views import views_of
from interp.results.frames import typed
from interp.results.schemas import CURVE, EFFECT, NUMERICS, TIMING
from tests.report.pages import TOKENS, edges_cell, grid, heads_cell, long_cell, own_cell


class Scripts(HTMLParser):
    """Every script element and its type; every address and handler an element carries."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.types: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.types.append(dict(attrs).get("type") or "")
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data")]
        self.handlers += [k for k, v in attrs if k.startswith("on")]


def source(rows: list[dict[str, object]], schema: object = EFFECT) -> Source:
    return Source("e/c", typed(rows, schema), schema)  # type: ignore[arg-type]


def test_a_page_of_144_heads_is_one_small_file(tmp_path: Path) -> None:
    page = cell_page(of_cell(heads_cell(tmp_path)))
    found = Scripts(page.html)
    assert len(page.html.encode()) < 5_000_000
    assert found.types.count("") == 4, "table, page, circuitsvis once, and its start"
    assert found.types.count("application/json") == 3, "the table, and two prompts' patterns"
    assert all(a.startswith(("#", "data:")) for a in found.addresses)
    assert found.handlers == []
    assert "default-src 'none'" in page.html
    assert "unpkg" not in page.html
    assert "Which activations of one run" in page.html
    assert "L1.h2, 9 logits [8.5, 9.5]" in page.html


def test_circuitsvis_comes_only_where_there_are_patterns(tmp_path: Path) -> None:
    assert "CircuitsVis=" not in cell_page(of_cell(edges_cell(tmp_path))).html


def test_hostile_tokens_are_text(tmp_path: Path) -> None:
    html = cell_page(of_cell(heads_cell(tmp_path))).html
    assert "<img" not in html
    assert "window.hacked=1</script>" not in html
    assert "49" not in re.findall(r'class="word">([^<]*)<', html)
    words = re.findall(r'class="word">([^<]*)<', html)
    assert len(words) == len(TOKENS)
    assert words[2] == "⟨2028⟩"
    assert words[9] == "␀"


def test_views_follow_from_columns_not_from_names(tmp_path: Path) -> None:
    assert [n for n, _ in views_of(of_cell(heads_cell(tmp_path)))] == ["layer-head", "largest", "attention"]
    assert [n for n, _ in views_of(of_cell(edges_cell(tmp_path)))] == ["edges", "sender-receiver", "largest"]


def test_an_experiment_of_ones_own_gets_its_table_and_can_add_a_view(tmp_path: Path) -> None:
    cell = of_cell(own_cell(tmp_path))
    assert '"words":["blue","green","red"]' in cell_page(cell).html
    assert [n for n, _ in views_of(cell)] == ["largest"]
    view = View("Colours", lambda source, limit: [], 1, needs=("colour",), experiments=("colours",))
    VIEWS.add("colours", view)
    try:
        assert "colours" in [n for n, _ in views_of(cell)]
        assert "colours" not in [n for n, _ in views_of(of_cell(edges_cell(tmp_path)))]
    finally:
        VIEWS._rows.pop("colours")


def test_columns_that_vary_make_panels_and_each_cell_is_one_row() -> None:
    rows = grid(2, 3, 0, metric="kl") + grid(2, 3, 1, metric="logit_diff")
    drawn = maps(source(rows), None, "layer", "head")
    assert [d.figure.title for d in drawn] == ["kl", "logit_diff"]
    assert all(d.figure.svg.count("data-at") == 6 for d in drawn)


def test_curves_make_lines_of_what_varies_and_panels_of_metrics() -> None:
    rows = [
        {"metric": m, "series": s, "x_name": "layer", "x": float(x), "value": float(x)}
        for m in ("loss", "rank") for s in ("a", "b") for x in range(3)
    ]  # fmt: skip
    draws = [{"metric": "loss", "series": "a", "x_name": "draw", "x": float(x), "value": 0.0} for x in range(9)]
    drawn = curves(source(rows + draws, CURVE), None, "x", "series", "x_name", ("draw",))
    assert [d.figure.title for d in drawn] == ["loss", "rank"]
    assert all(d.figure.drawing.count("<polyline") == 2 for d in drawn)


def test_series_are_lines_of_their_own_even_where_x_tells_them_apart() -> None:
    rows = [{"series": "run", "x": float(x), "value": 1.0} for x in (0, 2, 4)]
    rows += [{"series": "other", "x": float(x), "value": 0.0} for x in (1, 3)]
    (drawn,) = curves(source(rows, CURVE), None, "x", "series")
    assert drawn.figure.drawing.count("<polyline") == 2


def test_the_table_holds_every_row_and_says_constants_once() -> None:
    rows = grid(2, 3, metric="kl")
    data = table_data(source(rows))
    columns = {c["name"]: c for c in data.payload["columns"]}
    assert data.payload["rows"] == 6
    assert data.payload["sort"] == "effect"
    assert columns["layer"]["values"] == [0, 0, 0, 1, 1, 1]
    assert columns["effect"]["values"][5] == 9.0
    assert columns["effect"]["low"][5] == 8.5
    assert "ci_low" not in columns
    assert ("metric", "kl", "metric") in data.constants


def test_only_intervals_are_called_intervals() -> None:
    rows = [
        {"setting": s, "seconds": v, "seconds_low": v - 1, "seconds_high": v + 1} for s, v in (("a", 2.0), ("b", 3))
    ]
    timing = source(rows, TIMING)
    assert timing.ends == ("seconds_low", "seconds_high")
    assert timing.confident is None
    (column,) = (c for c in table_data(timing).payload["columns"] if c["name"] == "seconds")
    assert column["between"] == "fastest to slowest"
    (drawn,) = largest(timing, None)
    assert "fastest to slowest [2, 4]" in drawn.figure.svg
    assert "95%" not in drawn.figure.svg
    counted = [{"metric": "site", "site": s, "margin_fp16": 3.0, "low": -9.0, "high": 9.0} for s in ("q", "k")]
    assert source(counted, NUMERICS).ends is None, "smallest and largest values are no interval of the margin"


def test_a_view_that_fails_is_said_and_the_page_is_made(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"layer": 0, "head": h, "pos": p, "effect": 1.0 + p} for h in range(2) for p in range(2)]

    def fails(source: Source, limit: float | None) -> list[object]:
        raise UserError("too large to draw")

    VIEWS.add("fails", View("Fails", fails, 1))  # type: ignore[arg-type]
    try:
        html = cell_page(replace(source(rows), run={"experiment": "e"})).html
    finally:
        VIEWS._rows.pop("fails")
    assert "Not drawn: too large to draw." in html
    assert "too large to draw" in caplog.text


def test_two_cells_stand_side_by_side_on_one_scale(tmp_path: Path) -> None:
    a, b = (of_cell(heads_cell(tmp_path, 2, 3, digest=d * 10, seed=s)) for s, d in ((0, "a"), (5, "b")))
    page = pair_page(a, b)
    payload = json.loads(re.findall(r'data-table>\s*<script type="application/json">(.*?)</script>', page.html)[0])
    columns = {c["name"]: c for c in payload["columns"]}
    want = b.frame["effect"].to_numpy() - a.frame["effect"].to_numpy()
    assert np.allclose(columns["difference"]["values"], want, atol=1e-5)
    assert payload["sort"] == "difference"
    assert page.html.count('data-view="layer-head"') == 2
    # both maps end at 9, the larger of the two tables' largest numbers
    assert set(re.findall(r">(−?\d+)</text>", page.figures["a-layer-head-1"].figure.svg)) >= {"−9", "9"}
    assert set(re.findall(r">(−?\d+)</text>", page.figures["b-layer-head-1"].figure.svg)) >= {"−9", "9"}


def test_tables_of_different_kinds_are_shown_but_not_compared(tmp_path: Path) -> None:
    html = pair_page(of_cell(edges_cell(tmp_path)), of_cell(own_cell(tmp_path))).html
    assert "different kinds" in html


def test_all_makes_a_page_for_every_table_and_an_index(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    cells = [heads_cell(results, 2, 3), edges_cell(results), own_cell(results)]
    bare = results / "all"
    bare.mkdir()
    (bare / "table.parquet").write_bytes((cells[0].path / "table.parquet").read_bytes())
    (bare / "report.md").write_text("# <b>Sweep</b>")
    index, *pages = write_all(results, out)
    assert [p.relative_to(out).as_posix() for p in pages] == [
        "activation_patching/gpt2.ioi-0000000000.html", "colours/-.--3333333333.html",
        "path_patching/m.t-2222222222.html", "all.html",
    ]  # fmt: skip
    linked = [a for a in Scripts(index.read_text()).addresses if a.endswith(".html")]
    assert sorted(linked) == sorted(p.relative_to(out).as_posix() for p in pages)
    assert all((out / "activation_patching" / a).resolve().is_file() for a in ["../index.html"])
    assert "&lt;b&gt;Sweep" in pages[-1].read_text()


def test_figures_are_written_beside_the_page(tmp_path: Path) -> None:
    cell = edges_cell(tmp_path)
    (page,) = write_pages([str(cell.path)], tmp_path, tmp_path / "out", figures=True)
    names = sorted(p.name for p in page.with_suffix("").iterdir())
    assert names == [f"{n}.{end}" for n in ("edges", "largest", "sender-receiver") for end in ("png", "svg")]


def test_a_long_table_is_compact(tmp_path: Path) -> None:
    page = cell_page(of_cell(long_cell(tmp_path, 2000)))
    assert len(page.html) < 1_500_000


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    edges_cell(results)
    words = ["--results", str(results), "--out", str(out)]
    assert main(["report", "path_patching/m.t-2222222222", *words]) == 0
    assert (out / "path_patching" / "m.t-2222222222.html").is_file()
    assert main(["report", *words]) == 2
    assert main(["report", "x", "--all", *words]) == 2
    assert main(["report", "--all", "--results", str(tmp_path / "none"), "--out", str(out)]) == 2
    errors = capsys.readouterr().err.strip().split("\n")
    assert errors[0] == "error: name the cells to show, or give --all"
    assert len(errors) == 3
