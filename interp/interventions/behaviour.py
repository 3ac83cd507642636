"""Behaviour of heads: how much each head attends from one labelled token to another, before and after an edit.

Attention from END to IO, from S2 to S1+1 and so on is what a head is said to do ("previous token", "name
mover"); the table gives it per head with its interval, and how it changes when nodes are ablated.

Source: 2211.00593. Limits: attention is where a head reads, not what it moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from interp.graph import Graph, Node
from interp.hooks.addresses import Address
from interp.hooks.edits import Edit
from interp.hooks.prompts import Prompts
from interp.interventions.effects import Effects
from interp.interventions.sources import Recipe, replacement_for
from interp.interventions.units import Unit
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Side, Task

Pair = tuple[str, str]


def label_attention(
    model: Model,
    task: Task,
    pairs: Sequence[Pair] | None = None,
    *,
    ablate: Sequence[str] = (),
    recipe: Recipe | None = None,
    side: Side = "clean",
) -> Effects:
    """Attention probability of each head from one label to another, with the named nodes ablated or not.

    Args:
        pairs: (query label, key label); by default every pair in which the key stands before the query.
        ablate: nodes such as `a0.h3`, `m1`; none gives the model's own attention (effect 0).

    `value` is the probability with the ablation, `baseline` without it; with nothing ablated `baseline` is 0,
    so that `effect` is the attention itself. Prompts that lack a label have no value.
    """
    task = task.to(model.device)
    prompts = task.prompts(side)
    wanted = list(pairs) if pairs is not None else _ordered_pairs(prompts)
    for query, key in wanted:
        prompts.real_index(query)
        prompts.real_index(key)
    edits = ablations(model, task, ablate, recipe or Recipe("mean"))
    before = model.run(prompts, capture="pattern")
    after = model.run(prompts, capture="pattern", edits=edits) if edits else before
    first = task.first_rows
    values, base, keys = [], [], []
    for query, key in wanted:
        for layer in range(model.geometry.layers):
            own, new = (_between(r[f"L{layer}.pattern"], prompts, query, key)[first] for r in (before, after))
            for head in range(model.geometry.heads):
                keys.append({"site": "pattern", "layer": layer, "head": head, "src_label": key, "dst_label": query})
                values.append(new[:, head])
                base.append(own[:, head] if edits else own[:, head] * 0)
    nothing = torch.full_like(base[0], torch.nan)
    recipe = recipe or Recipe("mean")
    about = {"model": model.name, "task": task.name, "metric": "attention", "unit": "probability",
             "method": "attention between labels", "granularity": "head",
             "ablation": f"{recipe.ablation} of {', '.join(ablate)}" if ablate else "none"}  # fmt: skip
    baseline = torch.stack(base)
    return Effects(tuple(keys), torch.stack(values), baseline, nothing, nothing, task, about)


def ablations(model: Model, task: Task, nodes: Sequence[str], recipe: Recipe) -> list[Edit]:
    """Edits that ablate whole nodes. UserError for nodes the model lacks."""
    graph, found = Graph(model.geometry), [Node.parse(n) for n in nodes]
    strange = [str(n) for n in found if n not in graph.source_index]
    if strange:
        raise UserError(f"this model has no node {strange[0]}; there are input, a<layer>.h<head> and m<layer>")
    if not found:
        return []
    replacement = replacement_for(model, task, recipe)
    edits = []
    for n in found:
        site, layer = {"input": ("resid_pre", 0), "head": ("z", n.layer), "mlp": ("mlp_out", n.layer)}[n.kind]
        parts = {"head": n.head} if n.kind == "head" else {}
        edits.append(replacement(Unit(Address(site, layer), parts, {})))
    return edits


def _ordered_pairs(prompts: Prompts) -> list[Pair]:
    names = list(prompts.labels)
    if not names:
        raise UserError("attention between labels needs prompts that carry labels")
    found = []
    for query in names:
        for key in names:
            q, k = prompts.labels[query], prompts.labels[key]
            both = (q >= 0) & (k >= 0)
            if query != key and bool(both.any()) and bool((k[both] < q[both]).all()):
                found.append((query, key))
    return found


def _between(pattern: Tensor, prompts: Prompts, query: str, key: str) -> Tensor:
    """Attention `[row, head]` from one labelled token to another; NaN where a row lacks either."""
    q, k = prompts.column(query), prompts.column(key)
    rows = torch.arange(len(prompts), device=pattern.device)
    found = pattern[rows, :, q.clamp(min=0), k.clamp(min=0)]
    return torch.where(((q >= 0) & (k >= 0))[:, None], found, torch.nan)
