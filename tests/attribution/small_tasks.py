"""Small tasks on the tiny models' vocabulary, for the attribution tests."""

from __future__ import annotations

import torch

from interp.hooks.prompts import Prompts
from interp.models.native import Native, NativeConfig
from interp.tasks.answers import Answers
from interp.tasks.values import Task

ROWS = ((1, 2, 3, 4, 5, 6), (9, 4, 7, 1), (3, 3, 8, 2, 6))
OTHER = ((7, 8, 9, 10, 11, 12), (5, 6, 9, 2), (1, 2, 4, 5, 7))


def small_task(pad_side: str = "left", *, single: bool = True) -> Task:
    """Three prompts of unequal length, one or two answers a side, labels A (one prompt lacks it) and B."""
    labels = {"A": torch.tensor([2, 0, -1]), "B": torch.tensor([4, 1, 3])}
    clean = Prompts.of(ROWS, pad_side=pad_side, labels=labels)
    corrupt = Prompts.of(OTHER, pad_side=pad_side, labels=labels)
    right = Answers.of([[[3]], [[5], [6]], [[2]] if single else [[2, 4]]])
    wrong = Answers.of([[[7]], [[8]], [[1], [9], [4]]])
    return Task.of("small", clean, corrupt, right, wrong)


def hand_model(**over: object) -> Native:
    """One layer, one head, width 2, no norm, all weights written down: numbers can be done on paper.

    Token t embeds as (t, 1); position p as (0, p/10); every token attends evenly to itself and before
    (W_Q = 0); W_V the identity, b_V = (0.5, 0); W_O swaps the two coordinates, b_O = (0, 0.25); the
    unembedding's rows are (1, 0), (0, 1), (1, 1).
    """
    config = NativeConfig(layers=1, heads=1, d_model=2, d_vocab=3, n_ctx=4, norm="none", unembed_bias=True, **over)  # type: ignore[arg-type]
    module = Native(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.embed.weight.copy_(torch.tensor([[0.0, 1], [1, 1], [2, 1]]))
        module.pos_embed.weight[:, 1] = torch.arange(4) / 10
        attn = module.layers[0].attn
        attn.v.weight.copy_(torch.eye(2))
        attn.v.bias.copy_(torch.tensor([0.5, 0.0]))
        attn.o.weight.copy_(torch.tensor([[0.0, 1], [1, 0]]))
        attn.o.bias.copy_(torch.tensor([0.0, 0.25]))
        module.unembed.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [1, 1]]))
        module.unembed.bias.copy_(torch.tensor([0.125, 0, 0]))
    return module
