"""Attribution patching of nodes: AtP, and AtP* with its two corrections.

    AtP    Σ_pos (a_clean − a_ablated) · ∂m/∂a at the clean run
    AtP*   QK fix: a query's or key's change goes through the softmax, recomputed; the change of the pattern
           times ∂m/∂pattern. A head's k changes all its keys together; by position, one key at a time.
           GradDrop: Σ_ℓ |I_ℓ| / (L − 1) per prompt, I_ℓ with no gradient through layer ℓ's contributions,
           so that effects which cancel between a direct and an indirect path still show.

GradDrop's scores are sizes: unsigned, and means of sizes over prompts.

Source: 2403.00745. Limits: AtP* scores nodes only, and needs two layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from einops import rearrange
from torch import Tensor

from interp.attribution.ablated import INPUT, Ablated, Batch
from interp.attribution.eap import CLEAN, along_inputs
from interp.attribution.methods import Request, register_method
from interp.attribution.nodes import addresses_of, default_sites, gathered, node_method, products
from interp.attribution.points import Gate, Point, Spec, input_residual, precise, take_points
from interp.attribution.scores import Scores
from interp.hooks.addresses import Address
from interp.hooks.taps import NO_TAP
from interp.interventions.units import Unit
from interp.models.attention import attend, per_query_head
from interp.models.block import head_norm
from interp.models.grid import Grid
from interp.models.net import Net
from interp.registry import UserError


@register_method("atp")
def atp(request: Request) -> Scores:
    """Attribution patching: change of an activation times the metric's gradient there."""
    return along_inputs(request, "atp", CLEAN)


@register_method("atp_star", granularities=("node",), signed=False)
def atp_star(request: Request) -> Scores:
    """AtP with recomputed softmax for queries and keys (QK fix) and GradDrop; unsigned."""
    g = request.model.geometry
    if g.layers < 2:
        raise UserError(
            "atp_star averages over dropped layers (GradDrop) and needs a model of at least 2 layers; this has 1"
        )
    first, *rest = default_sites(g)
    sites = request.sites or (first, "q", "k", "v", *rest)

    def part(nodes: list[Unit], batch: Batch, ablated: Ablated) -> Tensor:
        return _starred(request, nodes, batch, ablated)

    return node_method(request, "atp_star", sites, part, signed=False, algorithm="QK fix, GradDrop (unsigned)")


def _starred(request: Request, nodes: list[Unit], batch: Batch, ablated: Ablated) -> Tensor:
    net, reader, where = request.model.net, request.of(batch.task).reader("clean"), addresses_of(nodes)
    layers = request.model.geometry.layers
    fixed = [a for a in where if a.site in ("q", "k")]
    inner = {Address(s, a.layer) for a in fixed for s in ("q_rot", "k_rot", "pattern", a.site)}
    spec = Spec(
        grads=frozenset([*where, *(a for a in inner if a.site == "pattern")]),
        values=frozenset([*where, INPUT, *inner]), gate=Gate(),
    )  # fmt: skip
    softened: dict[Address, Tensor] = {}
    change: dict[Address, Tensor] = {}

    def sizes(point: Point) -> Tensor:
        if not change:
            gone = ablated.of(batch, point.values)
            change.update({a: precise(point.values[a]) - precise(gone[a]) for a in where})
            softened.update({a: _pattern_change(net, point, a, gone[a], by_key(nodes, a)) for a in fixed})
        return one_dropped(nodes, point, change, softened, batch).abs()

    each = take_points(net, reader, input_residual(net, reader), spec, sizes, gates=range(layers))
    return torch.stack(each).sum(0) / (layers - 1)


def one_dropped(
    nodes: list[Unit], point: Point, change: Mapping[Address, Tensor], softened: Mapping[Address, Tensor], batch: Batch
) -> Tensor:
    """The estimates of all nodes with the gradients of one point, signed."""
    parts = dict(products([u for u in nodes if u.address not in softened], change, point.grads))
    group = point.grid.net.geometry.group
    for address, moved in softened.items():
        parts[address] = _through_pattern(address, moved, point.grad("pattern", address.layer), group)
    return gathered(nodes, parts, batch.task)


def by_key(nodes: list[Unit], address: Address) -> bool:
    """Whether a site's nodes are single positions."""
    return any(u.place is not None for u in nodes if u.address == address)


def _pattern_change(net: Net, point: Point, address: Address, gone: Tensor, single: bool) -> Tensor:
    """pattern − pattern with the ablated q or k, `[batch, head, query, key]`; with single keys `[key, batch, …]`."""
    layer, grid = address.layer, point.grid
    assert layer is not None
    pattern = point.value("pattern", layer)
    q, k = (point.values[Address(s, layer)] for s in ("q_rot", "k_rot"))
    turned = grid.rotate(head_norm(net, layer, gone, address.site), layer)
    if address.site == "q":
        return pattern - precise(_attend(net, layer, turned, k, grid))
    if not single:
        return pattern - precise(_attend(net, layer, q, turned, grid))
    return torch.stack([pattern - precise(p) for p in _one_key_at_a_time(net, layer, q, k, turned, grid)])


def _one_key_at_a_time(net: Net, layer: int, q: Tensor, k: Tensor, new: Tensor, grid: Grid) -> Iterator[Tensor]:
    for column in range(k.shape[1]):
        keys = k.clone()
        keys[:, column] = new[:, column]
        yield _attend(net, layer, q, keys, grid)


def _attend(net: Net, layer: int, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
    keys = per_query_head(k.transpose(1, 2), net.geometry.group)
    return attend(net, layer, q.transpose(1, 2), keys, grid, NO_TAP)


def _through_pattern(address: Address, moved: Tensor, grad: Tensor, group: int) -> Tensor:
    """Change of the pattern times its gradient, by row, position (one where they move together) and unit."""
    score = moved * grad
    if address.site == "q":
        return rearrange(score.sum(-1), "batch head query -> batch query head")
    if moved.ndim == 4:
        return rearrange(score.sum((-1, -2)), "batch (kv group) -> batch 1 kv group", group=group).sum(-1)
    return rearrange(score.sum((-1, -2)), "key batch (kv group) -> batch key kv group", group=group).sum(-1)
