"""A step run again through the sites: statistics of every site, and where a NaN or Inf was born.

The module's own forward says nothing of its inside; replaying the batch through the forward function of this
package does, with the user's own functions on sites in force. Births: in the forward pass the first site, in the
order of computation, that holds a NaN or Inf; where the forward is finite, the first in the order of the backward
pass (from the loss down) whose gradient does.

Limits: dropout is off in a replay, so what only a drawn mask caused is not found again (`Birth.found` is False).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.context import EditContext
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES, sites_of
from interp.models.model import Model
from interp.numerics.sites import SiteNumbers, numbers

Loss = Callable[[Float[Tensor, "batch pos d_vocab"], Prompts], Float[Tensor, " batch"]]


def next_token_loss(logits: Float[Tensor, "batch pos d_vocab"], prompts: Prompts) -> Float[Tensor, " batch"]:
    """Each prompt's share of the mean next-token cross-entropy in nats: they sum to the loss of the batch."""
    log_p = logits[:, :-1].float().log_softmax(-1)
    nll = -log_p.gather(-1, prompts.tokens[:, 1:, None])[..., 0]
    used = (prompts.mask[:, 1:] & prompts.mask[:, :-1]).to(nll)
    return (nll * used).sum(1) / used.sum().clamp(min=1)


@dataclass(frozen=True)
class Birth:
    """Where the first NaN or Inf of a step came from."""

    step: int
    found: bool
    address: str | None
    direction: str | None
    """forward or backward; None where the replay was finite."""
    kind: str | None
    """nan or inf."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """Sites in the order of computation, forward first, then gradients in the order of the backward pass."""

    forward: tuple[tuple[str, Tensor], ...]
    backward: tuple[tuple[str, Tensor], ...]


def addresses(model: Model, derived: bool) -> list[str]:
    """All sites of a model as addresses to hook."""
    return [s.name for s in sites_of(model.geometry) if derived or not s.derived]


def replay(
    model: Model,
    prompts: Prompts,
    loss: Loss = next_token_loss,
    *,
    dtype: torch.dtype | None = None,
    loss_scale: float = 1.0,
    derived: bool = False,
    keep: Callable[[str, str, Tensor], Tensor | None] = lambda address, direction, x: x.detach(),
) -> Replayed:
    """Run a batch forward and backward through the sites, under autocast to `dtype` where one is given.

    `keep(address, direction, tensor)` decides what is kept of each site; by default the tensor itself.
    """
    forward: list[tuple[str, Tensor]] = []
    backward: list[tuple[str, Tensor]] = []

    def seen(where: list[tuple[str, Tensor]], direction: str) -> Callable[[Tensor, EditContext], None]:
        def look(x: Tensor, ctx: EditContext) -> None:
            kept = keep(str(ctx.address), direction, x)
            if kept is not None:
                where.append((str(ctx.address), kept))

        return look

    names = addresses(model, derived)
    here = model.device.type
    with _quiet(), torch.autocast(here, dtype or torch.float32, enabled=dtype not in (None, torch.float32)):
        specs = [(name, seen(forward, "forward")) for name in names]
        specs_back = [(name, seen(backward, "backward"), "backward") for name in names]
        with model.hooks(*specs, *specs_back):  # type: ignore[arg-type]
            model.run(prompts, metric=lambda logits: loss(logits, prompts).float() * loss_scale)
    return Replayed(tuple(forward), tuple(backward))


@contextmanager
def _quiet() -> Iterator[None]:
    """Anomaly mode would raise at the very NaN that is looked for."""
    before = torch.is_anomaly_enabled()
    torch.autograd.set_detect_anomaly(False)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(before)


def site_numbers(
    model: Model,
    prompts: Prompts,
    loss: Loss = next_token_loss,
    *,
    dtype: torch.dtype | None = None,
    loss_scale: float = 1.0,
    drift: bool = False,
) -> list[SiteNumbers]:
    """Statistics of every site, forward and backward; with `drift`, compared with the same batch in fp32."""
    low = dtype not in (None, torch.float32)
    reference: dict[tuple[str, str], Tensor] = {}
    if drift and low:
        plain = replay(model, prompts, loss, loss_scale=loss_scale)
        reference = {(a, "forward"): x for a, x in plain.forward} | {(a, "backward"): x for a, x in plain.backward}
    found: list[SiteNumbers] = []

    def keep(address: str, direction: str, x: Tensor) -> None:
        found.append(numbers(address, direction, x, reference.get((address, direction))))

    replay(model, prompts, loss, dtype=dtype, loss_scale=loss_scale, keep=keep)
    return found


def birth(
    model: Model,
    prompts: Prompts,
    loss: Loss = next_token_loss,
    *,
    step: int = 0,
    dtype: torch.dtype | None = None,
    loss_scale: float = 1.0,
) -> Birth:
    """Where the first NaN or Inf of this batch comes from, by replaying it."""
    first: dict[str, tuple[str, str]] = {}

    def keep(address: str, direction: str, x: Tensor) -> None:
        if direction not in first and not bool(torch.isfinite(x).all()):
            first[direction] = (address, "nan" if bool(torch.isnan(x).any()) else "inf")

    replay(model, prompts, loss, dtype=dtype, loss_scale=loss_scale, derived=True, keep=keep)
    for direction in ("forward", "backward"):
        if direction in first:
            address, kind = first[direction]
            return Birth(step, True, address, direction, kind)
    return Birth(step, False, None, None, None)


def order_of(site: str) -> int:
    """Rank of a site in the registry, for tables that follow the forward pass."""
    return list(SITES).index(site)


def rows_of(tokens: Int[Tensor, "batch pos"], mask: Tensor | None, most: int | None) -> Prompts:
    """The first rows of a batch as prompts."""
    part = slice(None, most)
    return Prompts.of(tokens[part], None if mask is None else mask[part])
