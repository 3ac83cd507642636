"""Small models that ship with the package: one folder each, weights as safetensors, with a card.

Listing them imports no torch.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def folders() -> dict[str, Path]:
    """Folder of every embedded model, by name."""
    root = Path(str(files(__name__)))
    return {path.name: path for path in sorted(root.iterdir()) if (path / "config.json").is_file()}


def names() -> list[str]:
    """Names of the embedded models, sorted."""
    return list(folders())
