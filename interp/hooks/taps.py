"""Taps: what happens when the forward pass reaches a site.

A tap is called `tap(site, layer, tensor)` wherever a tensor has a name and returns the tensor or an edited
one. `wants` says whether a site has anything to do, so that derived sites cost nothing when nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import EditContext, Held
from interp.hooks.edits import Edit, call_user
from interp.hooks.geometry import Geometry
from interp.hooks.sites import SITES
from interp.hooks.values import Run
from interp.registry import UserError

UserFunction = Callable[[Tensor, EditContext], Tensor | None]
Direction = Literal["forward", "backward"]


@runtime_checkable
class Tap(Protocol):
    """The one mechanism behind capture, edits, gradients and users' functions."""

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor: ...

    def wants(self, site: str, layer: int | None) -> bool: ...


class NoTap:
    """Nothing to do anywhere."""

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        return x

    def wants(self, site: str, layer: int | None) -> bool:
        return False


NO_TAP = NoTap()


class RunTap:
    """Edits and users' functions in the order given, then capture; gradients flow to what was captured.

    With `graph` the embedding is made the root of an autograd graph and captures stay attached to it.
    """

    def __init__(
        self,
        geometry: Geometry,
        held: Held,
        *,
        edits: Mapping[Address, Sequence[Edit]] | None = None,
        capture: Sequence[Address] = (),
        functions: Mapping[Address, Sequence[tuple[UserFunction, Direction]]] | None = None,
        base: Run | None = None,
        graph: bool = False,
    ) -> None:
        self.geometry, self.held, self.base, self.graph = geometry, held, base, graph
        self.edits = edits or {}
        self.functions = functions or {}
        self.capture = frozenset(capture)
        self.acts: dict[Address, Tensor] = {}
        self.settled: dict[Address, Tensor] = {}
        self.reached: set[Address] = set()
        self.roots: list[Tensor] = []
        """Where the backward pass must go: the embedding, made a leaf so that no parameter's gradient is needed,
        and the sites of backward functions."""
        self._busy = {(a.site, a.layer) for a in (*self.edits, *self.functions, *self.capture)}
        if graph:
            self._busy.add(("embed", None))

    def wants(self, site: str, layer: int | None) -> bool:
        return (site, layer) in self._busy

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        if (site, layer) not in self._busy:
            return x
        address, row = Address(site, layer), SITES[site]
        self.reached.add(address)
        if self.graph and site == "embed":
            x = x.detach().requires_grad_(True)
            self.roots.append(x)
        elif self.graph:
            x = x.view_as(x)  # a node of its own: where two sites hold one tensor, each has its own gradient
        for edit in self.edits.get(address, ()):
            ctx = EditContext(row, layer, self.geometry, self.held, edit.selection, self.base)
            x = edit.apply(x, ctx)
        for fn, direction in self.functions.get(address, ()):
            ctx = EditContext(row, layer, self.geometry, self.held, base=self.base)
            if direction == "forward":
                x = _same_shape(call_user(fn, x, ctx), x, ctx)
            elif self.graph:
                x = _root(x)
                x.register_hook(_gradient_hook(fn, ctx))
                self.roots.append(x)  # or the backward pass might not come by here
        if address in self.capture:
            x = _root(x) if self.graph else x
            self.acts[address] = x if self.graph else x.detach()
        return x

    def settle(self, site: str, layer: int | None, x: Tensor) -> None:
        """What the pass goes on with, where it undoes part of an edit (masked entries): that is captured."""
        if Address(site, layer) in self.capture:
            self.settled[Address(site, layer)] = x.detach()

    def captured(self) -> dict[str, Tensor]:
        """Captures by address; raises where a site was asked for and never reached."""
        missed = {Address(s, layer) for s, layer in self._busy} - self.reached
        if missed:
            raise UserError(f"the forward pass never reached {', '.join(map(str, sorted(missed, key=str)))}")
        return {str(a): self.settled.get(a, t).detach() for a, t in self.acts.items()}


def _root(x: Tensor) -> Tensor:
    """A tensor that gradients reach: where an edit cut the graph, or weights are frozen, it starts again here."""
    return x if x.requires_grad else x.detach().requires_grad_(True)


def _gradient_hook(fn: UserFunction, ctx: EditContext) -> Callable[[Tensor], Tensor | None]:
    def hook(grad: Tensor) -> Tensor | None:
        return _same_shape(call_user(fn, grad, ctx), grad, ctx)

    return hook


def _same_shape(new: Tensor, old: Tensor, ctx: EditContext) -> Tensor:
    if not isinstance(new, Tensor) or new.shape != old.shape:
        given = tuple(new.shape) if isinstance(new, torch.Tensor) else type(new).__name__
        raise UserError(f"the function at {ctx.address} returned {given}; expected a tensor {tuple(old.shape)}")
    return new
