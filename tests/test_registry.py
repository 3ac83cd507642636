"""Registries: rows of ours, rows from entry points, and one helpful error for what is wrong with either."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from interp.registry import Registry, UserError


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[int]:
    """A registry of whole numbers whose group a package fills: one good row, three bad ones."""
    (tmp_path / "brought_numbers.py").write_text("SEVEN = 7\nWORD = 'seven'\n")
    info = tmp_path / "brought_numbers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought-numbers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[interp.test_numbers]\nseven = brought_numbers:SEVEN\nword = brought_numbers:WORD\n"
        "eight = brought_numbers:EIGHT\nnine = brought_nowhere:NINE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("number", group="interp.test_numbers", of=int)


def test_names_are_listed_without_importing(brought: Registry[int]) -> None:
    brought.add("one", 1)
    assert brought.names() == ["eight", "nine", "one", "seven", "word"]
    assert ("seven" in brought, "two" in brought) == (True, False)
    assert brought.where("seven") == "brought_numbers:SEVEN"
    assert "brought_numbers" not in sys.modules


def test_a_row_is_loaded_once(brought: Registry[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert brought["seven"] == 7
    monkeypatch.setattr(EntryPoint, "load", lambda self: pytest.fail("loaded twice"))
    assert brought["seven"] == 7


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nine", "number 'nine' of package brought-numbers (brought_nowhere:NINE) cannot be loaded: No module named"),
        ("eight", "(brought_numbers:EIGHT) cannot be loaded: "),
        ("word", "number 'word' of package brought-numbers (brought_numbers:WORD) is a str, a int was expected"),
        ("sevn", "unknown number 'sevn'; did you mean seven? There are: eight, nine, seven, word"),
    ],
)
def test_what_is_wrong_with_a_row(brought: Registry[int], name: str, says: str) -> None:
    with pytest.raises(UserError) as raised:
        brought[name]
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_our_row_goes_before_one_of_the_same_name(brought: Registry[int]) -> None:
    brought.add("seven", 77)
    assert (brought["seven"], brought.where("seven")) == (77, None)


def test_a_name_is_taken_once() -> None:
    registry: Registry[object] = Registry("thing")

    @registry.register()
    def first() -> None: ...

    assert registry["first"] is first
    with pytest.raises(UserError, match="thing 'first' is already registered"):
        registry.add("first", 2)
    with pytest.raises(UserError, match=r"unknown thing 'x'\. There are: first"):
        registry["x"]
