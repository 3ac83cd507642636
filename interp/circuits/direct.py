"""Direct logit attribution of a circuit's run, and of edges.

`circuit_terms`: the circuit runs with everything outside it ablated; what the logits then read is a sum over
sources (live where the edge into the logits is kept, ablated where not) and biases, and each source's term is
its dot product with the answer direction, that run's own norm scales frozen. Terms sum to the run's logit
difference (before a soft-cap).

`edge_terms`: in the whole model, how much of the logit difference u → v → logits carries: for a v edge of head
h, Σ_key pattern[answer, key] · ⟨what u wrote at key through ln1, W_V, W_O, answer direction⟩ with pattern and
scales frozen; for an edge into the logits the source's own term. Query, key and MLP edges are not linear in
what they carry: NaN. Shared v slots sum over their heads.

Source: A Mathematical Framework for Transformer Circuits (2021). Limits: answers of one token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from interp.attribution.direct import need_single
from interp.attribution.pulled import answer_direction, precise, pull, pull_back
from interp.circuits.live import Live
from interp.circuits.values import Circuit
from interp.graph import Graph, Node
from interp.hooks.addresses import Address
from interp.interventions.base import Base, base_run
from interp.interventions.circuit import CircuitRunner, require_graph
from interp.interventions.edges import edge_addresses
from interp.interventions.sources import live_sources, require_additive
from interp.models.model import Model
from interp.models.net import Net
from interp.models.weights import head_weights
from interp.registry import UserError
from interp.tasks.values import Side, Task

BIASES = "biases"


@dataclass(frozen=True, eq=False)
class CircuitTerms:
    """Terms of the logit difference of a circuit's run, in logits; positive helps the right answer."""

    sources: tuple[Node, ...]
    terms: Float[Tensor, "prompt source"]
    biases: Float[Tensor, " prompt"]
    """Output biases, the final norm's and the unembedding's."""
    logit_diff: Float[Tensor, " prompt"]
    """Of the circuit's run, soft-cap included."""
    kept: tuple[bool, ...]
    """Whether the source's edge into the logits is in the circuit."""

    @property
    def total(self) -> Float[Tensor, " prompt"]:
        """The sum of all terms: the logit difference before any soft-cap."""
        return self.terms.sum(1) + self.biases


@torch.no_grad()
def circuit_terms(runner: CircuitRunner, circuit: Circuit) -> CircuitTerms:
    """Terms of one circuit's run at the answer position. `runner` must read logit_diff."""
    require_graph(circuit.graph, runner.sides.model)
    need_single(runner.sides.task, "direct logit attribution")
    if runner.sides.metric.name != "logit_diff":
        raise UserError(f"terms sum to the logit difference only, got metric {runner.sides.metric.name!r}")
    net, task, live = runner.base.net, runner.sides.task, Live(runner)
    rows = {v: circuit.mask[:, v].to(net.device)[None] for v in range(len(circuit.graph.slots))}
    live.commit(rows, live.metric_with(rows), 0)
    kept = live.mask[:, -1]
    mixed = torch.where(kept[:, None, None, None], live.live[1], live.ablated[1])
    each = precise(mixed[:, :, 0] if live.tail is not None else _answers(mixed, runner))
    u = answer_direction(net, task)
    final = precise(live._summed(each[:, :, None])[:, 0])
    d = pull_back(net.final, u.u, final)
    ways = _ways(net, d, each, circuit.graph)
    terms = torch.stack([(each[i] * ways[i]).sum(-1) for i in range(len(each))], 1)
    biases = u.bias + (0 if net.final.bias is None else u.u @ precise(net.final.bias))
    biases = biases + _output_biases(net, d, each, circuit.graph)
    return CircuitTerms(circuit.graph.sources, terms, biases, live.metric, tuple(kept.tolist()))


def _answers(x: Float[Tensor, "source batch pos d_model"], runner: CircuitRunner) -> Tensor:
    columns = runner.reader.prompts.answer_columns - runner.first
    return x[:, torch.arange(x.shape[1], device=x.device), columns.to(x.device)]


def _before(net: Net, each: Tensor, graph: Graph, layer: int) -> Float[Tensor, "batch d_model"]:
    """What a layer's post-norm receives from its heads."""
    at = 1 + layer * graph.per_layer
    return each[at : at + graph.geometry.heads].sum(0) + precise(head_weights(net, layer).b_O)


def _ways(net: Net, d: Tensor, each: Tensor, graph: Graph) -> list[Tensor]:
    """The direction at each source's output; heads of post-norm families are pulled through that norm."""
    ways = []
    for node in graph.sources:
        if node.kind == "head" and graph.geometry.post_norm:
            ways.append(pull_back(net.layers[node.layer].post1, d, _before(net, each, graph, node.layer)))
        else:
            ways.append(d)
    return ways


