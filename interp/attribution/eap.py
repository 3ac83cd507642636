"""Edge attribution patching and its integrals: EAP, EAP-IG (inputs, activations), clean-corrupt.

    eap                  gradient at the clean run: one forward and one backward pass score every edge
    eap_ig_inputs        gradients averaged on the straight line from the clean to the ablated input
    clean_corrupt        the average of its two ends
    eap_ig_activations   each source in turn moved from its clean to its ablated value, the rest reacting

score(u → v) = Σ_pos (clean_u − ablated_u) · mean ∂m/∂input_v. How gradients become scores is in
`edge_products.py`. With granularity=node a gradient method scores nodes by the same average of gradients at
the nodes' own outputs (`nodes.py`). Steps of an integral are rows of one pass.

Source: 2310.10348, 2403.17806. The integral goes from the clean input (0) to the ablated one (1), by midpoints
or as trapezoids. Limits: a first-order estimate; saturation hides effects from plain EAP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attribution.ablated import INPUT, Ablated, Batch, Values, jacobian, over_batches, source_sites, written
from interp.attribution.edge_products import edge_scores, gradient_sites, per_point, through_post_norms, value_sites
from interp.attribution.methods import Request, about_of, register_method
from interp.attribution.points import Point, Spec, input_residual, take_point
from interp.attribution.scores import Scores, by_prompt, edge_keys, edge_rows
from interp.graph import Graph
from interp.hooks.addresses import Address
from interp.interventions.base import base_run
from interp.interventions.reading import Reader
from interp.models.model import Model
from interp.models.net import Net

Line = list[tuple[float, float]]
"""Places on the way from clean (0) to ablated (1), each with its weight; weights sum to 1."""

GRADIENT_TOKENS = 128
"""Tokens of a pass whose graph is kept for its backward pass."""
CLEAN: Line = [(0.0, 1.0)]
ENDS: Line = [(0.0, 0.5), (1.0, 0.5)]


def line(steps: int, rule: str) -> Line:
    """Nodes and weights of a quadrature rule on [0, 1].

    >>> line(2, "midpoint"), line(2, "trapezoid")
    ([(0.25, 0.5), (0.75, 0.5)], [(0.0, 0.25), (0.5, 0.5), (1.0, 0.25)])
    """
    if rule == "midpoint":
        return [((i + 0.5) / steps, 1 / steps) for i in range(steps)]
    return [(i / steps, (0.5 if i in (0, steps) else 1.0) / steps) for i in range(steps + 1)]


@register_method("eap")
def eap(request: Request) -> Scores:
    """Edge attribution patching: every edge from one forward and one backward pass."""
    return along_inputs(request, "eap", CLEAN)


@register_method("eap_ig_inputs")
def eap_ig_inputs(request: Request) -> Scores:
    """EAP with gradients averaged on the line between the clean and the ablated input."""
    stated = f"{request.rule}, {request.steps} steps"
    return along_inputs(request, "eap_ig_inputs", line(request.steps, request.rule), algorithm=stated)


@register_method("clean_corrupt")
def clean_corrupt(request: Request) -> Scores:
    """EAP with the mean of the gradients at the clean and at the ablated input."""
    return along_inputs(request, "clean_corrupt", ENDS)


@register_method("eap_ig_activations", granularities=("edge",))
def eap_ig_activations(request: Request) -> Scores:
    """EAP with each source in turn moved from its clean to its ablated value."""
    stated = f"{request.rule}, {request.steps} steps"
    places = line(request.steps, request.rule)

    def part(batch: Batch, ablated: Ablated) -> Tensor:
        return _activations(request, batch, ablated, places)

    return edge_method(request, "eap_ig_activations", part, algorithm=stated)


def along_inputs(
    request: Request, method: str, places: Line, spec: Callable[[Net], Spec] | None = None, algorithm: str | None = None
) -> Scores:
    """Gradients averaged over places between the clean and the ablated input; `spec` may change the backward pass."""
    if request.granularity == "node":
        from interp.attribution.nodes import node_scores

        return node_scores(request, method, places, spec, algorithm=algorithm)

    def part(batch: Batch, ablated: Ablated) -> Tensor:
        return _inputs(request, batch, ablated, places, spec)

    return edge_method(request, method, part, algorithm=algorithm)


def edge_method(
    request: Request,
    method: str,
    part: Callable[[Batch, Ablated], Float[Tensor, "row source slot"]],
    algorithm: str | None = None,
) -> Scores:
    """Scores of a graph's edges, a batch of prompts at a time."""
    task, graph = request.task, request.graph
    ablated = Ablated(request.model, task, request.recipe, source_sites(graph.geometry))

    def rows_of(batch: Batch) -> Tensor:
        return edge_rows(graph, by_prompt(part(batch, ablated), batch.task.prompt_of_row, batch.task.n))

    out = over_batches(task, request.batch_tokens, rows_of, request.progress)
    return Scores(
        edge_keys(graph), out, request.sides, about_of(request, method, ablated.name, algorithm=algorithm), graph,
        seed=request.recipe.seed,
    )  # fmt: skip


