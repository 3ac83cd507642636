"""Gradients of a metric at named sites, at one point or several: what every gradient method starts from.

    point = take_point(net, reader, resid, spec)

Steps: run the blocks from a given residual, whose copy (or the value injected in the place of a source) is
the root of the graph; compute only the logits that the metric reads; one backward pass to the sites asked
for. No parameter's gradient is computed, and no input is copied. Several points (steps of an integral) are
rows of one pass: row s·batch + b is prompt b at step s, and its gradients carry the step's weight.

Limits: one prompt's metric depends on that prompt's rows only, so the summed metric gives every row's own
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.hooks.taps import NO_TAP, NoTap, Tap
from interp.interventions.reading import Reader
from interp.models.forward import blocks, embed, final_norm
from interp.models.grid import Grid
from interp.models.net import Net
from interp.registry import UserError

T = TypeVar("T")
DROPPABLE = ("attn_out", "mlp_out")
"""Where a layer's contributions enter the residual stream."""


class Gate:
    """Which layer's contributions let no gradient through (GradDrop); None: all let it through."""

    def __init__(self) -> None:
        self.layer: int | None = None


@dataclass(frozen=True, eq=False)
class Spec:
    """What a pass keeps and how it is entered."""

    grads: frozenset[Address]
    """Where gradients are wanted."""
    values: frozenset[Address] = frozenset()
    rule: Tap = NO_TAP
    """Changes what gradients see, such as RelP's frozen norms; it may not change values."""
    gate: Gate | None = None
    start: int = 0
    inject: tuple[Address, Tensor] | None = None
    """A value to put in the place of a site's: the root of the graph, where it is given."""


class PointTap:
    """Keeps tensors of the graph at the sites of a `Spec`."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.acts: dict[Address, Tensor] = {}
        self._keep = {(a.site, a.layer) for a in spec.grads | spec.values}
        self._inject = None if spec.inject is None else (spec.inject[0].site, spec.inject[0].layer)

    def wants(self, site: str, layer: int | None) -> bool:
        return self.spec.rule.wants(site, layer)

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        x = self.spec.rule(site, layer, x)
        if self._inject == (site, layer):
            assert self.spec.inject is not None
            x = self.spec.inject[1].detach().requires_grad_(True)
        kept = (site, layer) in self._keep
        gate = self.spec.gate if site in DROPPABLE else None
        if kept or gate is not None:
            # an alias: where a module hands on its input, this reader's gradient is not the whole stream's
            x = x.view_as(x)
        if gate is not None and x.requires_grad:
            x.register_hook(_dropping(gate, layer))
        if kept:
            self.acts[Address(site, layer)] = x
        return x


def _dropping(gate: Gate, layer: int | None) -> Callable[[Tensor], Tensor | None]:
    def hook(grad: Tensor) -> Tensor | None:
        return torch.zeros_like(grad) if gate.layer == layer else None

    return hook


@dataclass(frozen=True, eq=False)
class Point:
    """Values and weighted gradients at sites, `[step·batch, pos, …]`."""

    steps: int
    grid: Grid
    values: dict[Address, Tensor]
    grads: dict[Address, Tensor]
    frozen: bool = False
    """Norms' denominators were held fixed."""
    column: int = 0
    """First column that is read: what lies before it is not asked for."""

    def value(self, site: str, layer: int | None = None) -> Tensor:
        return self.narrowed(precise(self.values[Address(site, layer)]))

    def grad(self, site: str, layer: int | None = None) -> Tensor:
        """The gradient at a site; zeros where the metric does not depend on it."""
        return self.narrowed(precise(self.grads[Address(site, layer)]))

    def narrowed(self, x: Float[Tensor, "rows pos ..."]) -> Float[Tensor, "rows kept ..."]:
        """The columns that are read."""
        return x if self.column == 0 else x[:, self.column :]

    def summed(self, site: str, layer: int | None = None) -> Float[Tensor, "batch pos ..."]:
        """The gradient summed over the (weighted) steps."""
        return over_steps(self.grad(site, layer), self.steps)

    def each(self) -> Iterator[Point]:
        """One point per step, without copying."""
        rows = len(self.grid.prompts) // self.steps
        grid = self.grid
        if self.steps > 1:
            grid = Grid.of(grid.net, grid.prompts.rows(slice(0, rows)), grid.dtype)
        for s in range(self.steps):
            part = slice(s * rows, (s + 1) * rows)
            values, grads = ({a: t[part] for a, t in d.items()} for d in (self.values, self.grads))
            yield Point(1, grid, values, grads, self.frozen, self.column)


