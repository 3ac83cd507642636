"""Path patching with everything else frozen: the algorithm of the IOI paper, `freeze="heads"`.

For each sender:
1. the base run with the sender from the other prompt, all other heads held at their base values, MLPs
   recomputed (or frozen too): the sender reaches later layers directly, or through MLPs only;
2. record what the receivers read in that run: q, k, v of heads, or MLP inputs, or the final residual;
3. the base run with all the receivers' recorded values put in together, everything after recomputed.

The other algorithm, `edges` (ACDC, EAP), is `interp.interventions.edges`: each listed edge's contribution is
replaced in a live run. The two agree for one receiver with MLPs frozen.

Steps 1 and 2 need no attention at all, since heads are held: only the MLPs above the sender are run. Source:
2211.00593 appendix B. Norms are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from interp.graph import Graph, Node, Slot
from interp.hooks import edits
from interp.hooks.taps import NO_TAP
from interp.interventions.base import Base, base_run
from interp.interventions.edges import CORRUPT, edge_addresses
from interp.interventions.effects import Effects, Progress, stacked
from interp.interventions.plan import DEFAULT, Options, make_plan
from interp.interventions.sources import Recipe, Sources, ablated_sources, deltas, live_sources, replacement_for
from interp.interventions.sweep import Sides, effects_of
from interp.metric_values import Metric
from interp.models.block import project
from interp.models.forward import final_norm
from interp.models.grid import Grid
from interp.models.mlp import mlp
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Side, Task

Mlps = Literal["recompute", "freeze"]


def path_effects(
    model: Model,
    task: Task,
    senders: Iterable[Node | str] | None = None,
    receivers: Iterable[Slot | str] = ("logits",),
    metric: str | Metric = "logit_diff",
    *,
    mlps: Mlps = "recompute",
    recipe: Recipe = CORRUPT,
    side: Side = "clean",
    options: Options = DEFAULT,
    progress: Progress | None = None,
) -> Effects:
    """The effect of each sender on the metric through the receivers together, all other heads frozen.

    Args:
        senders: nodes such as `a5.h5`, `m0`, `input`; by default every head.
        receivers: slots such as `a9.h9<q>` (k and v by kv head), `m3`, `logits`.
        mlps: MLPs between sender and receivers are recomputed, or frozen at their base values.

    A sender that no receiver reads has effect 0. Raises UserError for nodes the model lacks.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> effects = path_effects(model, task, ["a0.h3", "a1.h0"], ["a2.h1<q>", "logits"])
    >>> len(effects.table())
    2
    """
    graph = Graph(model.geometry)
    froms = _senders(graph, senders)
    tos = [graph_slot(graph, r) for r in receivers]
    if mlps not in ("recompute", "freeze"):
        raise UserError(f"mlps must be 'recompute' or 'freeze', got {mlps!r}")
    if not tos:
        raise UserError("path patching needs at least one receiver")
    sides = Sides(model, task, metric)
    replacement = replacement_for(model, sides.task, recipe)
    reader = sides.reader(side)
    base = base_run(model, reader.prompts, edge_addresses(model.geometry))
    runner = _Frozen(base, graph, live_sources(base), ablated_sources(base, replacement), mlps == "freeze")
    values = []
    for i, sender in enumerate(froms):
        with torch.no_grad():
            held = runner.received(sender, tos)
        values.append(make_plan(model, [held], reader, options, base).run()[0])
        if progress is not None:
            progress(i + 1, len(froms))
    about = {"method": "path patch", "algorithm": f"freeze heads, MLPs {mlps}", "granularity": "node",
             "ablation": replacement.name, "direction": "ablate"}  # fmt: skip
    keys = [{"src": str(n), "dst": "+".join(map(str, tos)), **_place(n)} for n in froms]
    plan = make_plan(model, [], reader, options, base)
    return effects_of(sides, side, keys, torch.stack(values), plan, about, recipe.seed)


def iterated(
    model: Model,
    task: Task,
    rounds: int,
    top: int,
    metric: str | Metric = "logit_diff",
    *,
    parts: Sequence[str] = ("q", "k", "v"),
    mlps: Mlps = "recompute",
    recipe: Recipe = CORRUPT,
    options: Options = DEFAULT,
    progress: Progress | None = None,
) -> Effects:
    """Path patching as the IOI paper goes about it: first into the logits, then into q, k and v of what mattered.

    Each round's receivers are one part of the `top` heads with the largest absolute effect in the round
    before, taken together.
    """
    graph = Graph(model.geometry)
    tables = [path_effects(model, task, None, ["logits"], metric, mlps=mlps, recipe=recipe, options=options,
                           progress=progress)]  # fmt: skip
    seen: set[tuple[str, ...]] = set()
    newest = list(tables)
    for _ in range(rounds - 1):
        found = []
        for effects in newest:
            order = effects.mean.abs().argsort(descending=True)[:top].tolist()
            heads = [Node("head", effects.keys[i]["layer"], effects.keys[i]["head"]) for i in order]
            for part in parts:
                slots = sorted({s for h in heads for s in graph.slots_of(h) if s.part == part})
                names = tuple(map(str, slots))
                if all(s.node.layer == 0 for s in slots) or names in seen:
                    continue
                seen.add(names)
                found.append(path_effects(model, task, None, slots, metric, mlps=mlps, recipe=recipe,
                                          options=options, progress=progress))  # fmt: skip
        newest = found
        tables += found
    return replace(stacked(tables), about=tables[0].about)


def _place(node: Node) -> dict[str, int]:
    if node.kind == "head":
        return {"layer": node.layer, "head": node.head}
    return {"layer": node.layer} if node.kind == "mlp" else {}


def _senders(graph: Graph, senders: Iterable[Node | str] | None) -> list[Node]:
    if senders is None:
        return [n for n in graph.sources if n.kind == "head"]
    nodes = [Node.parse(s) if isinstance(s, str) else s for s in senders]
    for n in nodes:
        if n not in graph.source_index:
            raise UserError(
                f"this model has no sender {n}; senders are input, heads a<layer>.h<head> and MLPs m<layer>"
            )
    return nodes


def graph_slot(graph: Graph, receiver: Slot | str) -> Slot:
    """The slot, if this graph has it; UserError otherwise."""
    slot = Slot.parse(receiver) if isinstance(receiver, str) else receiver
    if slot not in graph.slot_index:
        hint = " (k and v are counted by kv head)" if slot.part in ("k", "v") else ""
        first, *_, last, logits = graph.slots
        raise UserError(f"this model has no receiver {slot}{hint}; it has {first} to {last}, and {logits}")
    return slot


@dataclass(frozen=True, eq=False)
class _Frozen:
    """The base run with one sender changed and every other head held."""

    base: Base
    graph: Graph
    live: Sources
    ablated: Sources
    freeze_mlps: bool

    def received(self, sender: Node, receivers: Sequence[Slot]) -> list[edits.Edit]:
        """Edits that put in, together, what the receivers read."""
        residuals = self._residuals(sender)
        found = []
        for slot in receivers:
            if self.graph.source_index[sender] < self.graph.upstream(slot):
                found.append(self._edit(slot, residuals[slot.node.layer if slot.node.kind != "logits" else -1]))
        return found

    def _residuals(self, sender: Node) -> dict[int, tuple[Tensor, Tensor]]:
        """What attention and MLP of each layer read in the sender's run, and under −1 the final residual."""
        net, g, base = self.base.net, self.graph.geometry, self.base
        pre = [base.at("attn_out_pre", i) for i in range(g.layers)] if g.post_norm else []
        moved = deltas(net, self.live, self.ablated, [sender], pre)[0]
        change = moved if sender.kind == "input" else torch.zeros_like(moved)
        found = {}
        for layer in range(g.layers):
            at_attention = base.at("resid_pre", layer) + change
            if sender.kind == "head" and sender.layer == layer:
                change = change + moved
            at_mlp = at_attention if g.parallel or not g.mlp else base.at("resid_mid", layer) + change
            found[layer] = (at_attention, at_mlp)
            if sender.kind == "mlp" and sender.layer == layer:
                change = change + moved
            elif g.mlp and not self.freeze_mlps and bool((at_mlp != self._mlp_base(layer)).any()):
                change = change + (mlp(net, layer, at_mlp, NO_TAP, {}) - self.live.mlp_out[layer])
        found[-1] = (base.final + change, base.final + change)
        return found

    def _mlp_base(self, layer: int) -> Tensor:
        return self.base.at("resid_pre" if self.graph.geometry.parallel else "resid_mid", layer)

    def _edit(self, slot: Slot, read: tuple[Tensor, Tensor]) -> edits.Edit:
        net, layer, head = self.base.net, slot.node.layer, slot.node.head
        if slot.node.kind == "logits":
            return edits.hold("ln_final", final_norm(net, read[0]))
        norms = net.geometry.pre_norm
        if slot.node.kind == "mlp":
            return edits.hold(f"L{layer}.ln2", net.layers[layer].ln2(read[1]) if norms else read[1])
        x = net.layers[layer].ln1(read[0]) if norms else read[0]
        part = str(slot.part)
        own = project(net, layer, x, Grid.of(net, self.base.prompts, net.dtype))[part][:, :, head, None]
        return edits.hold(f"L{layer}.{part}", own, **{"head" if part == "q" else "kv_head": head})
