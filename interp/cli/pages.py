"""`interp report`: pages from finished cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from interp.cells import out_folder
from interp.registry import UserError
from interp.report.write import OUT, write_all, write_pages


def make_pages(names: Sequence[str], every: bool, out: Path | None, results: Path | None, figures: bool) -> int:
    """Write the pages and say where they are."""
    if every and names:
        raise UserError(f"give either cells ({', '.join(names)}) or --all, not both")
    folder = out or OUT
    if folder.exists() and not folder.is_dir():
        raise UserError(f"pages cannot go to {folder}: it is a file, a folder was expected")
    source = out_folder(results)
    pages = write_all(source, folder, figures) if every else write_pages(names, source, folder, figures)
    if len(pages) > 1:
        typer.echo(f"{len(pages) - 1} pages; open the index:")
    typer.echo(f"  {pages[0]}")
    return 0
