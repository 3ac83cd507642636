"""Recipes: what `interp train NAME` can make, each a row of functions the loop calls.

A recipe gives a model factory, a stream of batches (a function of seed and step), an evaluation, and what is
shipped beside the weights. The loop knows nothing else of it. Rows are loaders, so that listing recipes
imports no torch; other packages add theirs through the entry-point group `interp.recipes` (each a function
that returns a `Recipe`; its one argument may be `text`, a folder that `--text` names).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.registry import Registry, UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """How the loop trains; part of a run's identity, so a checkpoint resumes only under the same ones."""

    steps: int
    lr: float = 1e-3
    warmup: int = 100
    floor: float = 0.02
    """Last learning rate, as a fraction of the highest."""
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 0.05
    clip: float = 1.0
    """Largest global gradient norm."""
    checkpoint_every: int = 500
    keep: int = 2
    """How many checkpoints stay."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checkpoint_every < 1 or self.keep < 1 or self.warmup < 0:
            raise UserError(f"steps, checkpoint_every and keep must be at least 1, warmup at least 0: {self}")
        if min(self.lr, self.clip) <= 0 or not 0 <= self.floor <= 1:
            raise UserError(f"lr and clip must be above 0, floor between 0 and 1: {self}")


@dataclass(frozen=True, eq=False)
class Open:
    """Targets that are a choice: the loss is taken against the distribution the token was drawn from.

    Where the stream knows that distribution, this is the sampled loss's exact mean, without its noise.
    """

    row: Tensor
    """Whole numbers [target]."""
    pos: Tensor
    """Whole numbers [target], the position of the token to be predicted, at least 1."""
    probability: Tensor
    """Floats [target, d_vocab]; each row sums to 1."""
    weight: Tensor
    """Floats [target]."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of tokens and, for each token, the weight of its prediction from those before it."""

    tokens: Tensor
    """Whole numbers [batch, pos]; padding, if any, on the right with weight 0."""
    weights: Tensor
    """Floats [batch, pos]; column 0 is never predicted and counts for nothing."""
    open: Open | None = None
    """Targets besides those of `weights`, which is 0 at their places."""


@dataclass(frozen=True)
class Figure:
    """One held-out number with what it has to beat."""

    name: str
    value: float
    chance: float | None
    """What a model that knows nothing scores."""
    best_constant: float | None
    """What the best answer that ignores the prompt scores; null where the figure compares two prompts."""
    target: float | None
    n: int
    unit: str
    better: str = "higher"
    held_out: str = ""
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the target is reached; true where there is none."""
        if self.target is None:
            return True
        return self.value >= self.target if self.better == "higher" else self.value <= self.target


@dataclass(frozen=True)
class Recipe:
    """One model that can be trained."""

    name: str
    summary: str
    settings: Settings
    model: Callable[[torch.Generator], nn.Module]
    """A fresh, initialised model."""
    batches: Callable[[int, int], Sequence[Batch]]
    """Seed, step -> what that step trains on, always the same: one batch for each width of row."""
    evaluate: Callable[[nn.Module, int], list[Figure]]
    """Model, seed of the held-out sample -> figures."""
    export: Callable[[nn.Module, Path], None]
    """Write the model folder that `interp.load_model` reads."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the card says beyond the figures."""
    adjust: Callable[[nn.Module, int], None] | None = None
    """Called with the model and the number of steps done, before each step: what a curriculum changes in it."""
    snapshot: Callable[[nn.Module, Path, int], None] | None = None
    """Called with the model, the folder and the number of steps done, before the first step and after each."""
    afterwards: Callable[[Path, int], Sequence[Figure]] | None = None
    """Folder, seed -> figures that need the whole folder, its snapshots included."""
    arguments: str = ""
    """What the shell command needs besides the recipe's name, as the card spells it."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else a checkpoint must share to be resumed, such as the digest of the text."""


RECIPES: Registry[Callable[..., Recipe]] = Registry("recipe", "interp.recipes")


@RECIPES.register("toy-ioi")
def toy_ioi() -> Recipe:
    """GPT-2 of 3 layers on a small grammar: IOI, induction, greater-than, subject-verb agreement."""
    from interp.training.toy_ioi import recipe

    return recipe()


@RECIPES.register("attn-2l")
def attn_2l(text: Path | str | None = None) -> Recipe:
    """Attention-only language model of 2 layers on novels (--text FOLDER), with an induction head."""
    from interp.training.attn_2l import recipe

    return recipe(text)


@RECIPES.register("attn-2l-text")
def attn_2l_text(text: Path | str | None = None) -> Recipe:
    """The same model on text alone (--text FOLDER), for comparison: no repeated rows."""
    from interp.training.attn_2l import recipe

    return recipe(text, repeats=False)


def load_recipe(name: str, text: Path | str | None = None) -> Recipe:
    """The recipe of that name; `text` is the folder that recipes on natural text train on.

    UserError for an unknown name (with the nearest ones), and for a text given to a recipe that takes none.
    """
    row = RECIPES[name]
    if text is None:
        return row()
    if "text" not in signature(row).parameters:
        raise UserError(f"recipe {name} makes its own data and takes no --text")
    return row(text)
