"""Pages in chromium, network off: hover, keys, sort, search, click, colours; hostile tokens are text; speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.pages import TOKENS

Open = Callable[..., Any]


def rows(page: Any) -> list[list[str]]:
    """Texts of the table's rows in view."""
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('.line')].filter(r => r.style.display !== 'none')"
        ".map(r => [...r.children].map(c => c.textContent))"
    )
    return found


def test_hovering_shows_value_and_interval(opened: Open) -> None:
    page = opened("heads")
    page.hover("[data-view=layer-head] [data-at='1,2']")
    assert page.inner_text("#tip") == "layer 1 · head 2\n9 logits\n95% [8.5, 9.5]"
    page.hover("h1")
    assert page.is_hidden("#tip")


def test_arrow_keys_walk_through_a_map(opened: Open) -> None:
    page = opened("heads")
    page.focus("[data-view=layer-head] svg")
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.inner_text("#tip").startswith("layer 1 · head 2\n9 logits")
    assert page.get_attribute("[data-view=layer-head] .here", "data-at") == "1,2"


def test_sorting_and_searching(opened: Open) -> None:
    page = opened("heads")
    assert rows(page)[0][:3] == ["1", "2", "9"], "largest first"
    page.click(".head button:has-text('effect')")
    page.click(".head button:has-text('effect')")
    values = [float(r[2].replace("−", "-")) for r in rows(page)]
    assert values == sorted(values)
    assert page.get_attribute(".head .sorted", "aria-sort") == "ascending"
    page.fill(".tools input", "layer=1 effect>8")
    assert page.inner_text(".tools span") == "1 of 144 rows"
    page.fill(".tools input", "L11.h3")
    assert [r[:2] for r in rows(page)] == [["11", "3"]]
    page.fill(".tools input", "no such word")
    assert rows(page) == []
    page.fill(".tools input", "")
    assert page.inner_text(".tools span") == "144 rows"


def test_the_table_by_keyboard(opened: Open) -> None:
    page = opened("heads")
    page.focus(".scroller")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "9 [8.5, 9.5]" in page.inner_text(".detail")
    page.keyboard.press("End")
    assert page.get_attribute(".line.here", "aria-rowindex") == "145"
    page.keyboard.press("Escape")
    assert page.is_hidden(".detail")


def test_a_click_keeps_an_edge(opened: Open) -> None:
    page = opened("edges")
    box = page.locator("svg.circuit .edge[data-rank='0']").bounding_box()
    # the curve's middle: half-way between its ends
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.inner_text(".kept-edge").startswith("input → a0.h1<q>\n4 logits")
    page.click("svg.circuit [data-node='a1.h0']")
    assert page.inner_text(".kept-edge").startswith("a1.h0: 2 edges")
    page.focus("svg.circuit")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.inner_text(".kept-edge").startswith("a0.h1 → a1.h0<v>\n−2 logits")


def test_attention_is_drawn_by_circuitsvis_a_layer_at_a_time(opened: Open) -> None:
    page = opened("heads")
    first = page.locator("[data-component]").first
    first.scroll_into_view_if_needed()
    page.wait_for_selector("#attention-1-view canvas")
    assert "h11" in first.inner_text()
    page.select_option(".choose select >> nth=0", "L3")
    page.wait_for_selector("#attention-1-view canvas")


def test_hostile_tokens_are_text(opened: Open) -> None:
    page = opened("heads")
    for at in range(0, 4000, 600):
        page.evaluate("y => scrollTo(0, y)", at)
        page.wait_for_timeout(50)
    page.wait_for_selector("#attention-2-view canvas")
    assert page.evaluate("window.hacked") is None
    words = page.evaluate("[...document.querySelectorAll('.word')].map(w => w.textContent)")
    assert words[1] == TOKENS[1]
    assert words[6] == TOKENS[6].replace(" ", "·")
    assert words[7] == "{{·7*7·}}"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert TOKENS[1] in page.inner_text(".constants")


def test_light_and_dark(opened: Open) -> None:
    page = opened("heads", color_scheme="dark")
    paper = "getComputedStyle(document.querySelector('.ip')).backgroundColor"
    dark = page.evaluate(paper)
    page.click("#theme")
    light = page.evaluate(paper)
    assert (dark, light) == ("rgb(23, 26, 31)", "rgb(255, 255, 255)")
    page.click("#theme")
    assert page.evaluate(paper) == dark


@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("name", ["heads", "edges", "pair"])
def test_nothing_is_wider_than_the_screen(opened: Open, name: str, width: int) -> None:
    page = opened(name)
    page.set_viewport_size({"width": width, "height": 900})
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('.ip svg text')].filter(t => t.getClientRects().length)"
        ".map(t => parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b)))"
    )
    assert smallest >= 9


def test_a_page_of_144_heads_opens_at_once(opened: Open, pages: dict[str, Path]) -> None:
    page = opened("heads")
    started = time.perf_counter()
    page.goto(pages["heads"].as_uri())
    page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    assert pages["heads"].stat().st_size < 5_000_000
    assert time.perf_counter() - started < 4  # 0.7 s alone on a core; tests share theirs


def test_a_hundred_thousand_rows_sort_and_scroll(opened: Open) -> None:
    page = opened("long")
    assert page.inner_text(".tools span") == "100,000 rows"
    assert page.evaluate("document.querySelectorAll('.line').length") < 60
    median = page.evaluate("""async () => {
      const medians = [], frame = () => new Promise(r => requestAnimationFrame(r));
      const box = document.querySelector('.scroller'), heads = [...document.querySelectorAll('.head button')];
      const deeds = [() => heads.find(b => b.textContent.startsWith('effect')).click(),
                     () => heads.find(b => b.textContent.startsWith('method')).click(),
                     () => { box.scrollTop = (box.scrollTop + 654321) % 2900000; }];
      for (const deed of deeds) {
        const times = [];
        for (let k = 0; k < 5; k++) { await frame(); const t = performance.now(); deed(); await frame(); times.push(performance.now() - t); }
        medians.push(times.sort((a, b) => a - b)[2]);
      }
      return medians;
    }""")  # noqa: E501
    assert all(t < 400 for t in median), median  # 30 to 50 ms alone on a core; tests share theirs
    page.click(".head button:has-text('method')")
    page.evaluate("document.querySelector('.scroller').scrollTop = 1e9")
    page.wait_for_timeout(100)
    assert len(rows(page)) > 10
