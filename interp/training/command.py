"""`interp train NAME`: the shell's door to `train`. Plain values in, one line of progress, exit by UserError.

The CLI registers `train_command` with typer; nothing heavy is imported until it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.training.recipes import RECIPES, load_recipe


def train_command(
    name: Annotated[str, typer.Argument(help="Recipe, for example toy-ioi (see interp list recipes).")],
    text: Annotated[Path | None, typer.Option(help="Folder of .txt files, for recipes on natural text.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model; ./NAME by default.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of initialisation and data.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps; the recipe's number by default.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16 (autocast).")] = "float32",
    threads: Annotated[int | None, typer.Option(help="CPU threads; torch's default if not given.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, dropping this folder's checkpoints.")] = False,
) -> None:
    """Train a small model from scratch; the same command again resumes it."""
    # an unknown name must fail before torch loads
    RECIPES[name]
    recipe = load_recipe(name, text)
    from interp.progress import Bar
    from interp.training.loop import train

    folder = Path(name) if out is None else out
    bar = Bar(f"training {name}", steps or recipe.settings.steps) if sys.stderr.isatty() else None

    def show(row: dict[str, int | float | None]) -> None:
        if bar is not None:
            bar(int(row["step"] or 0) + 1, about=f"training {name}  loss {row['loss']:.3f}")

    try:
        train(
            recipe, out=folder, seed=seed, steps=steps, device=device, dtype=dtype, threads=threads,
            resume=not fresh, progress=show,
        )  # fmt: skip
    finally:
        if bar is not None:
            bar.close()
    typer.echo(summary(folder))


def summary(folder: Path) -> str:
    """The figures of a trained folder, a line each, and where they lie."""
    import json

    card: dict[str, Any] = json.loads((folder / "card.json").read_text())
    lines = []
    for figure in card["figures"]:
        mark = " " if figure["target"] is None else ("✓" if figure["met"] else "✗")
        lines.append(f"{mark} {figure['name']:<60} {figure['value']:.3f} {figure['unit']}")
    return "\n".join([*lines, f"model and card in {folder}"])
