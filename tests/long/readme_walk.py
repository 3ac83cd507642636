"""Walk the README: every command and code block as it is written, in an environment made from nothing.

    python -m tests.long.readme_walk FOLDER [PYTHON]        (`make readme-walk`)

Steps: copy the repository as a clone would have it into FOLDER; `make demo` there, which makes the environment;
then, with that environment activated, every Python block in one session, every command in order, and the example
package, installed and run. What is not walked is in `LEFT_OUT`, each with its reason.

Where the README says A, B and CELL for cells and pairs.csv for one's own file, they are made first.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests import readme_parts

LEFT_OUT = {
    "make test": "is what runs this",
    "make install": "make demo has just done it",
    "python3.11 -m venv": "the same environment for a GPU's build of torch",
    ".venv/bin/pip install torch": "the build for a GPU",
    "interp train": "trains from scratch; tests/training do so in short",
    "interp sweep run experiments/sweeps/all.yaml --backend slurm": "needs a cluster; tests/slurm have one",
}
SECTIONS_LEFT_OUT = {
    "Measured": "its command needs an otherwise idle machine",
    "Results in this repository": "all tables anew; a test holds each table to its command",
    "Supported models": "the whole audit; tests/experiments run it by kinds",
}
PAIRS = 'clean,corrupt,right,wrong\n"[7, 8, 7]","[7, 9, 7]",[8],[9]\n' + '"[5, 6, 5]","[5, 4, 5]",[6],[4]\n' * 5


@dataclass
class Walk:
    """One walk in one folder."""

    folder: Path
    python: str
    log: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "interp"

    def clone(self) -> None:
        """What a clone of the repository as it is now has."""
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=readme_parts.ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        for name in filter(None, names):
            source, target = readme_parts.ROOT / name, self.root / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def run(self, command: str, code: str | None = None) -> str:
        """A command in a shell with the environment activated, as the README says; its output."""
        activate = self.root / ".venv" / "bin" / "activate"
        script = (f". {activate}\n" if activate.exists() else "") + command
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "INTERP_RESULTS")}
        started = time.perf_counter()
        done = subprocess.run(
            ["bash", "-ec", script], cwd=self.root, env=kept, capture_output=True, text=True, timeout=1500, input=code
        )
        self.tell(f"{time.perf_counter() - started:7.1f} s  {command}")
        if done.returncode:
            raise RuntimeError(f"{command}\nexit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def tell(self, line: str) -> None:
        self.log.append(line)
        sys.stderr.write(line + "\n")

    def __call__(self) -> None:
        """All of it, in the README's order of need: make demo, blocks, commands, the example package."""
        self.clone()
        told = self.run(f"make demo PYTHON={self.python}")
        if "95% interval" not in told or "Files:" not in told:
            raise RuntimeError(f"make demo does not show what the README promises:\n{told}")
        self.run("python", code="\n".join(readme_parts.snippets()))
        self.run("interp run ablation --preset smoke --seed 1 && interp run ablation --preset smoke --seed 2")
        (self.root / "pairs.csv").write_text(PAIRS)
        a, b = sorted((self.root / "results" / "ablation").glob("*/run.json"), key=lambda p: p.stat().st_mtime)[-2:]
        for command in commands():
            reason = next((why for start, why in LEFT_OUT.items() if command.startswith(start)), None)
            if reason:
                self.tell(f"    left out  {command}: {reason}")
                continue
            of = self.newest(self.root / "build" / "sweeps" / "all", "*") if "interp sweep" in command else self.found()
            self.run(with_cells(command, str(a.parent), str(b.parent), str(of)))
        self.package()

    def found(self) -> Path:
        """The cell that found a circuit last."""
        return self.newest(self.root / "results", "circuit_discovery")

    def newest(self, results: Path, experiment: str) -> Path:
        """The cell of an experiment that was made last; a folder that is not there, where none was."""
        made = results.glob(f"{experiment}/*/run.json")
        return max(made, key=lambda p: p.stat().st_mtime, default=self.root / "no cell" / "run.json").parent

    def package(self) -> None:
        """The example package, installed as one's own would be, and used as the README says."""
        mine = self.root / "my-interp"
        for name, text in readme_parts.package().files.items():
            (mine / name).parent.mkdir(parents=True, exist_ok=True)
            (mine / name).write_text(text, encoding="utf-8")
        (toml,) = re.findall(r"^```toml\n(.*?)^```", readme_parts.TEXT, re.M | re.S)
        (mine / "pyproject.toml").write_text(toml, encoding="utf-8")
        self.run("cd my-interp && pip install -q -e .")
        for kind, name in (("experiments", "head_gain"), ("tasks", "copy_pair"), ("metrics", "margin")):
            if name not in self.run(f"interp list {kind}"):
                raise RuntimeError(f"interp list {kind} does not show {name}")
        self.run("interp run head_gain --task copy_pair")


def commands() -> Iterator[str]:
    """Every indented command of the README outside the sections left out, without its comment."""
    section = ""
    fenced = False
    for line in readme_parts.TEXT.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## "):
            section = line.removeprefix("## ")
        found = re.match(r"    (?=(?:interp|python|make|\.venv/bin/)\S* )(.*)", line)
        if found and not fenced and section not in SECTIONS_LEFT_OUT:
            yield shlex.join(shlex.split(found[1], comments=True)) if "#" in found[1] else found[1]


def with_cells(command: str, a: str, b: str, cell: str) -> str:
    """A command with cells in the place of A, B and CELL."""
    named = {"A": a, "B": b, "CELL": cell}
    return re.sub(r"(?<=[\s=])(A|B|CELL)(?=[\s/]|$)", lambda m: named[m[1]], command)


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    place.mkdir(parents=True)
    Walk(place, sys.argv[2] if len(sys.argv) > 2 else "python3.11")()
