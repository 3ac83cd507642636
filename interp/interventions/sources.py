"""What every source of the circuit graph writes to the residual stream, in a run or ablated.

The input writes the embedding, a head writes its slice of z through W_O, an MLP its output. Replacing the
contribution of a source means adding `ablated − live`; where attention's output passes a norm before it is
added (post-norm families) the head's change goes through that norm, together with the other heads' outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.graph import Node
from interp.hooks.addresses import Address
from interp.hooks.context import EditContext, Held
from interp.hooks.geometry import Geometry
from interp.hooks.sites import SITES
from interp.interventions.ablation import Replacement
from interp.interventions.base import Base
from interp.interventions.units import Unit
from interp.models.model import Model
from interp.models.net import Net
from interp.models.weights import head_weights
from interp.registry import UserError
from interp.tasks.values import Task


@dataclass(frozen=True, eq=False)
class Sources:
    """Values from which every source's contribution follows: the input, z and MLP outputs by layer."""

    input: Float[Tensor, "batch pos d_model"]
    z: tuple[Float[Tensor, "batch pos head d_head"], ...]
    mlp_out: tuple[Float[Tensor, "batch pos d_model"], ...]

    def columns(self, first: int) -> Sources:
        """From one column on."""
        return Sources(
            self.input[:, first:], tuple(z[:, first:] for z in self.z), tuple(m[:, first:] for m in self.mlp_out)
        )


def source_addresses(geometry: Geometry) -> list[Address]:
    """Sites that hold the sources' values."""
    found = [Address("resid_pre", 0), *(Address("z", layer) for layer in range(geometry.layers))]
    if geometry.mlp:
        found += [Address("mlp_out", layer) for layer in range(geometry.layers)]
    return found


def live_sources(base: Base) -> Sources:
    """The sources of a base run that captured `source_addresses`."""
    g = base.net.geometry
    return Sources(
        base.at("resid_pre", 0),
        tuple(base.at("z", layer) for layer in range(g.layers)),
        tuple(base.at("mlp_out", layer) for layer in range(g.layers)) if g.mlp else (),
    )


def ablated_sources(base: Base, replacement: Replacement) -> Sources:
    """The sources as an ablation replaces them; padding keeps the base run's values."""
    g, held = base.net.geometry, Held.all(base.prompts)

    def of(site: str, layer: int) -> Tensor:
        edit = replacement(Unit(Address(site, layer), {}, {}))
        ctx = EditContext(SITES[site], layer, g, held, edit.selection, base.run)
        return edit.apply(base.at(site, layer), ctx)

    with torch.no_grad():
        return Sources(
            of("resid_pre", 0),
            tuple(of("z", layer) for layer in range(g.layers)),
            tuple(of("mlp_out", layer) for layer in range(g.layers)) if g.mlp else (),
        )


def deltas(
    net: Net, live: Sources, ablated: Sources, nodes: Sequence[Node], attn_out_pre: Sequence[Tensor] = ()
) -> Float[Tensor, "node batch pos d_model"]:
    """Change of the residual when one source's contribution is replaced, each on its own.

    `attn_out_pre` by layer is needed where attention's output passes a norm of its own.
    """
    each = []
    for node in nodes:
        if node.kind == "input":
            each.append(ablated.input - live.input)
        elif node.kind == "mlp":
            each.append(ablated.mlp_out[node.layer] - live.mlp_out[node.layer])
        elif node.kind == "head":
            each.append(_head_delta(net, live, ablated, node, attn_out_pre))
        else:
            raise UserError(f"{node} writes nothing to the residual stream")
    return torch.stack(each)


def _head_delta(net: Net, live: Sources, ablated: Sources, node: Node, pre: Sequence[Tensor]) -> Tensor:
    w_o = head_weights(net, node.layer).W_O[node.head]
    change = (ablated.z[node.layer] - live.z[node.layer])[:, :, node.head] @ w_o
    if not net.geometry.post_norm:
        return change
    norm, out = net.layers[node.layer].post1, pre[node.layer]
    moved: Tensor = norm(out + change) - norm(out)
    return moved


def head_changes(net: Net, layer: int, live_z: Tensor, ablated_z: Tensor) -> Float[Tensor, "head batch pos d_model"]:
    """ablated − live of every head of a layer, through W_O."""
    w_o = head_weights(net, layer).W_O
    return einsum(ablated_z - live_z, w_o, "batch pos head d_head, head d_head d_model -> head batch pos d_model")


@dataclass(frozen=True)
class Recipe:
    """What an ablated source is replaced by; see `interp.interventions.ablation`."""

    ablation: str = "corrupt"
    over: str = "auto"
    mean_by: str = "auto"
    match: str | None = None
    seed: int = 0


def require_additive(geometry: Geometry) -> None:
    """UserError for models whose residual stream is no sum of the sources' contributions."""
    if geometry.stream_norm or not geometry.skip:
        why = "norms the stream itself" if geometry.stream_norm else "has no skip paths"
        raise UserError(f"edges need a residual stream that is a sum of contributions; this model {why}")


def replacement_for(model: Model, task: Task, recipe: Recipe) -> Replacement:
    """An ablation of every source at once. UserError for models and pairs it is not defined on."""
    require_additive(model.geometry)
    if recipe.ablation in ("corrupt", "clean"):
        task.require_aligned()
    addresses = [str(a) for a in source_addresses(model.geometry)]
    return Replacement(model, task, recipe.ablation, addresses, recipe.over, recipe.mean_by, recipe.match, recipe.seed)
