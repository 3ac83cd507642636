"""`interp.watch(model, every=50)`: a training loop's numbers, watched from inside.

    watch = interp.watch(model)
    for step, tokens in enumerate(batches):
        loss = …; loss.backward(); norm = clip_grad_norm_(…)
        watch.step(tokens, loss=loss, grad_norm=norm)        # after backward, before the optimiser's step
        optimiser.step()

On every step: loss and gradient norm are checked for NaN and Inf. Where one is found, the step is replayed at
once, with the parameters it was made with, and the site where it was born is named (`births`, and in the log).
Every `every` steps: statistics of all sites, forward and backward, on the first `rows` rows of the batch. Beside
them: gradient norms before and after clipping, and the steps that a GradScaler skipped (the scale fell).

Cost: one replay of a few rows every 50 steps; measured by the experiment `numerics`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interp.models.model import Model
from interp.numerics.replay import Birth, Loss, birth, next_token_loss, rows_of, site_numbers
from interp.numerics.sites import SiteNumbers
from interp.registry import UserError

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepNumbers:
    """What is known of one step: norms are of all gradients together, unscaled."""

    step: int
    loss: float | None
    grad_norm: float | None
    clipped: float | None
    """The norm after clipping."""
    loss_scale: float | None
    skipped: bool
    """A GradScaler left this step out: its scale fell afterwards."""


@dataclass(eq=False)
class Watch:
    """A watch over one model; made by `watch`."""

    model: Model
    every: int = 50
    rows: int = 8
    loss: Loss = next_token_loss
    dtype: torch.dtype | None = None
    drift: bool = False
    steps: list[StepNumbers] = field(default_factory=list)
    sites: list[tuple[int, SiteNumbers]] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    _scale: float | None = None

    def step(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        loss: Tensor | float | None = None,
        grad_norm: Tensor | float | None = None,
        clipped: Tensor | float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Birth | None:
        """Note one step; after the backward pass and before the optimiser's. Returns a birth where there is one.

        Args:
            tokens: the step's batch, `[batch, pos]` (vectors for a wrapped stack that reads them).
            loss: the step's loss.
            grad_norm: norm of all gradients before clipping, unscaled; read off the parameters if not given.
            clipped: the norm after clipping.
            scaler: the loop's GradScaler: scale and skipped steps are noted.
        """
        number = len(self.steps)
        value = None if loss is None else float(torch.as_tensor(loss).detach())
        norm = float(grad_norm) if grad_norm is not None else self._norm()
        scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else None
        self._note_skip(scale)
        after = None if clipped is None else float(clipped)
        self.steps.append(StepNumbers(number, value, norm, after, scale, False))
        born = None
        bad = [x for x in (value, norm) if x is not None and not math.isfinite(x)]
        if bad:
            born = self._find(number, tokens, mask, scale)
        elif number % self.every == 0:
            part = self._prompts(tokens, mask, self.rows)
            found = site_numbers(
                self.model, part, self.loss, dtype=self.dtype, loss_scale=scale or 1.0, drift=self.drift
            )
            self.sites += [(number, row) for row in found]
        return born

    def close(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Note whether the last step was skipped; for the end of a loop with a GradScaler."""
        if scaler is not None and scaler.is_enabled():
            self._note_skip(float(scaler.get_scale()))

    @property
    def skipped(self) -> int:
        """Steps that the GradScaler left out so far."""
        return sum(step.skipped for step in self.steps)

    def table(self) -> pd.DataFrame:
        """All statistics in the numerics schema: sites by step and direction, norms, skipped steps, births."""
        from interp.results.frames import typed
        from interp.results.schemas import NUMERICS

        return typed(list(self.table_rows()), NUMERICS)

    def table_rows(self) -> list[dict[str, Any]]:
        """The rows of `table`, as plain values."""
        name = "float32" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        base = {"model": self.model.name, "dtype": name}
        rows: list[dict[str, Any]] = []
        for step, found in self.sites:
            numbers = asdict(found)
            layer, _, site = numbers.pop("address").rpartition(".")
            place = {"site": site, "layer": int(layer[1:]) if layer else None}
            numbers = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in numbers.items()}
            rows.append({**base, "metric": "site", "step": step, **place, **numbers})
        for note in self.steps:
            if note.grad_norm is not None:
                rows.append({
                    **base, "metric": "grad_norm", "step": note.step, "unit": "gradient norm",
                    "value": note.grad_norm if math.isfinite(note.grad_norm) else None, "baseline": note.clipped,
                    "reason": None if math.isfinite(note.grad_norm) else f"the norm was {note.grad_norm}",
                })  # fmt: skip
            if note.skipped:
                rows.append(
                    {**base, "metric": "skipped", "step": note.step, "value": note.loss_scale, "unit": "loss scale"}
                )
        for born in self.births:
            layer, _, site = (born.address or "").rpartition(".")
            rows.append({
                **base, "metric": "birth", "step": born.step, "direction": born.direction, "site": site or None,
                "layer": int(layer[1:]) if layer else None, "unit": born.kind,
                "reason": None if born.found else "the replay was finite: dropout, or a place that is no site",
            })  # fmt: skip
        return rows

    def _find(self, step: int, tokens: Tensor, mask: Tensor | None, scale: float | None) -> Birth:
        part = self._prompts(tokens, mask, None)
        born = birth(self.model, part, self.loss, step=step, dtype=self.dtype, loss_scale=scale or 1.0)
        self.births.append(born)
        if born.found:
            logger.warning("step %d: %s was born at %s, %s pass", step, born.kind, born.address, born.direction)
        else:
            logger.warning("step %d was not finite, but its replay through the sites was", step)
        return born

    def _prompts(self, tokens: Tensor, mask: Tensor | None, most: int | None) -> Any:
        if tokens.is_floating_point():
            return self.model.prompts(tokens[:most], None if mask is None else mask[:most])
        return rows_of(tokens.to(self.model.device), mask, most)

    def _norm(self) -> float | None:
        grads = [p.grad for p in self.model.module.parameters() if p.grad is not None]
        return float(nn.utils.get_total_norm(grads)) if grads else None

    def _note_skip(self, scale: float | None) -> None:
        before, self._scale = self._scale, scale
        if scale is not None and before is not None and scale < before and self.steps:
            last = self.steps[-1]
            self.steps[-1] = StepNumbers(last.step, last.loss, last.grad_norm, last.clipped, last.loss_scale, True)


def watch(
    model: Model | nn.Module,
    every: int = 50,
    *,
    rows: int = 8,
    loss: Loss = next_token_loss,
    dtype: torch.dtype | None = None,
    drift: bool = False,
) -> Watch:
    """Watch a model while it is trained.

    Args:
        model: a model of this package (`load_model`, `wrap`), or a module that `load_model` takes.
        every: full statistics on every so many steps, the first included.
        rows: rows of the batch that full statistics are taken of.
        loss: logits and prompts to each prompt's share of the loss, for gradients at sites; next-token loss by default.
        dtype: autocast's format, where the loop uses autocast.
        drift: also compare with fp32 (one more replay at each full step).

    Raises UserError for settings out of range and for modules of unknown layers.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> tokens = model.prompts([[1, 2, 3, 4]]).tokens
    >>> seen = watch(model)
    >>> seen.step(tokens)
    >>> bool(seen.table()["nan"].any())
    False
    """
    if every < 1 or rows < 1:
        raise UserError(f"every and rows are at least 1, got {every} and {rows}")
    if not isinstance(model, Model):
        from interp.models.load import load_model

        loaded = load_model(model)
        assert isinstance(loaded, Model)
        model = loaded
    return Watch(model, every, rows, loss, dtype, drift)