def _output_biases(net: Net, d: Tensor, each: Tensor, graph: Graph) -> Float[Tensor, " batch"]:
    """Terms of attention's output biases, and of post-norms' own. MLPs' biases are in what they write."""
    total = d.new_zeros(len(d))
    for layer, parts in enumerate(net.layers):
        way = d
        if graph.geometry.post_norm:
            way = pull_back(parts.post1, d, _before(net, each, graph, layer))
            if parts.post1.bias is not None:
                total = total + d @ precise(parts.post1.bias)
        total = total + way @ precise(head_weights(net, layer).b_O)
    return total


@torch.no_grad()
def edge_terms(
    model: Model, task: Task, *, ungrouped: bool = False, side: Side = "clean"
) -> Float[Tensor, "edge prompt"]:
    """Terms of every edge of the graph in its order, NaN for q, k and MLP edges.

    Raises UserError for answers of several tokens and models whose residual stream is no sum.
    """
    require_additive(model.geometry)
    need_single(task, "edge attribution")
    graph, task = Graph(model.geometry, ungrouped), task.to(model.device)
    prompts, g, net = task.prompts(side), model.geometry, model.net
    wanted = [*edge_addresses(g), Address("resid_post", g.layers - 1)]
    wanted += [Address("mlp_out_pre", i) for i in range(g.layers)] if g.post_norm and g.mlp else []
    base = base_run(model, prompts, list(dict.fromkeys(wanted)))
    columns = prompts.answer_columns
    pulled = pull(net, answer_direction(net, task), base.run.acts, columns)
    writes = written(base, graph)
    rows = torch.arange(len(prompts), device=net.device)
    out: list[Tensor] = []
    for slot in graph.slots:
        up = graph.upstream(slot)
        if slot.node.kind == "logits":
            out.append(einsum(precise(writes[:, rows, columns]), pulled.final, "source b d, b d -> source b"))
        elif slot.part == "v":
            heads = [n.head for n in graph.readers(slot)]
            out.append(_value_terms(base, graph, slot.node.layer, heads, writes[:up], pulled.attn[slot.node.layer]))
        else:
            out.append(writes.new_full((up, len(prompts)), torch.nan))
    return torch.cat([precise(t) for t in out])


def written(base: Base, graph: Graph) -> Float[Tensor, "source batch pos d_model"]:
    """What every source puts into the stream; a head's share of a post-norm with that norm's scale frozen."""
    g, live, each = base.net.geometry, live_sources(base), []
    each.append(live.input)
    for layer in range(g.layers):
        out = einsum(live.z[layer], head_weights(base.net, layer).W_O, "b p h d_head, h d_head d -> h b p d")
        if g.post_norm:
            norm, before = base.net.layers[layer].post1, base.at("attn_out_pre", layer)
            out = norm.linear(out, norm.denominator(before))
        each += [*out, *([live.mlp_out[layer]] if g.mlp else [])]
    return torch.stack(each)


def _value_terms(
    base: Base, graph: Graph, layer: int, heads: list[int], writes: Tensor, way: Float[Tensor, "batch d_model"]
) -> Float[Tensor, "source batch"]:
    """Terms through the values of some heads of a layer that share a v slot."""
    net, w, g = base.net, head_weights(base.net, layer), graph.geometry
    prompts = base.prompts
    rows = torch.arange(len(prompts), device=net.device)
    pattern = base.at("pattern", layer)[rows, :, prompts.answer_columns]
    total = writes.new_zeros(writes.shape[:2])
    norm = net.layers[layer].ln1
    read = norm.linear(writes, norm.denominator(base.at("resid_pre", layer))) if g.pre_norm else writes
    for h in heads:
        value = w.W_V[h // g.group]
        to = einsum(precise(way), precise(w.W_O[h]), "b d, d_head d -> b d_head").to(value.dtype)
        at_key = einsum(read, value, to, "source b key d, d d_head, b d_head -> source b key")
        total = total + einsum(at_key, pattern[:, h], "source b key, b key -> source b")
    return total


def heads_of(terms: Float[Tensor, "edge prompt"], graph: Graph) -> Float[Tensor, "layer head prompt"]:
    """v-edge terms of an ungrouped graph summed over sources: each head's term without its biases."""
    sums = terms.new_zeros(graph.geometry.layers * graph.geometry.heads, terms.shape[1])
    at = 0
    for slot in graph.slots:
        up = graph.upstream(slot)
        if slot.part == "v":
            sums[slot.node.layer * graph.geometry.heads + slot.node.head] = terms[at : at + up].sum(0)
        at += up
    return rearrange(sums, "(layer head) prompt -> layer head prompt", layer=graph.geometry.layers)
