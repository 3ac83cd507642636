"""Figures: what is drawn is what was given, text is escaped, and scales are centred at 0."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from interp import plots
from interp.plots import colours
from interp.plots.attention import pixels, widget
from interp.plots.bundle import embedded, script
from interp.plots.circuit_graph import drawable, node_order
from interp.plots.svg import escape, number, ticks, visible
from interp.registry import UserError

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ["</script><script>alert(1)</script>", "\"'`", "\u2028", "\x00", "\u202eabc", "<img src=x onerror=alert(1)>",
           "a\nb", "🙂", "{{ 7*7 }}", "\ud800"]  # fmt: skip


def parsed(figure: plots.Figure) -> ET.Element:
    return ET.fromstring(figure.svg)


def cells(figure: plots.Figure) -> dict[str, ET.Element]:
    return {e.attrib["data-at"]: e for e in parsed(figure).iter(f"{SVG}rect") if "data-at" in e.attrib}


def test_a_heat_map_has_a_cell_per_value_with_its_interval() -> None:
    values = np.array([[1.0, -2.0], [0.5, np.nan]])
    figure = plots.heatmap(
        values, ["0", "1"], ["0", "1"], low=values - 1, high=values + 1, unit="logits", row_title="layer",
        column_title="head",
    )  # fmt: skip
    found = cells(figure)
    assert sorted(found) == ["0,0", "0,1", "1,0", "1,1"]
    assert found["0,1"].find(f"{SVG}title").text == "layer 0 · head 1\n−2 logits\n95% [−3, −1]"
    assert found["1,1"].find(f"{SVG}title").text == "layer 1 · head 1\nno value"
    classes = {at: e.attrib["class"].split()[1] for at, e in found.items()}
    # ±2 is the scale's end: −2 is the strongest orange, 1 half-way up the blue, 0.5 a quarter
    assert classes == {"0,0": "p12", "0,1": "n25", "1,0": "p6", "1,1": "na"}
    # intervals of 1 and 0.5 reach 0: two dots, and one in the legend
    assert len(list(parsed(figure).iter(f"{SVG}circle"))) == 3


def test_one_limit_makes_maps_comparable() -> None:
    weak, strong = (plots.heatmap([[v]], ["0"], ["0"], limit=4.0) for v in (1.0, 4.0))
    assert "p6" in cells(weak)["0,0"].attrib["class"]
    assert "p25" in cells(strong)["0,0"].attrib["class"]


def test_the_scale_is_centred_and_told_apart_by_lightness_alone() -> None:
    def grey(value: float) -> float:
        r, g, b = colours.rgb(value, 1.0)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    assert colours.level(0.0, 1.0) == colours.level(-0.001, 1.0) == "p0"
    assert colours.rgb(0.0, 1.0) == colours.rgb(-0.0, 1.0)
    for sign in (1, -1):
        lightness = [grey(sign * v) for v in np.linspace(0, 1, 11)]
        assert all(a > b for a, b in pairwise(lightness))
    # blue against orange: red and blue channels order the two sides in opposite ways at every strength
    for v in (0.2, 0.5, 1.0):
        (r1, _, b1), (r2, _, b2) = colours.rgb(v, 1.0), colours.rgb(-v, 1.0)
        assert b1 > r1
        assert r2 > b2


@pytest.mark.parametrize("token", HOSTILE)
def test_hostile_text_is_text(token: str) -> None:
    n = 2
    series = "s" if token == "\ud800" else token  # a frame's texts cannot hold half a character
    named = pd.DataFrame({"x": [0, 1], "value": [0, 1], "series": [series] * 2})
    figures = [
        plots.heatmap(np.eye(n), [token, "b"], [token, "c"], title=token, unit=token, row_title=token),
        plots.bars([1.0, 2.0], [token, "b"], title=token, unit=token),
        plots.tokens([1.0, -1.0], [token, "b"], title=token, unit=token),
        plots.attention(np.ones((1, n, n)), [token, "b"], [token], title=token),
        plots.lines(named, title=token, unit=token),
    ]
    for figure in figures:
        root = parsed(figure)  # well-formed, so nothing broke out of its place
        allowed = {"svg", "style", "rect", "text", "title", "line", "circle", "polyline", "polygon", "image", "path"}
        assert {e.tag.removeprefix(SVG) for e in root.iter()} <= allowed
        assert "<script" not in figure.html
        assert "<img" not in figure.html
        figure.html.encode("utf-8")


def test_hidden_characters_are_shown() -> None:
    assert visible("a\n\t\x00\u2028\u202e\ud800") == "a⏎⇥␀⟨2028⟩⟨202E⟩⟨D800⟩"
    assert escape("<&\"'") == "&lt;&amp;&quot;&#x27;"
    assert number(-1.5) == "−1.5"
    assert number(None) == number(float("inf")) == "–"


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(-0.31, 0.29, 4) == [-0.2, 0, 0.2]


def test_lines_draw_every_point_where_it_belongs() -> None:
    frame = pd.DataFrame({"x": [2, 0, 1], "value": [20.0, 0.0, 10.0], "ci_low": [18, -2, 8], "ci_high": [22, 2, 12]})
    drawing = parsed(plots.lines(frame, x_title="layer", unit="logits"))
    (line,) = drawing.iter(f"{SVG}polyline")
    points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points  # sorted by x, straight, rising
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y2
    tips = [c.find(f"{SVG}title").text for c in drawing.iter(f"{SVG}circle")]
    assert tips[2] == "layer 2\n20 logits\n95% [18, 22]"
    assert len(list(drawing.iter(f"{SVG}polygon"))) == 1


def test_a_wide_range_of_x_is_drawn_in_powers() -> None:
    frame = pd.DataFrame({"x": [1, 10, 100], "value": [0.0, 1.0, 2.0]})
    (line,) = parsed(plots.lines(frame)).iter(f"{SVG}polyline")
    x = [float(p.split(",")[0]) for p in line.attrib["points"].split()]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)


def test_a_graph_has_layers_as_rows_and_width_by_score() -> None:
    edges = [
        {"src": "input", "dst": "a0.h1<q>", "score": 4.0, "low": 3.0, "high": 5.0},
        {"src": "a0.h1", "dst": "m1", "score": -1.0}, {"src": "m1", "dst": "logits", "score": 2.0},
    ]  # fmt: skip
    drawing = parsed(plots.circuit_graph(edges, unit="logits"))
    height = {
        e.attrib["data-node"]: float(e.attrib["y"]) for e in drawing.iter(f"{SVG}rect") if "data-node" in e.attrib
    }
    assert height["logits"] < height["m1"] < height["a0.h1"] < height["input"]
    paths = {e.attrib["data-rank"]: e for e in drawing.iter(f"{SVG}path")}
    assert float(paths["0"].attrib["stroke-width"]) == pytest.approx(6.0)
    assert float(paths["1"].attrib["stroke-width"]) == pytest.approx(0.8 + 5.2 / 2)
    assert "down" in paths["2"].attrib["class"]
    assert paths["0"].find(f"{SVG}title").text == "input → a0.h1<q>\n4 logits\n95% [3, 5]"


def test_of_many_edges_the_largest_are_drawn_and_the_figure_says_so() -> None:
    edges = [{"src": "input", "dst": f"a0.h{i}<v>", "score": float(i)} for i in range(10)]
    figure = plots.circuit_graph(edges, most=3)
    assert len(re.findall("data-rank", figure.svg)) == 3
    assert "3 largest of 10 edges" in figure.about
    assert "a0.h9" in figure.svg
    assert "a0.h1<" not in figure.svg


def test_names_of_nodes() -> None:
    assert drawable("a1.h0<k>")
    assert not drawable("a1.h0<k>+a1.h1<k>")
    names = ["logits", "m0", "a1.h0<v>", "input", "a1.h0<q>", "a0.h10", "a0.h2"]
    assert sorted(names, key=node_order) == ["input", "a0.h2", "a0.h10", "m0", "a1.h0<q>", "a1.h0<v>", "logits"]


def test_attention_keeps_weights_and_says_whether_it_is_causal() -> None:
    patterns = np.array([[[1.0, 0.0], [0.25, 0.75]]])
    props = widget(patterns, ["a", "</script>"], ["L0.h0"])
    assert props["attention"] == [[[1.0, 0.0], [0.25, 0.75]]]
    assert props["maskUpperTri"] is True
    assert widget(np.full((1, 2, 2), 0.5), ["a", "b"])["maskUpperTri"] is False
    assert pixels(patterns[0], 1.0).startswith("data:image/png;base64,iVBOR")


def test_the_bundle_and_props_cannot_end_their_script() -> None:
    assert re.search(r"<(/script|!--|script)", script(), re.IGNORECASE) is None
    assert "sourceMappingURL" not in script()
    said = embedded({"t": HOSTILE[:-1]})
    assert not set("<>&\u2028\u2029") & set(said)


def test_wrong_input_is_one_line() -> None:
    with pytest.raises(UserError, match=r"values must have the shape \[1, 2\], got \[1, 1\]"):
        plots.heatmap([[1.0]], ["a"], ["b", "c"])
    with pytest.raises(UserError, match="too large to draw"):
        plots.heatmap(np.zeros((200, 200)), range(200), range(200))
    with pytest.raises(UserError, match="not a node: 'x3'"):
        plots.circuit_graph([{"src": "x3", "dst": "logits", "score": 1.0}])
    with pytest.raises(UserError, match="no column 'x'"):
        plots.lines(pd.DataFrame({"value": [1.0]}))
    with pytest.raises(UserError, match="no point"):
        plots.lines(pd.DataFrame({"x": [1.0], "value": [np.nan]}))
    with pytest.raises(UserError, match="3 tokens"):
        plots.attention(np.zeros((1, 2, 2)), ["a", "b", "c"])
    with pytest.raises(UserError, match=r"\.svg, \.png, \.html"):
        plots.bars([1.0], ["a"]).save("figure.pdf")


def test_figures_are_written_as_svg_and_png(tmp_path: object) -> None:
    figure = plots.bars([1.0, -2.0], ["a", "b"], low=[0.5, -3.0], high=[1.5, -1.0])
    assert figure.save(f"{tmp_path}/f.svg").read_text().startswith("<svg")
    assert figure.save(f"{tmp_path}/f.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<style>" in figure._repr_html_()


def test_a_printed_figure_is_one_short_line() -> None:
    figure = plots.heatmap(np.zeros((30, 30)), [str(i) for i in range(30)], [str(i) for i in range(30)], title="Heads")
    assert str(figure) == repr(figure) == "<figure 'Heads': .save(…) writes .svg, .png, .html>"
    assert repr(plots.Figure("<svg></svg>")).startswith("<figure 'without a title'")
