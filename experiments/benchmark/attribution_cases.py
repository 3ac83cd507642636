"""What edge attribution is timed against: one plain forward and backward pass of the same batch, full logits.

`attribution_cases(module, …)` gives callables by name; `plain` uses the Hugging Face module alone, so that its
time owes nothing to this package. `gpt2_case` makes the usual setting: GPT-2 small's shape with random weights,
8 pairs of 16 tokens that differ everywhere but at the first token, all 32,491 edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Case = Callable[[], object]


def gpt2_case(pairs: int = 8, width: int = 16, seed: int = 0) -> tuple[Any, Any]:
    """A model and a task of GPT-2 small's shape."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from interp.hooks.prompts import Prompts
    from interp.models.families import FAMILIES
    from interp.models.model import Model
    from interp.tasks.answers import Answers
    from interp.tasks.values import Task

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = GPT2LMHeadModel(GPT2Config(attn_implementation="eager")).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    clean, corrupt = (torch.randint(0, 50257, (pairs, width), generator=generator) for _ in range(2))
    corrupt[:, 0] = clean[:, 0]
    right, wrong = (Answers.of([[[token]]] * pairs) for token in (5, 9))
    task = Task.of("random pairs", Prompts.of(clean), Prompts.of(corrupt), right, wrong)
    return Model(module, FAMILIES["gpt2"], module.config, name="gpt2-small-random"), task


def attribution_cases(model: Any, task: Any) -> dict[str, Case]:
    """`plain`, and what is held against it: EAP (at most 2×), EAP-IG with 5 steps (at most 8×), AtP."""
    from interp.attribution.methods import attribute

    module, tokens = model.module, task.clean.tokens
    right, wrong = (a.first[:, 0] for a in (task.right, task.wrong))
    rows = range(len(tokens))

    def plain() -> object:
        embedded = module.get_input_embeddings()(tokens).detach().requires_grad_(True)
        last = module(inputs_embeds=embedded).logits[:, -1]
        (last[rows, right] - last[rows, wrong]).sum().backward()
        return embedded.grad

    return {
        "plain": plain,
        "eap": lambda: attribute(model, task, "eap"),
        "eap_ig_inputs, 5 steps": lambda: attribute(model, task, "eap_ig_inputs", steps=5),
        "atp": lambda: attribute(model, task, "atp", "node"),
    }
