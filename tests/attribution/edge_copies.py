"""EAP the long way: a forward pass in which every slot reads a copy of the residual of its own.

Each edge's contribution gets a leaf of zeros; autograd's gradient there, times clean − ablated of what the
source writes, is that edge's score. Nothing here is shared with the fast way but the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from interp.graph import Edge, Graph, Slot
from interp.hooks.taps import NO_TAP
from interp.hooks.values import Run
from interp.metrics import get_metric
from interp.models.attention import attend
from interp.models.block import head_norm
from interp.models.forward import final_norm, unembed
from interp.models.grid import Grid
from interp.models.mlp import mlp
from interp.models.model import Model
from interp.tasks.values import Task


class Copies:
    """One pass from an input residual; `leaves` has a tensor of zeros per edge."""

    def __init__(self, model: Model, graph: Graph, task: Task) -> None:
        self.model, self.graph, self.net, self.prompts = model, graph, model.net, task.clean
        self.grid = Grid.of(self.net, task.clean, self.net.dtype)
        self.leaves: dict[Edge, Tensor] = {}
        self.written: list[Tensor] = []

    def read(self, slot: Slot) -> Tensor:
        """Σ over sources above the slot, each plus its leaf; heads' sums with bias and post-norm, layer by layer."""
        g, total = self.graph.geometry, torch.zeros(())
        heads: list[Tensor] = []
        n = self.graph.upstream(slot)
        for i, node in enumerate(self.graph.sources[:n]):
            leaf = torch.zeros_like(self.written[i]).requires_grad_(True)
            self.leaves[Edge(node, slot)] = leaf
            if node.kind == "head":
                heads.append(self.written[i] + leaf)
                if len(heads) == g.heads:
                    joined = torch.stack(heads).sum(0) + self.model.weights(node.layer).b_O
                    norm = self.net.layers[node.layer].post1
                    total, heads = total + (norm(joined) if g.post_norm else joined), []
            else:
                total = total + self.written[i] + leaf
        assert not heads
        return total

    def logits(self, resid: Tensor) -> Tensor:
        """The logits from the residual that enters block 0."""
        g = self.graph.geometry
        self.written = [resid]
        for layer in range(g.layers):
            heads = self.heads(layer)
            out = None
            if g.mlp and g.parallel:
                out = self.mlp(layer)
            self.written += heads
            if g.mlp:
                self.written.append(self.mlp(layer) if out is None else out)
        return unembed(self.net, final_norm(self.net, self.read(self.graph.slots[-1])))

    def slots(self, layer: int, part: str | None) -> list[Slot]:
        return [s for s in self.graph.slots if s.node.layer == layer and s.part == part and s.node.kind != "logits"]

    def heads(self, layer: int) -> list[Tensor]:
        g, w = self.graph.geometry, self.model.weights(layer)
        made = {}
        for part, weight, bias in (("q", w.W_Q, w.b_Q), ("k", w.W_K, w.b_K), ("v", w.W_V, w.b_V)):
            slots = self.slots(layer, part)
            share = len(slots) // len(weight)
            made[part] = []
            for slot in slots:
                x = self.read(slot)
                x = self.net.layers[layer].ln1(x) if g.pre_norm else x
                if g.qk_positions and part != "v":
                    x = x + self.net.pos_embed(self.grid.positions)  # type: ignore[misc]
                made[part].append(x @ weight[slot.node.head // share] + bias[slot.node.head // share])
        q, k, v = (torch.stack(made[p], 2) for p in "qkv")
        q, k = (self.grid.rotate(head_norm(self.net, layer, t, n), layer) for t, n in ((q, "q"), (k, "k")))
        k, v = (t.repeat_interleave(g.heads // t.shape[2], 2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        z = attend(self.net, layer, q, k, self.grid) @ v
        return [z[:, h] @ w.W_O[h] for h in range(g.heads)]

    def mlp(self, layer: int) -> Tensor:
        return mlp(self.net, layer, self.read(self.slots(layer, None)[0]), NO_TAP, {})


def source_values(model: Model, run: Run) -> list[Tensor]:
    """What each source writes in a run, heads through W_O without the bias."""
    g, out = model.geometry, [run["L0.resid_pre"]]
    for layer in range(g.layers):
        w = model.weights(layer)
        out += [run[f"L{layer}.z"][:, :, h] @ w.W_O[h] for h in range(g.heads)]
        out += [run[f"L{layer}.mlp_out"]] if g.mlp else []
    return out


def long_way(
    model: Model,
    task: Task,
    gone: list[Tensor],
    places: list[tuple[float, float]],
    metric: str = "logit_diff",
    ungrouped: bool = False,
) -> Tensor:
    """Scores `[edge, prompt]`: gradients averaged over places between the clean and the ablated input."""
    graph, m = Graph(model.geometry, ungrouped), get_metric(metric)
    sites = ["L0.resid_pre", "z", *(["mlp_out"] if model.geometry.mlp else [])]
    clean = model.run(task.clean, capture=sites)
    base = source_values(model, clean)
    reference = m.view(clean.logits, task) if m.needs_reference else None
    scores = torch.zeros(len(graph.edges), len(task.clean))
    for alpha, weight in places:
        copies = Copies(model, graph, task)
        logits = copies.logits(base[0] + alpha * (gone[0] - base[0]))
        if alpha == 0:
            real = task.clean.mask
            torch.testing.assert_close(logits[real], clean.logits[real], atol=2e-5, rtol=1e-4)
        value = m(logits, task, "clean", reference).sum() * (-1 if m.loss_like else 1)
        grads = torch.autograd.grad(value, [copies.leaves[e] for e in graph.edges], allow_unused=True)
        for i, (e, grad) in enumerate(zip(graph.edges, grads, strict=True)):
            if grad is not None:
                change = base[graph.source_index[e.src]] - gone[graph.source_index[e.src]]
                change = torch.where(task.clean.mask[..., None], change, 0.0)
                scores[i] += weight * (change * grad).sum((1, 2))
    out = torch.zeros(len(graph.edges), task.n)
    return out.index_add_(1, task.prompt_of_row, scores.detach())
