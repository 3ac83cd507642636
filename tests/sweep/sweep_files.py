"""Sweep files of probes, written and planned in a folder of their own."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from interp.sweep.plan import Plan, make_plan


class Sweeps:
    """Writes a sweep file and plans it; cells go to `out` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "some.yaml"

    def write(self, text: str) -> Path:
        self.file.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return self.file

    def plan(self, text: str, preset: str | None = None) -> Plan:
        return make_plan(self.write(text), preset, self.folder / "out")
