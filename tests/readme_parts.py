"""The README cut into what tests try: commands, snippets, paths, and the files of its example package."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Every indented line that starts with `interp` or `python -m experiments.…`, as words, without its comment."""
    lines = re.findall(r"^    ((?:interp|python -m experiments\.)[ \w].*)$", TEXT, re.M)
    return [shlex.split(line, comments=True) for line in lines]


def snippets() -> list[str]:
    """The Python blocks, in order, but for the files of the example package; they share names."""
    text = re.sub(r"^`my_interp/\w+\.py`.*?\n\n```python\n.*?^```", "", TEXT, flags=re.M | re.S)
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def paths(section: str = "") -> list[str]:
    """Everything in backticks that looks like a path of this repository."""
    text = TEXT.split(f"## {section}")[1].split("\n## ")[0] if section else TEXT
    named = re.findall(r"`([\w./-]+)`", text)
    top = ("interp/", "experiments/", "tests/")
    return [n for n in named if n.startswith(top) or re.fullmatch(r"[A-Z]+\.md|pyproject\.toml", n)]


@dataclass(frozen=True)
class Package:
    """The example package: its files by path, and its entry points as an ini file."""

    files: dict[str, str]
    entry_points: str

    def install(self, folder: Path) -> None:
        """Put it there as pip would: its modules, and metadata with its entry points."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        info = folder / "my_interp-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-interp\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(self.entry_points)


def package() -> Package:
    """What the section "From a package of your own" shows."""
    import tomllib

    files = dict(re.findall(r"^`(my_interp/\w+\.py)`.*?\n\n```python\n(.*?)^```", TEXT, re.M | re.S))
    (toml,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.M | re.S)
    groups = tomllib.loads(toml)["project"]["entry-points"]
    ini = "".join(f"[{g}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items()) for g, rows in groups.items())
    return Package({"my_interp/__init__.py": "", **files}, ini)
