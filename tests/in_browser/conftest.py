"""A real browser for pages: Debian's chromium, with the network off; skips, saying so, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interp.report import write_pages
from tests.report.pages import edges_cell, heads_cell, long_cell

CHROMIUM = "/usr/bin/chromium"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs them all, so that one browser is started; they are no tests of seconds."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser; its pages come from files, so no socket is opened but the driver's own pipes."""
    api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright (the dev extra)")
    path = os.environ.get("CHROMIUM") or (CHROMIUM if Path(CHROMIUM).exists() else shutil.which("chromium"))
    if not path:
        pytest.skip("browser tests need chromium at /usr/bin/chromium (make ci-system), which is absent")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name: heads (144, hostile tokens), edges, long (100,000 rows), pair."""
    results, out = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("pages")
    cells = {"heads": heads_cell(results), "edges": edges_cell(results), "long": long_cell(results, 100_000)}
    other = heads_cell(results, digest="f" * 10, seed=3)
    made = {name: write_pages([str(cell.path)], results, out)[0] for name, cell in cells.items()}
    made["pair"] = write_pages([str(cells["heads"].path), str(other.path)], results, out)[0]
    return made


def seen_by_the_page(act: Callable[..., Any], page: Any) -> Callable[..., Any]:
    """An action that returns when the page has had two frames to answer it: on a busy machine events come late."""

    def acted(*args: Any, **kwargs: Any) -> None:
        act(*args, **kwargs)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    return acted


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Opens a page by name; at the end no request may have been tried and nothing be on the console."""
    said: list[str] = []
    contexts = []

    def open_page(name: str, **settings: Any) -> Any:
        context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900}, **settings)
        contexts.append(context)

        def refuse(route: Any) -> None:
            said.append(f"request {route.request.url}")
            route.abort()

        page = context.new_page()
        page.route(lambda url: not url.startswith(("file:", "data:")), refuse)
        page.on("console", lambda m: said.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: said.append(f"error: {e}"))
        page.goto(pages[name].as_uri())
        for actor, names in (
            (page, ("click", "fill", "hover")),
            (page.keyboard, ("press",)),
            (page.mouse, ("click", "move")),
        ):
            for act in names:
                setattr(actor, act, seen_by_the_page(getattr(actor, act), page))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
