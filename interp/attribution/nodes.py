"""Scores of nodes from gradients at their own outputs: Σ_pos (clean − ablated) · mean ∂m/∂output.

Nodes are parts of sites: by default the graph's (the input, z by head, mlp_out by layer); any site inside the
blocks that has positions can be asked for, cut by head, neuron, position or label as in `ablate`, so that rows
match those of the exact ablation. A site without heads is taken whole where heads are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attribution.ablated import INPUT, Ablated, Batch, over_batches
from interp.attribution.methods import Request, about_of
from interp.attribution.points import Point, Spec, input_residual, over_steps, precise, take_point
from interp.attribution.scores import Scores, by_prompt
from interp.hooks.addresses import Address
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES, Site, resolve
from interp.interventions.units import Unit, parse_by, units, with_positions
from interp.models.net import Net
from interp.registry import UserError
from interp.tasks.values import Task

Products = Mapping[Address, Float[Tensor, "row pos unit"]]
NEEDS = {"head": ("head", "kv_head"), "neuron": ("d_mlp",)}


def default_sites(g: Geometry) -> tuple[str, ...]:
    """The graph's nodes as sites."""
    return (str(INPUT), "z", *(("mlp_out",) if g.mlp else ()))


def by_for(site: Site, by: str) -> str:
    """The axes of `by` that a site has; `layer` where it has none of them."""
    axes = [a for a in parse_by(by) if a not in NEEDS or set(NEEDS[a]) & set(site.axes)]
    return "+".join(axes) or "layer"


def node_units(
    g: Geometry, prompts: Prompts, sites: Iterable[str], by: str, labels: Sequence[str] | None = None
) -> list[Unit]:
    """The nodes of some sites. UserError for sites that gradients are not taken at."""
    found: list[Unit] = []
    for name in sites:
        site = SITES[resolve(name, g)[0].site]
        if not site.in_block or site.derived or site.axes[:2] != ("batch", "pos"):
            raise UserError(f"nodes are parts of sites inside the blocks that have positions, not of {site.name}")
        found += units(g, prompts, name, by_for(site, by), labels)
    return found


def addresses_of(nodes: Iterable[Unit]) -> list[Address]:
    """The sites of the nodes, each once."""
    return list(dict.fromkeys(u.address for u in nodes))


def products(nodes: Iterable[Unit], change: Mapping[Address, Tensor], grad: Mapping[Address, Tensor]) -> Products:
    """(clean − ablated) · gradient by row, position and unit of each site."""
    out = {}
    split = {u.address: "neuron" in u.parts for u in nodes}
    for address in split:
        part = change[address] * grad[address].to(change[address].device)
        if part.ndim == 4:
            part = part.sum(-1)
        elif not split[address]:
            part = part.sum(-1, keepdim=True)
        out[address] = part
    return out


def gathered(nodes: Sequence[Unit], parts: Products, task: Task) -> Float[Tensor, "node prompt"]:
    """Each node's score by prompt: its unit's products over all positions or at its own; NaN where it has none."""
    prompts = with_positions(task.clean)
    rows = torch.arange(len(prompts))
    whole: dict[tuple[Address, str | None], Tensor] = {}
    out = []
    for node in nodes:
        key = (node.address, node.place)
        part = parts[node.address]
        if key not in whole:
            if node.place is None:
                found = part.sum(1)
            else:
                column = prompts.column(node.place).to(part.device)
                found = part[rows.to(part.device), column.clamp(min=0)]
                found = torch.where((column >= 0)[:, None], found, torch.nan)
            whole[key] = by_prompt(found, task.prompt_of_row.to(part.device), task.n)
        units_of = whole[key]
        if "head" not in node.key and "kv_head" not in node.key and "neuron" not in node.key:
            out.append(units_of.sum(1))
        else:
            index = next(node.parts[k] for k in ("head", "kv_head", "neuron") if k in node.parts)
            out.append(units_of[:, index])
    return torch.stack([t.to(out[0].device) for t in out])


def node_method(
    request: Request,
    method: str,
    sites: Iterable[str],
    part: Callable[[list[Unit], Batch, Ablated], Float[Tensor, "node prompt"]],
    *,
    signed: bool = True,
    algorithm: str | None = None,
) -> Scores:
    """Scores of nodes, a batch of prompts at a time."""
    task = request.task
    nodes = node_units(request.model.geometry, task.clean, sites, request.by, request.labels)
    ablated = Ablated(request.model, task, request.recipe, addresses_of([*nodes, *_input_only()]))
    out = over_batches(task, 4 * request.batch_tokens, lambda batch: part(nodes, batch, ablated), request.progress)
    return Scores(
        tuple(u.key for u in nodes), out, request.sides, about_of(request, method, ablated.name, algorithm=algorithm),
        signed=signed, seed=request.recipe.seed,
    )  # fmt: skip


def _input_only() -> list[Unit]:
    return [Unit(INPUT, {}, {})]


def node_scores(
    request: Request,
    method: str,
    places: list[tuple[float, float]],
    make: Callable[[Net], Spec] | None = None,
    algorithm: str | None = None,
) -> Scores:
    """Nodes scored with gradients averaged over places between the clean (0) and the ablated input (1)."""
    from interp.attribution.eap import CLEAN, between, clean_values

    sites = request.sites or default_sites(request.model.geometry)

    def part(nodes: list[Unit], batch: Batch, ablated: Ablated) -> Tensor:
        net, reader, where = request.model.net, request.of(batch.task).reader("clean"), addresses_of(nodes)
        spec = replace(
            Spec(frozenset()) if make is None else make(net),
            grads=frozenset(where), values=frozenset([*where, INPUT]),
        )  # fmt: skip
        if places == CLEAN:
            points = [take_point(net, reader, input_residual(net, reader), spec)]
            base = points[0].values
            gone = ablated.of(batch, base)
        else:
            base = clean_values(request.model, reader, [*where, INPUT])
            gone = ablated.of(batch, base)
            points = list(
                between(net, reader, base, gone, places, replace(spec, values=frozenset()), request.options.pack)
            )
        grad = {a: _total(points, a) for a in where}
        change = {a: precise(base[a]) - precise(gone[a]) for a in where}
        return gathered(nodes, products(nodes, change, grad), batch.task)

    return node_method(request, method, sites, part, algorithm=algorithm)


def _total(points: Sequence[Point], address: Address) -> Tensor:
    return torch.stack([over_steps(precise(p.grads[address]), p.steps) for p in points]).sum(0)
