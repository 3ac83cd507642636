"""Position-aware circuits: a graph per label, with edges across labels where attention carries them.

Prompts of one task differ in length and order, but carry labels. A token's *span* is the last label at or
before it (`start` before the first one), so every token has a span, and spans mean the same in every prompt.
Nodes and slots exist once per span. Edges:

    u@s -> q, MLP or logits @s      within a span
    u@s -> h@t <k> or <v>           what u wrote in span s, as queries of span t read it through h's keys or values

`LabelPass` runs such a circuit: each span's queries see keys and values of their own, in which sources outside
the circuit are ablated. Scores are exact first-order ones (EAP on this graph): the gradient of the metric by
each edge's gate, all gates open, times its removal, from one forward and one backward pass. With gates equal
for all spans it is the ordinary circuit.

Ablation: the corrupt prompt's value, zero, or the mean over a set's tokens of the same span (`mean`).

Source: position-aware edge attribution over spans, 2502.04577. Limits: models without post-norms; attention
costs as many passes as there are spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.circuits.values import edge_mask
from interp.graph import Edge, Graph, Slot
from interp.hooks.context import Held
from interp.hooks.prompts import Prompts
from interp.hooks.taps import NO_TAP
from interp.interventions.base import Base, base_run
from interp.interventions.edges import edge_addresses
from interp.interventions.sources import Sources, live_sources, require_additive, source_addresses
from interp.interventions.sweep import Sides
from interp.metric_values import Metric
from interp.models.attention import attend
from interp.models.block import head_norm
from interp.models.forward import final_norm
from interp.models.grid import Grid
from interp.models.mlp import mlp
from interp.models.model import Model
from interp.models.weights import head_weights
from interp.registry import UserError, unknown
from interp.tasks.values import Task

START = "start"
Gates = Float[Tensor, "source slot src_span dst_span"]
LabelMask = Bool[Tensor, "source slot src_span dst_span"]
Ablation = Literal["corrupt", "mean", "zero"]


def span_names(prompts: Prompts, labels: Sequence[str] | None = None) -> tuple[str, ...]:
    """`start`, then the labels in the order of their mean position. UserError where there are none."""
    names = list(prompts.labels) if labels is None else list(labels)
    if not names:
        raise UserError("position-aware circuits need prompts that carry labels")
    for name in names:
        if bool((prompts.real_index(name) < 0).any()):
            row = int((prompts.real_index(name) < 0).int().argmax())
            raise UserError(f"prompt {row} has no token {name!r}; name labels that every prompt carries")
    return (START, *sorted(names, key=lambda n: float(prompts.labels[n].float().mean())))


def spans(prompts: Prompts, names: Sequence[str]) -> Int[Tensor, "batch pos"]:
    """The span of every column, as an index into `names`; padding belongs to the first."""
    found = torch.zeros_like(prompts.tokens)
    columns = torch.arange(prompts.width, device=prompts.device)[None]
    best = torch.full_like(prompts.tokens, -1)
    for i, name in enumerate(names):
        if name != START:
            at = prompts.column(name)[:, None]
            newer = (columns >= at) & (at > best)
            found, best = torch.where(newer, i, found), torch.where(newer, at.expand_as(best), best)
    return torch.where(prompts.mask, found, 0)


@dataclass(frozen=True, eq=False)
class LabelCircuit:
    """Edges of the graph per span, kept or not, with scores (positive helps the metric)."""

    graph: Graph
    names: tuple[str, ...]
    mask: LabelMask
    scores: Gates | None = None

    def __len__(self) -> int:
        return int(self.mask.sum())

    @property
    def edges(self) -> tuple[tuple[Edge, str, str], ...]:
        """Kept edges, each with the span it comes from and the span it is read in."""
        return tuple(
            (Edge(self.graph.sources[u], self.graph.slots[v]), self.names[s], self.names[t])
            for u, v, s, t in self.mask.nonzero().tolist()
        )

    def plain(self) -> Bool[Tensor, "source slot"]:
        """Edges kept in any span: the ordinary circuit around this one."""
        return self.mask.flatten(2).any(2)


def label_mask(graph: Graph, spans_count: int) -> LabelMask:
    """Which edges exist: within a span, or through keys and values from any span to any."""
    inside = torch.eye(spans_count, dtype=torch.bool)
    across = torch.ones(spans_count, spans_count, dtype=torch.bool)
    by_slot = torch.stack([across if s.part in ("k", "v") else inside for s in graph.slots])
    return edge_mask(graph)[:, :, None, None] & by_slot[None]


@dataclass(frozen=True, eq=False)
class LabelRunner:
    """A base run, its ablated sources and its spans, ready to run position-aware circuits."""

    sides: Sides
    graph: Graph
    names: tuple[str, ...]
    span: Int[Tensor, "batch pos"]
    base: Base
    ablated: Sources
    ablation: str

    @staticmethod
    def prepare(
        model: Model,
        task: Task,
        metric: str | Metric = "logit_diff",
        *,
        labels: Sequence[str] | None = None,
        ablation: Ablation = "mean",
        ungrouped: bool = False,
    ) -> LabelRunner:
        """Run the clean prompts and the ablation. UserError for prompts and models it is not defined on."""
        require_additive(model.geometry)
        if model.geometry.post_norm:
            raise UserError(f"position-aware circuits do not run models with post-norms, such as {model.name}")
        if ablation not in ("corrupt", "mean", "zero"):
            raise unknown("ablation", ablation, ["corrupt", "mean", "zero"])
        sides = Sides(model, task, metric)
        task = sides.task
        names = span_names(task.clean, labels)
        base = base_run(model, task.clean, edge_addresses(model.geometry))
        span = spans(task.clean, names)
        return LabelRunner(
            sides, Graph(model.geometry, ungrouped), names, span, base, _ablated(base, task, names, span, ablation),
            ablation if ablation != "mean" else "mean over corrupt by span",
        )  # fmt: skip

    def value(self, gates: Gates | LabelMask) -> Float[Tensor, " prompt"]:
        """The metric per prompt of one circuit; gates between 0 (ablated) and 1 (live)."""
        return LabelPass(self, gates.to(self.base.net.dtype)).value()

    def scores(self) -> Gates:
        """First-order score of every edge: estimated metric of the model − with the edge ablated, mean over prompts."""
        if not self.sides.metric.differentiable:
            raise UserError(f"metric {self.sides.metric.name!r} has no gradient")
        exists = label_mask(self.graph, len(self.names))
        gates = exists.to(self.base.net.dtype).to(self.base.net.device).requires_grad_(True)
        with torch.enable_grad():
            self.value(gates).mean().backward()
        assert gates.grad is not None
        sign = -1.0 if self.sides.metric.loss_like else 1.0
        return (sign * gates.grad * exists.to(gates.device)).detach()

    def circuit(self, n: int, *, absolute: bool = False) -> LabelCircuit:
        """The n edges with the largest scores."""
        scores, exists = self.scores().cpu(), label_mask(self.graph, len(self.names))
        if not 0 < n <= int(exists.sum()):
            raise UserError(f"{n} edges asked of a position-aware graph that has {int(exists.sum())}")
        size = (scores.abs() if absolute else scores).masked_fill(~exists, -torch.inf).flatten()
        mask = torch.zeros_like(size, dtype=torch.bool)
        mask[size.argsort(descending=True, stable=True)[:n]] = True
        return LabelCircuit(self.graph, self.names, mask.view_as(exists), scores)


def _ablated(base: Base, task: Task, names: tuple[str, ...], span: Tensor, ablation: str) -> Sources:
    live = live_sources(base)
    if ablation == "zero":
        return Sources(
            torch.zeros_like(live.input), tuple(torch.zeros_like(z) for z in live.z),
            tuple(torch.zeros_like(m) for m in live.mlp_out),
        )  # fmt: skip
    if ablation == "corrupt":
        task.require_aligned()
    donor = base_run(base.model, task.corrupt, source_addresses(base.net.geometry))
    other = live_sources(donor)
    if ablation == "corrupt":
        return other
    theirs, count = spans(task.corrupt, names), len(names)

    def means(x: Tensor) -> Tensor:
        """Mean over all the set's real tokens of each span, put where the span stands here."""
        real = task.corrupt.mask
        one_hot = (torch.nn.functional.one_hot(theirs, count) * real[..., None]).to(x.dtype)
        total = torch.einsum("bps,bp...->s...", one_hot, x)
        seen = one_hot.sum((0, 1)).clamp(min=1).view(-1, *(1,) * (total.ndim - 1))
        return (total / seen)[span]

    return Sources(means(other.input), tuple(means(z) for z in other.z), tuple(means(m) for m in other.mlp_out))


