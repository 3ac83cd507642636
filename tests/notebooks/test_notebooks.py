"""The notebooks run as they stand, agree with their scripts, and hold no fault and no address to ask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest

from experiments.notebooks import __main__ as notebooks

HERE = notebooks.HERE
NAMES = ["bring_your_own", "debugging_a_layer", "first_circuit", "induction_from_weights", "ioi_end_to_end"]
MOST_BYTES = 400_000


def cells(notebook: Any) -> list[tuple[str, str]]:
    return [(c.cell_type, c.source) for c in notebook.cells]


def test_these_are_all() -> None:
    assert notebooks.names() == NAMES
    assert sorted(p.stem for p in HERE.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_script_and_notebook_hold_the_same_cells(name: str) -> None:
    held = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    assert cells(held) == cells(jupytext.read(HERE / f"{name}.py"))
    code = [c for c in held.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == [*range(1, len(code) + 1)], "not executed from top to bottom"
    assert [o for c in code for o in c.outputs if o.output_type == "error"] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_small_and_names_no_folder_of_ours(name: str) -> None:
    path = HERE / f"{name}.ipynb"
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < MOST_BYTES
    outputs = str([c.get("outputs") for c in nbformat.reads(text, as_version=4).cells])
    assert str(Path.home()) not in outputs.replace("/root/", "") or Path.home() == Path("/root")
    assert re.search(r"https?://(?!www\.w3\.org/2000/svg)", outputs) is None
    assert "<script" not in outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str) -> None:
    """Every claim of the text is asserted in a cell; an error in one raises here."""
    done = notebooks.execute(name)
    held = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    for new, old in zip(done.cells, held.cells, strict=True):
        kinds = [[o.output_type for o in c.get("outputs", [])] for c in (new, old)]
        assert kinds[0] == kinds[1], new.source


def test_the_picture_stands_where_the_readme_looks_for_it() -> None:
    text = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
    (place,) = re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", text)
    drawn = (HERE.parents[1] / place).read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert 25 <= drawn.count("<path") <= 30
    assert drawn.count('class="cell ') == 12
