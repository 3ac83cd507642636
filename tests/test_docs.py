"""`make docs`: a page for every module, with its docstrings, that asks the network for nothing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def command(out: Path) -> list[str]:
    """What `make docs` runs, with another folder."""
    told = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = re.findall(r"^\S*/(pdoc .*)$", told, re.M)
    return [sys.executable, "-m", *shlex.split(line.replace("build/docs", str(out)))]


@pytest.mark.slow
def test_every_module_has_its_page(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    for package in ("interp", "experiments"):
        for source in (ROOT / package).rglob("*.py"):
            parts = source.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__main__" or "notebooks" in parts:
                continue
            page = tmp_path.joinpath(*(parts[:-1] if parts[-1] == "__init__" else parts)).with_suffix(".html")
            assert page.is_file(), f"{source.relative_to(ROOT)} has no page"
    html = (tmp_path / "interp" / "interventions" / "patching.html").read_text(encoding="utf-8")
    assert "Patch each part of the sites from the pair" in html
    for page in tmp_path.rglob("*.html"):
        asked = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert asked == [], page.name