class LabelPass:
    """One pass over the layers for one set of gates; gradients flow to the gates."""

    def __init__(self, runner: LabelRunner, gates: Gates) -> None:
        self.runner, self.graph, self.base = runner, runner.graph, runner.base
        self.net, self.gates, self.span = runner.base.net, gates, runner.span
        prompts = runner.base.prompts
        self.grid = Grid(self.net, Held.all(prompts), self.net.dtype)
        self.count = len(runner.names)
        self.resid = live_sources(runner.base).input
        self.changes = [runner.ablated.input - self.resid]

    def value(self) -> Float[Tensor, " prompt"]:
        """Walk the layers, then read the metric."""
        g = self.net.geometry
        for layer in range(g.layers):
            out, heads = self._attention(layer)
            ahead = self._mlp(layer) if g.mlp and g.parallel else None
            self.resid = self.resid + out
            self.changes += list(heads)
            if g.mlp:
                written = self._mlp(layer) if ahead is None else ahead
                self.resid = self.resid + written
                self.changes.append(self.runner.ablated.mlp_out[layer] - written)
        x = final_norm(self.net, self._within([self.graph.slots[-1]])[0])
        reader = self.runner.sides.reader("clean")
        if reader.columns is not None:
            x = Held(self.base.prompts, reader.columns, False).take(x)
        return reader.values(x)

    def _within(self, slots: Sequence[Slot]) -> Float[Tensor, "slot batch pos d_model"]:
        """What slots that read their own span receive."""
        up, index = self.graph.upstream(slots[0]), [self.graph.slot_index[s] for s in slots]
        own = torch.diagonal(self.gates[:up][:, index], dim1=2, dim2=3)
        out = (1 - own)[:, :, self.span]
        return self.resid + einsum(
            out, torch.stack(self.changes[:up]), "source slot b p, source b p d -> slot b p d"
        )  # fmt: skip

    def _across(self, slots: Sequence[Slot], reader: int) -> Float[Tensor, "slot batch pos d_model"]:
        """What keys or values are made of, as queries of one span read them."""
        up, index = self.graph.upstream(slots[0]), [self.graph.slot_index[s] for s in slots]
        out = (1 - self.gates[:up][:, index, :, reader])[:, :, self.span]
        return self.resid + einsum(
            out, torch.stack(self.changes[:up]), "source slot b p, source b p d -> slot b p d"
        )  # fmt: skip

    def _attention(self, layer: int) -> tuple[Tensor, Tensor]:
        """attn_out, and ablated − live of the layer's heads `[head, batch, pos, d_model]`."""
        parts, w = self.net.layers[layer], head_weights(self.net, layer)
        q = self._heads(layer, "q", self._within(self._slots(layer, "q"))).transpose(1, 2)
        z = torch.zeros_like(q)
        for t in range(self.count):
            here = (self.span == t)[:, None, :, None]
            k, v = (self._heads(layer, c, self._across(self._slots(layer, c), t)).transpose(1, 2) for c in "kv")
            k, v = (x.repeat_interleave(z.shape[1] // x.shape[1], 1) for x in (k, v))
            pattern = attend(self.net, layer, q, k, self.grid)
            z = torch.where(here, torch.matmul(pattern, v), z)
        z = z.transpose(1, 2)
        out = parts.out(z.reshape(*z.shape[:2], -1))
        gap = self.runner.ablated.z[layer] - z
        return out, einsum(gap, w.W_O, "b p head d_head, head d_head d -> head b p d")

    def _slots(self, layer: int, part: str) -> list[Slot]:
        return [s for s in self.graph.slots if s.node.kind == "head" and s.node.layer == layer and s.part == part]

    def _heads(self, layer: int, part: str, x: Float[Tensor, "slot batch pos d_model"]) -> Tensor:
        """q, k or v `[batch, pos, slot, d_head]`, normed and rotated."""
        g, w = self.net.geometry, head_weights(self.net, layer)
        x = self.net.layers[layer].ln1(x) if g.pre_norm else x
        if g.qk_positions and part in "qk":
            x = x + self.net.pos_embed(self.grid.positions)  # type: ignore[misc]
        weight, bias = {"q": (w.W_Q, w.b_Q), "k": (w.W_K, w.b_K), "v": (w.W_V, w.b_V)}[part]
        share = len(x) // len(weight)
        weight, bias = (t.repeat_interleave(share, 0) for t in (weight, bias))
        y = einsum(x, weight, "slot b p d, slot d d_head -> b p slot d_head") + bias
        return y if part == "v" else self.grid.rotate(head_norm(self.net, layer, y, part), layer)

    def _mlp(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        slot = next(s for s in self.graph.slots if s.node.kind == "mlp" and s.node.layer == layer)
        return mlp(self.net, layer, self._within([slot])[0], NO_TAP, {})