def edge_spec(graph: Graph, spec: Spec | None = None) -> Spec:
    """A spec that keeps what edges need."""
    return replace(spec or Spec(frozenset()), grads=gradient_sites(graph), values=value_sites(graph))


def _inputs(
    request: Request, batch: Batch, ablated: Ablated, places: Line, make: Callable[[Net], Spec] | None
) -> Float[Tensor, "row source slot"]:
    """Scores of one batch: changes at the clean run, gradients at the places."""
    model, graph = request.model, request.graph
    net, reader = model.net, request.of(batch.task).reader("clean")
    spec = edge_spec(graph, None if make is None else make(net))
    first: Point | None = None
    if places == CLEAN:
        whole = replace(spec, values=spec.values | frozenset(source_sites(graph.geometry)))
        first = take_point(net, reader, input_residual(net, reader), whole)
        base = {a: first.values[a] for a in source_sites(graph.geometry)}
    else:
        base = clean_values(model, reader, source_sites(graph.geometry))
    gone = ablated.of(batch, base)
    changes = written(net, graph, base, gone)
    delta = changes.values
    points = [first] if first is not None else between(net, reader, base, gone, places, spec, request.options.pack)
    total: Tensor | None = None
    for point in points:
        point = replace(point, column=changes.column)
        for one in point.each() if per_point(graph.geometry) else (point,):
            scores = edge_scores(net, graph, one, through_post_norms(net, graph, delta, one))
            total = scores if total is None else total.add_(scores)
        del point, one  # before the next point is taken
    assert total is not None
    return total


def clean_values(model: Model, reader: Reader, sites: list[Address]) -> Values:
    """What the sources are in the clean run, without its logits."""
    run = base_run(model, reader.prompts, sites).run
    return {a: run[str(a)] for a in sites}


def between(
    net: Net, reader: Reader, base: Values, gone: Values, places: Line, spec: Spec, pack: int | None
) -> Iterator[Point]:
    """Points on the line between the clean and the ablated input, as many steps a pass as fit."""
    start, end = base[INPUT], gone[INPUT]
    for chunk in chunks(places, start, pack):
        rows = torch.cat([start + a * (end - start) if a < 1 else end for a, _ in chunk])
        yield take_point(net, reader, rows, spec, [w for _, w in chunk])


def chunks(places: Line, like: Tensor, pack: int | None) -> Iterator[Line]:
    """The places, as many at a time as a pass holds."""
    size = pack or max(1, GRADIENT_TOKENS // (like.shape[0] * like.shape[1]))
    for i in range(0, len(places), size):
        yield places[i : i + size]


def _activations(request: Request, batch: Batch, ablated: Ablated, places: Line) -> Float[Tensor, "row source slot"]:
    """Scores of one batch, a source at a time: passes enter at the source's own layer."""
    model, graph = request.model, request.graph
    net, reader, g = model.net, request.of(batch.task).reader("clean"), model.geometry
    sites = source_sites(g)
    enter = [Address("resid_pre", layer) for layer in range(g.layers)]
    base = clean_values(model, reader, list(dict.fromkeys([*sites, *enter])))
    gone = ablated.of(batch, base)
    changes = written(net, graph, base, gone)
    delta = changes.values
    out = delta.new_zeros(delta.shape[1], len(graph.sources), len(graph.slots))
    for i, node in enumerate(graph.sources):
        layer = max(0, node.layer)
        site = INPUT if node.kind == "input" else Address("z" if node.kind == "head" else "mlp_out", layer)
        for chunk in chunks(places, base[INPUT], request.options.pack):
            moved = torch.cat([_moved(base[site], gone[site], a, node.head) for a, _ in chunk])
            spec = replace(edge_spec(graph), start=layer, inject=(site, moved))
            rows = enter[layer]
            point = take_point(net, reader, base[rows].repeat(len(chunk), 1, 1), spec, [w for _, w in chunk])
            point = replace(point, column=changes.column)
            for one in point.each() if per_point(g) else (point,):
                whole = through_post_norms_of(net, graph, delta, i, one)
                out[:, i : i + 1] += edge_scores(net, graph, one, whole, first=i)
    return out


def _moved(base: Tensor, gone: Tensor, a: float, head: int) -> Tensor:
    """The value of a source's site with that source a part of the way to its ablated value."""
    if head < 0:
        return base + a * (gone - base) if a < 1 else gone
    out = base.clone()
    own, other = base[:, :, head], gone[:, :, head]
    out[:, :, head] = own + a * (other - own) if a < 1 else other
    return out


def through_post_norms_of(net: Net, graph: Graph, delta: Tensor, i: int, point: Point) -> Tensor:
    """One source's change, a head's through its layer's post-norm, `[1, batch, pos, d_model]`."""
    node, one = graph.sources[i], delta[i : i + 1]
    if not graph.geometry.post_norm or node.kind != "head":
        return one
    before = point.value("attn_out_pre", node.layer).to(delta.device)
    return jacobian(net.layers[node.layer].post1, before, one, point.frozen)
