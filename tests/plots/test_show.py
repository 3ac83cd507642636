"""Every value shows itself: cards hold the right numbers, escape what they show, and load nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import interp
from interp.circuits.values import Circuit
from interp.graph import Graph
from interp.interventions.pictures import heatmap_of
from interp.plots.show import card, largest, table
from interp.registry import UserError
from tests.tiny import tiny

HOSTILE = "</script><img src=x onerror=alert(1)>&\u202e"


class Reading(HTMLParser):
    """Text, tags and every attribute of a piece of HTML; tags must close in order."""

    VOID = ("image", "rect", "path", "line", "circle", "img", "meta", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.said: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(k, v or "") for k, v in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(k, v or "") for k, v in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.said)


def seen(value: Any) -> Reading:
    """What a notebook would show of a value; nothing in it may run, or ask for anything."""
    html = value._repr_html_()
    read = Reading(html)
    assert "script" not in read.tags
    assert not [k for k, _ in read.attributes if k.startswith("on")]
    addresses = [v for k, v in read.attributes if k in ("src", "href")]
    assert all(a.startswith("data:image/png") for a in addresses)
    assert "url(" not in html
    assert "@import" not in html
    return read


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("gpt2")


@pytest.fixture(scope="module")
def task(model: Any) -> Any:
    rows = [{"clean": [i, 7, 8], "corrupt": [i, 9, 8], "right": [5], "wrong": [6]} for i in range(1, 9)]
    return interp.task_from_table(rows, model, name="pairs")


def test_a_card_escapes_what_it_shows() -> None:
    html = card(HOSTILE, {HOSTILE: HOSTILE}, [{HOSTILE: HOSTILE}], about=HOSTILE)
    read = Reading(html)
    assert {*read.tags} == {"div", "style", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert read.text.count("</script><img src=x onerror=alert(1)>&⟨202E⟩") == 6


def test_numbers_missing_values_and_long_tables() -> None:
    frame = pd.DataFrame({"name": ["a", None], "value": [0.123456, np.nan], "n": pd.array([3, None], dtype="Int64")})
    frame["empty"] = None
    read = Reading(table(frame))
    assert [t for t in read.said if t.strip()] == ["name", "value", "n", "a", "0.1235", "3"]
    assert "2 of 5 rows" in Reading(table(pd.DataFrame({"x": range(5)}), most=2)).text


def test_largest_first_nulls_last() -> None:
    assert largest(pd.DataFrame({"x": [1.0, np.nan, -3.0, 2.0]}), "x")["x"].tolist()[:3] == [-3.0, 2.0, 1.0]


def test_model_and_sites(model: Any) -> None:
    said = seen(model).text
    assert "tiny-gpt2" in said
    assert re.search(r"heads\s+4", said)
    sites = model.sites()
    assert seen(sites).text.count("residual entering the block") == 1
    assert isinstance(sites, dict)
    assert sites["z"].axes == ("batch", "pos", "head", "d_head")


def test_task_shows_its_first_pairs(task: Any) -> None:
    read = seen(task)
    assert "1 7 8" in read.text
    assert "1 9 8" in read.text
    assert "6 7 8" not in read.text


def test_run_shows_shapes_and_draws_attention(model: Any, task: Any) -> None:
    run = model.run(task.clean, capture=["pattern", "L1.z"])
    said = seen(run).text
    assert "8 × 3 × 50" in said
    assert "8 × 3 × 4 × 8" in said
    drawn = run.attention(-1, prompt=2, heads=[0, 3])
    assert "layer 1, prompt 2" in drawn.title
    read = seen(drawn)
    assert {"L1.H0", "L1.H3", "3", "7", "8"} <= {*read.said}
    assert read.tags.count("image") == 2
    with pytest.raises(UserError, match=r"L0.pattern was not captured.*Patterns of this run: none"):
        model.run(task.clean, capture=["z"]).attention(0)
    with pytest.raises(UserError, match="prompt 9 of a run of 8"):
        run.attention(0, prompt=9)
    with pytest.raises(UserError, match="head 4 of a layer of 4 heads"):
        run.attention(0, heads=[4])


def test_attention_leaves_padding_out(model: Any) -> None:
    prompts = interp.Prompts.of([[5, 6, 7, 8], [9, 10]], pad_side="left")
    read = seen(model.run(prompts, capture=["pattern"]).attention(0, prompt=1))
    assert {"9", "10"} <= {*read.said}
    assert "0" not in read.said


def test_effects_are_drawn_where_they_belong(model: Any, task: Any) -> None:
    effects = interp.patch(model, task, sites="z", by="head")
    drawn = effects.heatmap()
    grid, layers, heads = effects.grid()
    assert (layers, heads) == ([0, 1], [0, 1, 2, 3])
    tips = re.findall(r"<title>([^<]*)</title>", drawn.drawing)
    cells = [t for t in tips if "logits" in t]
    assert len(cells) == grid.size
    for (layer, head), value in np.ndenumerate(grid):
        (own,) = [t for t in cells if t.startswith(f"L{layer} · H{head}\n")]
        assert float(own.split("\n")[1].split()[0].replace("−", "-")) == pytest.approx(value, rel=1e-2, abs=1e-9)
    row = effects.table().set_index(["layer", "head"]).loc[(1, 2)]
    (own,) = [t for t in cells if t.startswith("L1 · H2\n")]
    low, high = re.findall(r"\[(\S+), (\S+)\]", own)[0]
    assert float(low.replace("−", "-")) == pytest.approx(row["ci_low"], rel=1e-2, abs=1e-9)
    assert float(high.replace("−", "-")) == pytest.approx(row["ci_high"], rel=1e-2, abs=1e-9)
    assert "of 8 rows" not in seen(effects).text  # all 8 fit


def test_effects_of_several_sites_and_axes(model: Any, task: Any) -> None:
    two = interp.patch(model, task, sites=["resid_pre", "mlp_out"], by="position")
    drawn = two.heatmap()
    assert {"L0.resid_pre", "L1.mlp_out"} <= {*Reading(drawn.drawing).said}
    assert "L1.mlp_out" not in Reading(two.heatmap(site="resid_pre").drawing).said
    three = interp.patch(model, task, sites="z", by="head+position")
    with pytest.raises(UserError, match=r"vary by pos too; choose: heatmap\(pos=0\)"):
        three.heatmap()
    assert "pos 1" in three.heatmap(pos=1).title
    with pytest.raises(UserError, match=r"no effect has {'pos': 7}; there are: {'pos': \[0, 1, 2\]}"):
        three.heatmap(pos=7)
    with pytest.raises(UserError, match="unknown column of these effects: 'kind'"):
        heatmap_of(three, "layer", None, {"kind": 1})
    read = seen(three)
    assert "10 of 24 rows" in read.text
    assert "svg" not in read.tags  # a table without a picture


def test_labels_stand_in_the_order_of_the_prompt(model: Any) -> None:
    rows = [
        {"clean": [i, 7, 8], "corrupt": [i, 9, 8], "right": [5], "wrong": [6], "label:z_first": 0, "label:a_last": 2}
        for i in range(1, 7)
    ]
    own = interp.task_from_table(rows, model)
    said = Reading(interp.patch(model, own, sites="resid_pre", by="label").heatmap().drawing).said
    assert said.index("z_first") < said.index("a_last")


def test_plan_circuit_and_attribution(model: Any, task: Any) -> None:
    effects = interp.patch(model, task, sites="z", by="head")
    assert re.search(r"interventions\s+8", seen(effects.plan).text)
    graph = Graph(model.geometry)
    circuit = Circuit.of(graph, ["input->a0.h1<q>", "a0.h1->logits"])
    read = seen(circuit)
    assert f"2 of {len(graph.edges)}" in read.text
    assert {"input", "a0.h1", "logits"} <= {*read.said}
    assert read.tags.count("path") == 2
    assert seen(Circuit.empty(graph)).tags.count("path") == 0
    scored = circuit.with_scores(circuit.mask.double() * -0.5)
    assert scored.draw().drawing.count('class="edge down"') == 2
    direct = interp.direct_logit_attribution(model, task)
    read = seen(direct)
    assert f"{float(direct.logit_diff.mean()):.4g}".replace("-", "−") in read.text
    assert "L1.H0" in read.text


def test_cells_show_themselves(tmp_path: Path) -> None:
    cell = interp.run_cell("ablation", {"model": "toy-ioi", "task": "ioi", "n": 6}, out=tmp_path)
    read = seen(cell)
    assert "toy-ioi" in read.text
    assert "10 of 12 rows" in read.text
