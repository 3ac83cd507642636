"""The README followed as a newcomer would, in an environment made from nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.long import readme_walk


def test_what_is_walked_and_what_is_not() -> None:
    found = list(readme_walk.commands())
    assert len(found) > 15
    assert "make demo" in found
    assert any(c.startswith("python -m experiments.") for c in found)
    for start in readme_walk.LEFT_OUT:
        assert any(c.startswith(start) for c in found), f"{start} is left out, but the README has no such command"
    for section in readme_walk.SECTIONS_LEFT_OUT:
        assert f"\n## {section}\n" in readme_walk.readme_parts.TEXT
    assert readme_walk.with_cells("interp results compare A B", "x/1", "y/2", "") == "interp results compare x/1 y/2"
    assert readme_walk.with_cells("interp run --from A/run.json --out e", "x/1", "", "") == (
        "interp run --from x/1/run.json --out e"
    )
    assert readme_walk.with_cells("--set circuit=CELL/a.json", "", "", "z") == "--set circuit=z/a.json"


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_every_command_and_block(tmp_path: Path) -> None:
    if not shutil.which("make") or not shutil.which("git"):
        pytest.skip("needs make and git")
    walk = readme_walk.Walk(tmp_path / "walk", getattr(sys, "_base_executable", sys.executable))
    walk.folder.mkdir()
    walk()
    assert len(walk.log) > 20
