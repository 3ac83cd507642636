"""A trained model's card: card.json for programs, card.md for people, from the same facts.

Each held-out figure stands beside chance and beside the best answer that ignores the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from interp.training.recipes import Figure, Recipe

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Origin:
    """How the weights came to be."""

    recipe: str
    seed: int
    steps: int
    seconds: float
    """Wall time of the training steps, summed over resumptions."""
    device: str
    dtype: str
    threads: int
    settings: Mapping[str, Any]
    arguments: str = ""

    @property
    def command(self) -> str:
        """The command that makes these weights again."""
        extra = "" if self.dtype == "float32" else f" --dtype {self.dtype}"
        more = f"{self.arguments} " if self.arguments else ""
        return (
            f"interp train {self.recipe} {more}--out {self.recipe} --seed {self.seed} --steps {self.steps} "
            f"--threads {self.threads} --device {self.device}{extra}"
        )


def write_card(folder: Path, recipe: Recipe, origin: Origin, figures: Sequence[Figure]) -> None:
    """Write card.json and card.md into a model folder."""
    facts = {
        "schema_version": SCHEMA_VERSION,
        "name": recipe.name,
        "summary": recipe.summary,
        "command": origin.command,
        "origin": {**asdict(origin), "versions": _versions()},
        "about": dict(recipe.about),
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
    }
    (folder / "card.json").write_text(json.dumps(facts, indent=2) + "\n")
    (folder / "card.md").write_text(_page(recipe, origin, figures))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("interp", "torch", "transformers", "tokenizers", "safetensors")}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _bar(figure: Figure) -> str:
    if figure.target is None:
        return "–"
    return f"{'≥' if figure.better == 'higher' else '≤'} {figure.target:g}"


def _page(recipe: Recipe, origin: Origin, figures: Sequence[Figure]) -> str:
    lines = [
        f"# {recipe.name}", "", recipe.summary, "", "```", origin.command, "```", "",
        f"Seed {origin.seed}, {origin.steps} steps, {origin.seconds:.0f} s on {origin.device} with {origin.threads} "
        f"thread{'s' if origin.threads != 1 else ''}, {origin.dtype}.", "",
        "## Held-out figures", "",
        "| figure | value | target | chance | best constant answer | unit | n | held out |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for f in figures:
        cells = [
            f.name, _number(f.value), _bar(f), _number(f.chance), _number(f.best_constant),
            f.unit, str(f.n), f.held_out,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    notes = [f"- {f.name}: {f.note}" for f in figures if f.note]
    lines += ["", *notes, "", "## About", ""]
    lines += [f"- **{key}**: {value}" for key, value in recipe.about.items()]
    return "\n".join(lines) + "\n"
