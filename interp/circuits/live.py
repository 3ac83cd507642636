"""A circuit kept running: what it computes, and what changes when edges into some slots go.

The state is the live run of one circuit: every source's contribution to the residual stream, every slot's q, k
or v. Asked for the metric with other edges into a few slots, it recomputes only what those edges reach through
edges that are kept, many variants as rows of one pass; of the last layer only the metric's columns; of the
sequence only columns from the first one that the ablation changes. A search such as ACDC that goes from the
output to the input therefore runs the top of the model only, and little of that.

    x_slot = Σ_u (live_u where kept, else ablated_u) + biases,   exact norms, as in `interp.interventions.circuit`

Post-norm families sum a layer's heads, add the bias, apply the norm, and add the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.graph import Graph, Node, Slot
from interp.hooks.context import Held
from interp.hooks.taps import NO_TAP
from interp.interventions.circuit import CircuitRunner
from interp.interventions.sources import Sources
from interp.models.attention import attend
from interp.models.block import head_norm
from interp.models.forward import final_norm, unembed
from interp.models.grid import Grid
from interp.models.mlp import mlp
from interp.models.net import Net
from interp.models.weights import HeadWeights, head_weights

SlotRows = Mapping[int, Bool[Tensor, "variant source"]]
"""By slot index: which sources the slot reads live, in each variant."""


@dataclass(eq=False)
class Changes:
    """What a pass computed anew, with a leading axis of variants."""

    metric: Float[Tensor, "variant prompt"]
    sources: dict[int, Tensor] = field(default_factory=dict)
    """Contributions by source index: [variant, batch, pos, d_model]."""
    slots: dict[int, Tensor] = field(default_factory=dict)
    """q, k or v by slot index, rotated: [variant, batch, pos, d_head]."""


class Live:
    """The live run of a circuit of `runner.graph`; starts as the whole model."""

    def __init__(self, runner: CircuitRunner) -> None:
        self.runner, self.graph, self.base = runner, runner.graph, runner.base
        self.net: Net = runner.base.net
        g, graph = self.net.geometry, runner.graph
        self.first, self.rows = runner.first, len(runner.base.prompts)
        self.width = runner.base.prompts.width - self.first
        self.low = 1 + (g.layers - 1) * graph.per_layer
        """Sources below the last layer: they hold every column; the others only the metric's."""
        columns = runner.reader.columns if runner.options.prefix else None
        self.tail: Int[Tensor, ...] | None = None if columns is None else columns - self.first
        self.weights: list[HeadWeights] = [head_weights(self.net, layer) for layer in range(g.layers)]
        self.slots_at = self._slots_by_place()
        self.mask = (torch.arange(len(graph.sources))[:, None] < _upstream(graph)[None]).to(self.net.device)
        self._grids: dict[tuple[int, bool], Grid] = {}
        self._inputs: dict[int, Tensor] = {}
        with torch.no_grad():
            self.live = self._stacks(runner.live.columns(self.first))
            self.ablated = self._stacks(runner.ablated.columns(self.first))
            self.projected = self._projected()
            self.metric = self._metric(self._slot_input(len(graph.slots) - 1)[None])[0]

    def _slots_by_place(self) -> dict[tuple[int, str], list[int]]:
        found: dict[tuple[int, str], list[int]] = {}
        for i, s in enumerate(self.graph.slots):
            found.setdefault((s.node.layer, s.part or s.node.kind), []).append(i)
        return found

    def _stacks(self, sources: Sources) -> tuple[Tensor, Tensor]:
        """Contributions `[source, batch, pos, d_model]`: below the last layer at all columns, and all at the tail's."""
        g = self.net.geometry
        each = [sources.input]
        for layer in range(g.layers):
            out = einsum(sources.z[layer], self.weights[layer].W_O, "b p h d_head, h d_head d -> h b p d")
            each += [*out, *([sources.mlp_out[layer]] if g.mlp else [])]
        return torch.stack(each[: self.low]), self.narrow(torch.stack(each))

    def _projected(self) -> dict[int, Tensor]:
        """q, k, v of every slot in the base run, rotated, `[batch, pos, d_head]`."""
        g, found = self.net.geometry, {}
        for (layer, part), slots in self.slots_at.items():
            if part not in ("q", "k", "v"):
                continue
            site = "v" if part == "v" else f"{part}_rot"
            whole = self.base.at(site, layer)[:, self.first :]
            if part == "q" and layer == g.layers - 1:
                whole = rearrange(
                    self.narrow(rearrange(whole, "b p h d -> h b p d")), "h b p d -> b p h d"
                )  # fmt: skip
            share = g.group if self.graph.ungrouped and part != "q" else 1
            for i in slots:
                found[i] = whole[:, :, self.graph.slots[i].node.head // share]
        return found

    # columns and grids

    def narrow(self, x: Float[Tensor, "lead batch pos last"]) -> Float[Tensor, "lead batch kept last"]:
        """The metric's columns only, of a tensor that holds all columns from the first change on."""
        if self.tail is None:
            return x
        if self.tail.ndim == 1:
            return x[:, :, self.tail]
        return x[:, torch.arange(self.rows, device=x.device)[:, None], self.tail]

    @property
    def kept(self) -> int:
        """Columns that the last layer holds."""
        return self.width if self.tail is None else self.tail.shape[-1]

    def forget(self, slot: int) -> None:
        """Say that a slot's sources were changed by hand."""
        self._inputs.pop(slot, None)

    def at_tail(self, slot: int) -> bool:
        """Whether a slot reads at the metric's columns only."""
        s = self.graph.slots[slot]
        return s.node.kind == "logits" or (s.node.layer == self.net.geometry.layers - 1 and s.part not in ("k", "v"))

    def _grid(self, variants: int, tail: bool) -> Grid:
        key = (variants, tail and self.tail is not None)
        if key not in self._grids:
            prompts = self.base.prompts
            per_row = key[1] and self.tail is not None and self.tail.ndim == 2
            packed = prompts.repeat(variants) if prompts.padded or per_row else prompts
            columns = torch.arange(self.first, prompts.width, device=prompts.device)
            if key[1] and self.tail is not None:
                columns = self.tail + self.first
                columns = columns.repeat(variants, 1) if per_row else columns
            self._grids[key] = Grid(self.net, Held(packed, columns, self.first == 0 and not key[1]), self.net.dtype)
        return self._grids[key]

    # what slots read

    def _slot_input(self, slot: int) -> Float[Tensor, "batch pos d_model"]:
        """The residual as a slot reads it in the present state."""
        if slot not in self._inputs:
            up, tail = self.graph.upstream(self.graph.slots[slot]), self.at_tail(slot)
            kept = self.mask[:up, slot].to(self.net.dtype)
            live, ablated = self.live[tail][:up], self.ablated[tail][:up]
            mixed = ablated + kept[:, None, None, None] * (live - ablated)
            self._inputs[slot] = self._summed(mixed)
        return self._inputs[slot]

    def _summed(self, each: Float[Tensor, "source batch pos d_model"]) -> Tensor:
        """Contributions and biases added up; a layer's heads through its post-norm."""
        g, per = self.net.geometry, self.graph.per_layer
        if not g.post_norm:
            layers = (len(each) - 1 + per - g.heads) // per
            return each.sum(0) + sum(w.b_O for w in self.weights[:layers])  # type: ignore[no-any-return]
        total = each[0].clone()
        for layer in range(g.layers):
            at = 1 + layer * per
            if at >= len(each):
                break
            heads = each[at : at + g.heads].sum(0) + self.weights[layer].b_O
            total = total + self.net.layers[layer].post1(heads)
            if at + g.heads < len(each):
                total = total + each[at + g.heads]
        return total

    def _variant_inputs(
        self, slot: int, rows: SlotRows, changed: Mapping[int, Tensor], variants: int
    ) -> Float[Tensor, "variant batch pos d_model"]:
        """The residual as a slot reads it in each variant."""
        up, tail, dtype = self.graph.upstream(self.graph.slots[slot]), self.at_tail(slot), self.net.dtype
        present = self.mask[:up, slot]
        mask = rows[slot][:, :up] if slot in rows else present[None].expand(variants, -1)
        x = self._slot_input(slot)[None]
        moved = self._differences(slot, mask, changed)
        if not self.net.geometry.post_norm:
            if slot in rows:
                differ = mask.to(dtype) - present.to(dtype)
                gap = self.live[tail][:up] - self.ablated[tail][:up]
                used = differ.any(0).nonzero().flatten()
                x = x + einsum(differ[:, used], gap[used], "variant source, source b p d -> variant b p d")
            for change in moved.values():
                x = x + change
            return x.expand(variants, *x.shape[1:])
        kept = mask.to(dtype)[..., None, None, None]
        each = self.ablated[tail][:up] + kept * (self.live[tail][:up] - self.ablated[tail][:up])
        for u, change in moved.items():
            each[:, u] += change
        return torch.stack([self._summed(one) for one in each])

    def _differences(
        self, slot: int, mask: Bool[Tensor, "variant source"], changed: Mapping[int, Tensor]
    ) -> dict[int, Tensor]:
        """new − present of the sources that moved and that the slot reads live."""
        tail, out = self.at_tail(slot), {}
        for u, new in changed.items():
            if u < mask.shape[1] and bool(mask[:, u].any()):
                new = self.narrow(new) if tail and u < self.low else new
                gap = new - self.live[tail][u]
                out[u] = gap if bool(mask[:, u].all()) else gap * mask[:, u, None, None, None]
        return out

    # one pass

    def metric_with(self, rows: SlotRows) -> Changes:
        """The metric of each variant, and what it computed anew. Every slot's rows are as many."""
        variants = len(next(iter(rows.values())))
        changes = Changes(self.metric[None].expand(variants, -1))
        g = self.net.geometry
        nodes = [self.graph.slots[s].node for s in rows]
        start = min(g.layers if n.kind == "logits" else n.layer for n in nodes)
        with torch.no_grad():
            for layer in range(start, g.layers):
                if g.mlp and g.parallel:  # both read the residual before either is added
                    before = dict(changes.sources)
                    self._attention(layer, rows, changes, variants)
                    self._mlp(layer, rows, changes, before, variants)
                else:
                    self._attention(layer, rows, changes, variants)
                    if g.mlp:
                        self._mlp(layer, rows, changes, changes.sources, variants)
            last = len(self.graph.slots) - 1
            if self._affected(last, rows, changes.sources):
                changes.metric = self._metric(self._variant_inputs(last, rows, changes.sources, variants))
        return changes

    def _affected(self, slot: int, rows: SlotRows, changed: Mapping[int, Tensor]) -> bool:
        if slot in rows:
            return True
        return bool(self.mask[list(changed), slot].any()) if changed else False

    def _attention(self, layer: int, rows: SlotRows, changes: Changes, variants: int) -> None:
        heads: set[int] = set()
        for part in "qkv":
            slots = [s for s in self.slots_at[layer, part] if self._affected(s, rows, changes.sources)]
            if not slots:
                continue
            if (
                part in "qk"
                and getattr(self.net.layers[layer], f"{part}_norm")
                and self.net.family.norm_heads != "each"
            ):
                slots = self.slots_at[layer, part]  # one norm over all heads
            x = torch.stack([self._variant_inputs(s, rows, changes.sources, variants) for s in slots], 3)
            own = self._project(layer, part, [self.graph.slots[s] for s in slots], x)
            for i, s in enumerate(slots):
                changes.slots[s] = own[:, :, :, i]
                heads |= {n.head for n in self.graph.readers(self.graph.slots[s])}
        if not heads:
            return
        order = sorted(heads)
        z = self._attend(layer, order, changes.slots, variants)
        out = einsum(z, self.weights[layer].W_O[order], "variant b h p d_head, h d_head d -> h variant b p d")
        for h, one in zip(order, out, strict=True):
            changes.sources[self.graph.source_index[Node("head", layer, h)]] = one

    def _norms_heads_together(self, layer: int, part: str) -> bool:
        return getattr(self.net.layers[layer], f"{part}_norm") is not None and self.net.family.norm_heads != "each"

    def _project(self, layer: int, part: str, slots: Sequence[Slot], x: Tensor) -> Tensor:
        """q, k or v, normed and rotated: `[variant, batch, pos, slot, d_head]` from residuals of that shape."""
        g, w = self.net.geometry, self.weights[layer]
        x = self.net.layers[layer].ln1(x) if g.pre_norm else x
        grid = self._grid(x.shape[0], part == "q" and layer == g.layers - 1)
        if g.qk_positions and part in "qk":
            places = self.net.pos_embed(grid.positions)[:, :, None]  # type: ignore[misc]
            x = x + (places if len(places) == 1 else places.unflatten(0, (len(x), -1)))
        weight, bias = {"q": (w.W_Q, w.b_Q), "k": (w.W_K, w.b_K), "v": (w.W_V, w.b_V)}[part]
        share = g.group if self.graph.ungrouped and part != "q" else 1
        index = [s.node.head // share for s in slots]
        y = einsum(x, weight[index], "variant b p slot d, slot d d_head -> variant b p slot d_head") + bias[index]
        if part == "v":
            return y
        flat = grid.rotate(head_norm(self.net, layer, y.flatten(0, 1), part), layer)
        turned: Tensor = flat.view_as(y)
        return turned

    def _attend(self, layer: int, heads: Sequence[int], new: Mapping[int, Tensor], variants: int) -> Tensor:
        """z of some heads, `[variant, batch, head, pos, d_head]`."""
        parts = []
        for part in "qkv":
            each = []
            for h in heads:
                slot = next(s for s in self.graph.slots_of(Node("head", layer, h)) if s.part == part)
                i = self.graph.slot_index[slot]
                each.append(new[i] if i in new else self.projected[i][None].expand(variants, -1, -1, -1))
            stacked = torch.stack(each, 2)
            parts.append(stacked if part == "q" else self._whole(stacked, layer, part, heads))
        q, k, v = (t.flatten(0, 1) for t in parts)
        grid = self._grid(variants, layer == self.net.geometry.layers - 1)
        pattern = attend(self.net, layer, q, k, grid, heads=heads)
        z: Tensor = torch.matmul(pattern, v).unflatten(0, (variants, -1))
        return z

    def _whole(self, held: Tensor, layer: int, part: str, heads: Sequence[int]) -> Tensor:
        """Keys or values with the base run's before the first held column."""
        if self.first == 0:
            return held
        site = "v" if part == "v" else "k_rot"
        own = [h // self.net.geometry.group for h in heads]
        before = self.base.at(site, layer)[:, : self.first][:, :, own].transpose(1, 2)
        return torch.cat([before[None].expand(held.shape[0], *before.shape), held], 3)

    def _mlp(self, layer: int, rows: SlotRows, changes: Changes, before: Mapping[int, Tensor], variants: int) -> None:
        slot = self.slots_at[layer, "mlp"][0]
        if self._affected(slot, rows, before):
            x = self._variant_inputs(slot, rows, before, variants)
            out = mlp(self.net, layer, x.flatten(0, 1), NO_TAP, {}).unflatten(0, (variants, -1))
            changes.sources[self.graph.source_index[Node("mlp", layer)]] = out

    def _metric(self, x: Float[Tensor, "variant batch kept d_model"]) -> Float[Tensor, "variant prompt"]:
        reader = self.runner.reader
        ready = final_norm(self.net, x)
        if self.runner.options.prefix:
            return torch.stack([reader.values(one) for one in ready])
        return torch.stack([reader.of_logits(unembed(self.net, one)) for one in ready])

    # moving on

    def commit(self, rows: SlotRows, changes: Changes, variant: int) -> None:
        """Make one variant of a pass the present state."""
        touched = set(rows)
        for slot, mask in rows.items():
            self.mask[:, slot] = mask[variant].to(self.mask.device)
        for u, new in changes.sources.items():
            one = new[variant]
            touched |= set(self.mask[u].nonzero().flatten().tolist())
            if u < self.low:
                self.live[0][u] = one
                self.live[1][u] = self.narrow(one[None])[0]
            else:
                self.live[1][u] = one
        for slot, new in changes.slots.items():
            self.projected[slot] = new[variant].clone()
        for slot in touched:
            self._inputs.pop(slot, None)
        self.metric = changes.metric[variant]


def _upstream(graph: Graph) -> Tensor:
    return torch.tensor([graph.upstream(s) for s in graph.slots])
