"""`python -m experiments.notebooks [NAME…]`: run the paired scripts and write the notebooks beside them.

Each `NAME.py` (jupytext's percent format) is the source; `NAME.ipynb` is the same cells with what they put out. Every
notebook runs in a kernel of its own; a cell that raises stops it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMEOUT = 150
"""Seconds a cell may take."""


def names() -> list[str]:
    """All notebooks."""
    return sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))


def execute(name: str) -> Any:
    """The notebook of a script, executed; an error in a cell raises."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(HERE / f"{name}.py")
    NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(HERE.parents[1])}},
    ).execute()  # fmt: skip
    return tidy(notebook)


def tidy(notebook: Any) -> Any:
    """Without what differs from one machine or run to the next: interpreter, progress bars, folders, cells' ids."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "jupytext": {"formats": "ipynb,py:percent"},
    }
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        kept = [o for o in cell.outputs if not (o.output_type == "stream" and o.name == "stderr")]
        for output in kept:
            if "data" in output and "text/html" in output["data"]:
                output["data"] = {
                    "text/html": _untabled(output["data"]["text/html"]),
                    "text/plain": output["data"]["text/plain"],
                }
        cell.outputs = kept
    return notebook


def _untabled(html: str) -> str:
    """A frame's HTML without pandas' style block."""
    return re.sub(r"<style scoped>.*?</style>\s*", "", html, flags=re.S)


def write(name: str) -> Path:
    """Execute a script and write its notebook."""
    import nbformat

    path = HERE / f"{name}.ipynb"
    nbformat.write(execute(name), path)
    return path


if __name__ == "__main__":
    for chosen in sys.argv[1:] or names():
        print(write(chosen))
