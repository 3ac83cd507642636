"""Running circuits: every edge outside the circuit ablated, in one live run.

Each slot reads its own copy of the residual stream, in which the sources whose edge is in the circuit have
the values they take in this very run, and the others their ablated values:

    x_slot = resid + Σ_{u outside} (ablated_u − live_u)

Families with a norm after attention assemble each layer's heads per slot (live or ablated), add the bias,
apply that norm, and add the result. Norms are recomputed per slot; nothing is frozen.

Many circuits run as rows of one pass. Columns before the first one that the ablation changes are the base
run's, as in replay; of the logits only what the metric reads is computed. The full circuit gives the model's
metric, the empty one that of the ablated sources alone (under `corrupt`: the corrupt run's, exactly).

Source: 2304.14997, 2504.13151.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from interp.graph import Edge, Graph, Slot
from interp.hooks.context import Held
from interp.hooks.taps import NO_TAP
from interp.interventions.base import Base, base_run
from interp.interventions.edges import CORRUPT, edge_addresses
from interp.interventions.effects import Effects, Progress
from interp.interventions.plan import DEFAULT, PASS_TOKENS, Options, make_plan
from interp.interventions.reading import Reader
from interp.interventions.replay import out_of_memory
from interp.interventions.sources import Recipe, Sources, ablated_sources, live_sources, replacement_for
from interp.interventions.sweep import Sides, effects_of
from interp.metric_values import Metric
from interp.models.attention import attend
from interp.models.block import head_norm
from interp.models.forward import final_norm, unembed
from interp.models.grid import Grid
from interp.models.mlp import mlp
from interp.models.model import Model
from interp.models.net import Net
from interp.models.weights import HeadWeights, head_weights
from interp.registry import UserError
from interp.tasks.values import Side, Task

Masks = Bool[Tensor, "circuit source slot"]
Gates = Float[Tensor, "circuit source slot"]
"""Shares between 0 (ablated) and 1 (live), for masks that are learned; gradients flow to them."""


def circuit_effects(
    model: Model,
    task: Task,
    circuits: Sequence[Iterable[Edge | str]] | Masks,
    metric: str | Metric = "logit_diff",
    *,
    recipe: Recipe = CORRUPT,
    ungrouped: bool = False,
    side: Side = "clean",
    options: Options = DEFAULT,
    progress: Progress | None = None,
) -> Effects:
    """The metric of each circuit, everything outside it ablated; one row per circuit.

    `circuits` are edges kept, or a mask over (source, slot). The baseline is the whole model on `side`.
    """
    graph = Graph(model.geometry, ungrouped)
    masks = circuits if isinstance(circuits, Tensor) else masks_of(graph, circuits)
    runner = CircuitRunner.prepare(Sides(model, task, metric), graph, recipe, side, options)
    values = runner.values(masks, progress)
    about = {"method": "circuit", "granularity": "edge", "ablation": runner.name, "direction": "ablate",
             "side": "circuit", "components": "ungrouped" if ungrouped else "grouped"}  # fmt: skip
    keys = [{"algorithm": f"circuit {i}"} for i in range(len(masks))]
    plan = make_plan(model, [], runner.reader, options, runner.base)
    return effects_of(runner.sides, side, keys, values, plan, about, recipe.seed)


def masks_of(graph: Graph, circuits: Sequence[Iterable[Edge | str]]) -> Masks:
    """Edge sets as a mask `[circuit, source, slot]`; an edge the graph lacks raises UserError."""
    masks = torch.zeros(len(circuits), len(graph.sources), len(graph.slots), dtype=torch.bool)
    for i, edges in enumerate(circuits):
        for e in graph.between(edges):
            masks[i, graph.source_index[e.src], graph.slot_index[e.dst]] = True
    return masks


@dataclass(frozen=True, eq=False)
class CircuitRunner:
    """A base run and its ablated sources, ready to run any circuits of a graph."""

    sides: Sides
    graph: Graph
    reader: Reader
    base: Base
    live: Sources
    ablated: Sources
    name: str
    """What the ablation is called in tables."""
    first: int
    """First column that the ablation changes."""
    options: Options = DEFAULT

    @staticmethod
    def prepare(
        sides: Sides, graph: Graph, recipe: Recipe = CORRUPT, side: Side = "clean", options: Options = DEFAULT
    ) -> CircuitRunner:
        """Run the base and the ablation once. Raises UserError where edges are not defined on the model."""
        model = sides.model
        replacement = replacement_for(model, sides.task, recipe)
        reader = sides.reader(side)
        base = base_run(model, reader.prompts, edge_addresses(model.geometry))
        live, ablated = live_sources(base), ablated_sources(base, replacement)
        first = _first_change(live, ablated) if options.prefix and model.geometry.causal else 0
        first = min(first, _lowest_read(reader))
        return CircuitRunner(sides, graph, reader, base, live, ablated, replacement.name, first, options)

    def values(self, masks: Masks, progress: Progress | None = None) -> Float[Tensor, "circuit prompt"]:
        """The metric of every circuit, `[circuit, prompt]`."""
        tokens = len(self.reader.prompts) * (self.reader.prompts.width - self.first)
        # every slot of a layer holds a residual of its own
        size = self.options.pack or max(1, PASS_TOKENS // (tokens * 4))
        out: list[Tensor] = []
        start = 0
        with torch.no_grad():
            while start < len(masks):
                part = masks[start : start + size].to(self.base.net.device)
                try:
                    out.append(CircuitPass(self, part).values())
                except RuntimeError as e:
                    if not out_of_memory(e) or size == 1:
                        raise
                    size = max(1, size // 2)
                    continue
                start += len(part)
                if progress is not None:
                    progress(start, len(masks))
        return torch.cat(out) if out else torch.zeros(0, self.reader.task.n)


def _first_change(live: Sources, ablated: Sources) -> int:
    width = live.input.shape[1]
    first = width - 1
    pairs = [(live.input, ablated.input), *zip(live.z, ablated.z, strict=True)]
    pairs += list(zip(live.mlp_out, ablated.mlp_out, strict=True))
    for a, b in pairs:
        moved = (a != b).flatten(2).any(2).any(0).nonzero()
        first = min(first, int(moved[0])) if len(moved) else first
    return first


def _lowest_read(reader: Reader) -> int:
    columns = reader.columns
    return 0 if columns is None else int(columns.min())


class CircuitPass:
    """One pass over the layers for several circuits at once: rows are circuits × prompts."""

    def __init__(self, runner: CircuitRunner, masks: Masks | Gates) -> None:
        self.runner, self.base, self.graph = runner, runner.base, runner.graph
        self.net: Net = runner.base.net
        self.circuits, self.first = len(masks), runner.first
        self.out = ~masks if masks.dtype == torch.bool else 1 - masks
        """Edges outside each circuit, or the share that is outside: their source is ablated for that slot."""
        prompts = self.base.prompts
        packed = prompts.repeat(self.circuits) if prompts.padded else prompts
        columns = torch.arange(self.first, prompts.width, device=prompts.device)
        self.grid = Grid(self.net, Held(packed, columns, self.first == 0), self.net.dtype)
        self.ablated = runner.ablated.columns(self.first)
        live_input = self._repeated(runner.live.input[:, self.first :])
        self.resid = live_input
        self.changes = [self._per_circuit(self.ablated.input) - self._rows(live_input)]
        """ablated − live of each source so far, `[circuit, batch, pos, d_model]`."""
        self.pre: list[tuple[Tensor, Tensor]] = []
        """Post-norm families: each layer's attn_out_pre, and its heads' changes."""

    def _repeated(self, x: Tensor) -> Tensor:
        return x.repeat(self.circuits, *(1,) * (x.ndim - 1))

    def _rows(self, x: Tensor) -> Tensor:
        return x.view(self.circuits, -1, *x.shape[1:])

    def _per_circuit(self, x: Tensor) -> Tensor:
        return x[None].expand(self.circuits, *x.shape)

    def values(self) -> Float[Tensor, "circuit prompt"]:
        """Walk the layers, then read the metric at the logits' slot."""
        g = self.net.geometry
        for layer in range(g.layers):
            attn_out, head_changes, pre = self._attention(layer)
            if g.mlp and g.parallel:
                mlp_out = self._mlp(layer, self.resid)
                self.resid = mlp_out + attn_out + self.resid
                self._record(layer, head_changes, pre, mlp_out)
                continue
            self.resid = self.resid + attn_out
            self._record(layer, head_changes, pre, None)
            if g.mlp:
                mlp_out = self._mlp(layer, self.resid)
                self.resid = self.resid + mlp_out
                self.changes.append(self._per_circuit(self.ablated.mlp_out[layer]) - self._rows(mlp_out))
        return self._read()

    def _record(self, layer: int, heads: Tensor, pre: Tensor, mlp_out: Tensor | None) -> None:
        self.changes += list(heads)
        if self.net.geometry.post_norm:
            self.pre.append((self._rows(pre), heads))
        if mlp_out is not None:
            self.changes.append(self._per_circuit(self.ablated.mlp_out[layer]) - self._rows(mlp_out))

    def _inputs(self, slots: Sequence[Slot], resid: Tensor) -> Float[Tensor, "circuit slot batch pos d_model"]:
        """The residual as each slot reads it."""
        index = [self.graph.slot_index[s] for s in slots]
        upstream = self.graph.upstream(slots[0])
        out = self.out[:, :upstream][:, :, index].to(resid.dtype)
        base = self._rows(resid)[:, None]
        if not self.net.geometry.post_norm:
            change = torch.stack(self.changes[:upstream], 1)
            return base + einsum(out, change, "circuit source slot, circuit source ... -> circuit slot ...")
        return base + self._post_norm_change(out, upstream)

    def _post_norm_change(self, out: Tensor, upstream: int) -> Tensor:
        """Heads' changes go through their layer's post-norm together; the other sources' add up."""
        g, per = self.net.geometry, self.graph.per_layer
        layered = [i for i in range(1, upstream) if (i - 1) % per < g.heads]
        plain = [i for i in range(upstream) if i not in set(layered)]
        change = torch.stack([self.changes[i] for i in plain], 1)
        total = einsum(out[:, plain], change, "circuit source slot, circuit source ... -> circuit slot ...")
        for layer, (pre, heads) in enumerate(self.pre):
            at = 1 + layer * per
            if at >= upstream:
                break
            norm = self.net.layers[layer].post1
            mine = out[:, at : at + g.heads]
            moved = einsum(mine, heads, "circuit head slot, head circuit ... -> circuit slot ...")
            total = total + (norm(pre[:, None] + moved) - norm(pre)[:, None])
        return total

    def _attention(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """attn_out of the live run, its heads' changes `[head, circuit, batch, pos, d_model]`, attn_out_pre."""
        g, parts = self.net.geometry, self.net.layers[layer]
        w = head_weights(self.net, layer)
        q, k, v = (self._project(layer, part, w) for part in "qkv")
        q, k = (self.grid.rotate(head_norm(self.net, layer, t, n), layer) for t, n in ((q, "q"), (k, "k")))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (self._whole(t, layer, site) for t, site in ((k, "k_rot"), (v, "v")))
        pattern = attend(self.net, layer, q, k, self.grid)
        z = torch.matmul(pattern, v).transpose(1, 2)
        pre = parts.out(z.reshape(*z.shape[:2], -1))
        out = parts.post1(pre) if g.post_norm else pre
        gap = self._per_circuit(self.ablated.z[layer]) - self._rows(z)
        heads = einsum(gap, w.W_O, "c b pos head d_head, head d_head d_model -> head c b pos d_model")
        return out, heads, pre

    def _project(self, layer: int, part: str, w: HeadWeights) -> Float[Tensor, "rows pos head d_head"]:
        """q, k or v of every query head, each from the residual its own slot reads."""
        g = self.net.geometry
        slots = [s for s in self.graph.slots if s.node.kind == "head" and s.node.layer == layer and s.part == part]
        x = self._inputs(slots, self.resid)
        x = self.net.layers[layer].ln1(x) if g.pre_norm else x
        if g.qk_positions and part in "qk":
            places = self.net.pos_embed(self.grid.positions)  # type: ignore[misc]
            # padded prompts: each circuit's rows have positions of their own
            x = x + (places if len(places) == 1 else places.unflatten(0, (self.circuits, 1, -1)))
        weight, bias = {"q": (w.W_Q, w.b_Q), "k": (w.W_K, w.b_K), "v": (w.W_V, w.b_V)}[part]
        if part != "q":
            share = g.heads // len(weight) if self.graph.ungrouped else 1
            weight, bias = (t.repeat_interleave(share, 0) for t in (weight, bias))
        y = einsum(x, weight, "c head b pos d_model, head d_model d_head -> c b pos head d_head") + bias
        return rearrange(y, "c b pos head d_head -> (c b) pos head d_head")

    def _whole(self, held: Tensor, layer: int, site: str) -> Tensor:
        """Keys or values by query head, with the base run's before the first held column."""
        if held.shape[1] != self.net.geometry.heads:
            held = held.repeat_interleave(self.net.geometry.group, 1)
        if self.first == 0:
            return held
        before = self.base.at(site, layer)[:, : self.first].transpose(1, 2)
        before = before.repeat_interleave(self.net.geometry.group, 1)
        return torch.cat([self._repeated(before), held], 2)

    def _mlp(self, layer: int, resid: Tensor) -> Tensor:
        """mlp_out of the live run, from the residual the MLP's slot reads."""
        slot = next(s for s in self.graph.slots if s.node.kind == "mlp" and s.node.layer == layer)
        x = self._inputs([slot], resid)[:, 0].flatten(0, 1)
        return mlp(self.net, layer, x, NO_TAP, {})

    def _read(self) -> Float[Tensor, "circuit prompt"]:
        reader = self.runner.reader
        slot = self.graph.slots[-1]
        x = final_norm(self.net, self._inputs([slot], self.resid)[:, 0])
        rows = []
        for one in x:
            if not self.runner.options.prefix:
                rows.append(reader.of_logits(unembed(self.net, one)))
                continue
            if reader.columns is not None:
                one = Held(self.base.prompts, reader.columns - self.first, False).take(one)
            rows.append(reader.values(one))
        return torch.stack(rows)


def require_graph(graph: Graph, model: Model) -> None:
    """UserError where a graph belongs to a model of another shape."""
    if graph.geometry != model.geometry:
        raise UserError(f"this circuit belongs to another model: {graph}, model {model!r}")
