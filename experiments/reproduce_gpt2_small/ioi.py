"""IOI: behaviour, the paper's circuit at its tokens, name movers knocked out, and every head of the circuit.

Prompts are our own templates and names, with ABC prompts (three other names) for corruption and for means per
template, as the paper has them. Steps:

1. logit difference, choice and probability of IO on the clean prompts;
2. the circuit: z of every head at every token is set to its mean over ABC prompts, but for the 26 heads at the tokens
   of their class; MLPs and embeddings run live;
3. knock-out: z of the three name movers set to its mean;
4. path patching of every head into the logits, and into the name movers' queries (a score is minus the effect);
   stripes of attention on repeated random tokens for the classes that are named after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.reproduce_gpt2_small.facts import IOI_HEADS, IOI_PLACES, Head, head_name
from experiments.reproduce_gpt2_small.measured import Got, Measured, mean_of, need_heads, ranks, resampling, share_of

if TYPE_CHECKING:
    from torch import Tensor

    from interp.models.model import Model
    from interp.stats import Resampling
    from interp.tasks.values import Task

CIRCUIT = "26 heads at their tokens"
STRIPES = {"induction": "induction", "duplicate token": "duplicate", "previous token": "previous"}


def behaviour(model: Model, task: Task, seed: int) -> Measured:
    """What the model does."""
    from interp.metrics import get_metric

    how, logits = resampling(task, seed), model.run(task.clean).logits
    return {
        ("logit difference", ""): mean_of(get_metric("logit_diff")(logits, task), how),
        ("share of prompts with IO above S", ""): mean_of(get_metric("choice_accuracy")(logits, task), how),
        ("probability of IO", ""): mean_of(get_metric("logprob")(logits, task).exp(), how),
    }


def circuit(model: Model, task: Task, seed: int) -> Measured:
    """The circuit alone, the model without its name movers, and where these attend."""
    import interp
    from interp.interventions.behaviour import label_attention
    from interp.metrics import get_metric

    need_heads(model, [head for heads in IOI_HEADS.values() for head in heads])
    how, metric = resampling(task, seed), get_metric("logit_diff")
    assert task.means_on is not None  # IOI names its ABC prompts
    means = model.means(task.means_on, ["z"], by="template")
    whole = metric(model.run(task.clean).logits, task)
    inside = metric(circuit_logits(model, task, means), task)
    found = {
        ("whole model − circuit", CIRCUIT): mean_of(whole - inside, how),
        ("circuit as a share of the whole model", CIRCUIT): share_of(inside, whole, how),
    }
    movers = IOI_HEADS["name mover"]
    without = model.run(task.clean, edits=[interp.mean(f"L{i}.z", means, head=j) for i, j in movers]).logits
    gone = share_of(metric(without, task), whole, how, drop=True)
    found["drop of the logit difference", "without the name movers"] = gone
    seen = label_attention(model, task, [("END", "IO")]).values.view(model.geometry.layers, -1, task.n)
    attention = sum(seen[i, j] for i, j in movers) / len(movers)
    found["attention from END to IO", "name movers, mean"] = mean_of(attention, how)
    return found


def circuit_logits(model: Model, task: Task, means: Any) -> Tensor:
    """Logits with z at its mean everywhere but for the circuit's heads at their tokens."""
    import torch

    import interp

    g, prompts = model.geometry, task.clean
    kept = torch.zeros(g.layers, len(prompts), prompts.width, g.heads, dtype=torch.bool, device=prompts.device)
    rows = torch.arange(len(prompts), device=prompts.device)
    for kind, heads in IOI_HEADS.items():
        for layer, head in heads:
            kept[layer, rows, prompts.column(IOI_PLACES[kind]), head] = True
    sites = [f"L{i}.z" for i in range(g.layers)]
    # what a run holds in which every head is at its mean: the means, laid out at each prompt's own tokens
    laid = model.run(prompts, edits=[interp.mean(s, means) for s in sites], capture=sites)

    def keep(x: Tensor, ctx: Any) -> Tensor:
        return torch.where(kept[ctx.layer][..., None], x, laid[f"L{ctx.layer}.z"])

    return model.run(prompts, edits=[interp.function(s, keep, name="outside the circuit") for s in sites]).logits


def heads(model: Model, task: Task, scores: Any, seed: int, step: Any = None) -> Measured:
    """Every head of the circuit by what its class is said to do; `scores` are the model's `HeadScores`."""
    from interp.interventions.paths import path_effects

    need_heads(model, [head for heads in IOI_HEADS.values() for head in heads])
    how = resampling(task, seed)
    direct = path_effects(model, task, receivers=["logits"], progress=step)
    queries = [f"a{i}.h{j}<q>" for i, j in IOI_HEADS["name mover"]]
    through = path_effects(model, task, receivers=queries, progress=step)
    by_path = {"direct effect": direct, "effect through name movers' queries": through}
    found: dict[tuple[str, str], Got] = {}
    for kind in IOI_HEADS:
        if kind in STRIPES:
            grid = scores.scores[STRIPES[kind]].flatten(1)
            name = f"{'duplicate-token' if kind == 'duplicate token' else kind.replace(' token', '-token')} score"
            _add(found, kind, name, grid.T, model.geometry.heads, None)
        else:
            name = "effect through name movers' queries" if kind == "S-inhibition" else "direct effect"
            effects = by_path[name]
            _add(found, kind, name, effects.baseline - effects.values, model.geometry.heads, how)
    return found


def _add(
    found: dict[tuple[str, str], Got], kind: str, name: str, values: Any, per: int, how: Resampling | None
) -> None:
    """The rows of one class; `values` is `[head of all, prompt]`."""
    order = ranks(values.double().mean(1).cpu().numpy(), least=kind == "negative name mover")
    for head in IOI_HEADS[kind]:
        at = _at(head, per)
        found[name, f"{head_name(head)} {kind}"] = mean_of(values[at], how, order[at])


def _at(head: Head, per: int) -> int:
    return head[0] * per + head[1]
