"""Progress bars: rate and time left while they run, and no trace on the terminal however they end."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import interp.context
from interp.cells import Experiment, run_cell
from interp.context import Config, Context
from interp.interventions.options import bar
from interp.progress import Bar, rate

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What bars write, as on a terminal."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    monkeypatch.setattr(interp.context, "Bar", lambda about, total=None: Bar(about, total, console))
    return written


def context(show: bool = True) -> Context:
    return Context(Config(), "cpu", "float32", None, None, False, Path("nowhere"), show)


def test_rate() -> None:
    assert (rate(2.0), rate(1.0), rate(0.1), rate(0.0)) == ("2.0/s", "1.0/s", "10.0 s each", "")


@pytest.mark.parametrize("way", ["items", "steps"])
def test_rate_and_time_left_are_shown(terminal: io.StringIO, way: str) -> None:
    about = context()
    if way == "items":
        for _ in about.progress(range(8), "heads"):
            time.sleep(0.06)
    else:
        step = bar(about, "heads")
        assert step is not None
        for i in range(8):
            time.sleep(0.06)
            step(i + 1, 8)
    text = terminal.getvalue()
    assert "heads" in text
    assert "/8" in text
    assert "/s" in text
    assert "left" in text
    assert "0:00:0" in text
    assert text.count(HIDE) == text.count(SHOW) == 1


def test_nothing_is_shown_where_none_is_wanted(terminal: io.StringIO) -> None:
    assert list(context(show=False).progress(range(3), "heads")) == [0, 1, 2]
    assert bar(context(show=False), "heads") is None
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("way", ["items", "steps"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cursor_comes_back(terminal: io.StringIO, tmp_path: Path, way: str, error: type[BaseException]) -> None:
    def run(config: Any, about: Context) -> Any:
        if way == "items":
            for _ in about.progress(range(5), "heads"):
                raise error
        step = bar(about, "heads")
        assert step is not None
        step(1, 5)
        raise error

    with pytest.raises(error):
        run_cell(Experiment("cut", 1, Config, run), {}, out=tmp_path, show=True)
    assert terminal.getvalue().count(HIDE) == terminal.getvalue().count(SHOW) == 1
