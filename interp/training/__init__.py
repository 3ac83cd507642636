"""Training small models from scratch: `interp.training.train(name, out=…)`, what `interp train NAME` calls.

Recipes are named rows (`recipes`); the loop (`loop`) is the same for all. Importing this loads no torch.
"""

from __future__ import annotations

from typing import Any

from interp.training.recipes import RECIPES, Batch, Figure, Recipe, Settings, load_recipe

__all__ = ["RECIPES", "Batch", "Figure", "Recipe", "Settings", "load_recipe", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from interp.training.loop import train

        return train
    raise AttributeError(f"module 'interp.training' has no attribute {name!r}")