def precise(x: Tensor) -> Tensor:
    """Half precision as float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def over_steps(x: Tensor, steps: int) -> Tensor:
    """Sum over the steps packed into the rows."""
    return x if steps == 1 else x.view(steps, -1, *x.shape[1:]).sum(0)


@contextmanager
def parameters_at_rest(module: torch.nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient inside, so nothing is kept for one; as before afterwards."""
    live = [p for p in module.parameters() if p.requires_grad]
    try:
        for p in live:
            p.requires_grad_(False)
        yield
    finally:
        for p in live:
            p.requires_grad_(True)


def input_residual(net: Net, reader: Reader) -> Float[Tensor, "batch pos d_model"]:
    """What enters block 0: embedding and positions."""
    prompts = reader.prompts
    with torch.no_grad():
        return embed(net, prompts.tokens, Grid.of(net, prompts, net.dtype), NoTap())


def take_points(
    net: Net,
    reader: Reader,
    resid: Float[Tensor, "rows pos d_model"],
    spec: Spec,
    use: Callable[[Point], T],
    weights: Sequence[float] = (1.0,),
    gates: Sequence[int | None] = (None,),
) -> list[T]:
    """One forward pass from `resid` at `spec.start`, and a backward pass for each of `gates` (layers dropped).

    Rows are steps × prompts, a weight per step. What `use` makes of each point is returned, so that only one
    point's gradients are held. Loss-like metrics are negated. Raises UserError where no gradient reaches the
    logits.
    """
    steps, prompts = len(weights), reader.prompts
    packed = prompts.repeat(steps) if steps > 1 else prompts
    grid = Grid.of(net, packed, net.dtype)
    tap, out = PointTap(spec), []
    with torch.enable_grad(), parameters_at_rest(net.module):
        root = resid.detach().requires_grad_(spec.inject is None)
        final = blocks(net, root, grid, tap, start=spec.start)
        total = _metric(net, reader, _kept(reader, packed, final, steps), tap, weights)
        if not total.requires_grad:
            raise no_gradient(reader.metric.name)
        values = {a: tap.acts[a].detach() for a in spec.values if a in tap.acts}
        for i, gate in enumerate(gates):
            if spec.gate is not None:
                spec.gate.layer = gate
            grads = _gradients(total, {a: t for a, t in tap.acts.items() if a in spec.grads}, i < len(gates) - 1)
            with torch.no_grad():
                out.append(use(Point(steps, grid, values, grads, spec.rule is not NO_TAP)))
    return out


def _gradients(total: Tensor, acts: dict[Address, Tensor], again: bool) -> dict[Address, Tensor]:
    live = [a for a, t in acts.items() if t.requires_grad]
    found = torch.autograd.grad(total, [acts[a] for a in live], allow_unused=True, retain_graph=again) if live else ()
    got = dict(zip(live, found, strict=True))
    return {a: torch.zeros_like(t).detach() if (g := got.get(a)) is None else g for a, t in acts.items()}


def take_point(
    net: Net, reader: Reader, resid: Float[Tensor, "rows pos d_model"], spec: Spec, weights: Sequence[float] = (1.0,)
) -> Point:
    """The one point of a pass; the graph is freed before it returns."""
    return take_points(net, reader, resid, spec, lambda point: point, weights)[0]


def _kept(reader: Reader, packed: object, final: Tensor, steps: int) -> Tensor:
    columns = reader.columns
    if columns is None:
        return final
    if columns.ndim == 1:
        return final.index_select(1, columns.to(final.device))
    return Held(packed, columns.repeat(steps, 1).to(final.device), False).take(final)  # type: ignore[arg-type]


def _metric(net: Net, reader: Reader, kept: Tensor, tap: PointTap, weights: Sequence[float]) -> Tensor:
    x = final_norm(net, kept, tap)
    rows = len(x) // len(weights)
    sign = -1.0 if reader.metric.loss_like else 1.0
    parts = [reader.values(x[s * rows : (s + 1) * rows]).sum() * (sign * w) for s, w in enumerate(weights)]
    return torch.stack(parts).sum()


def no_gradient(name: str) -> UserError:
    """The one error for a metric that a gradient method cannot use."""
    return UserError(
        f"metric {name!r} has no gradient, which this method needs; use method=exact, or a metric such as "
        "logit_diff, logit, logprob, prob_diff, kl"
    )
