"""nnsight, as well as it could be brought to do it: a layer's heads as invokes of one trace.

Each invoke is one edit and one batch of rows; nnsight packs the invokes of a trace into one forward pass. The
blocks below the edited one are skipped by hand (their output is replaced by the base run's), and only the last
position's logits are computed. Timed where the extra `peers` is installed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.benchmark.shapes import Case


class NnsightSide:
    """All heads' z patched, by layer."""

    def __init__(self, case: Case) -> None:
        import torch
        from nnsight import LanguageModel
        from transformers import AutoTokenizer

        from interp.models import zoo

        # their batching wants a tokenizer to pad with; the prompts are of one length and never padded
        tokenizer = AutoTokenizer.from_pretrained(zoo.folders()["toy-ioi"])
        self.case, self.net = case, LanguageModel(copy.deepcopy(case.module), tokenizer=tokenizer)
        captures = ["z", "resid_pre"]
        self.clean = case.model.run(case.task.clean, capture=captures)
        self.base = case.model.run(case.task.corrupt, capture=captures)
        self.torch: Any = torch

    def layer(self, layer: int) -> Any:
        """The metric's mean for every head of a layer."""
        torch, task, g = self.torch, self.case.task, self.case.model.geometry
        tokens = task.corrupt.tokens
        saved = []
        with torch.no_grad(), self.net.trace() as tracer:
            for head in range(g.heads):
                with tracer.invoke(tokens):
                    for below in range(layer):
                        self.net.transformer.h[below].skip(self.base[f"L{below + 1}.resid_pre"])
                    span = slice(head * g.d_head, (head + 1) * g.d_head)
                    z = self.net.transformer.h[layer].attn.c_proj.input
                    z[:, :, span] = self.clean[f"L{layer}.z"][:, :, head]
                    hidden = self.net.transformer.ln_f.output[:, -1]
                    saved.append((hidden @ self.net.lm_head.weight.T).save())
        right, wrong = task.right.first, task.wrong.first
        return torch.stack([(s.gather(1, right) - s.gather(1, wrong)).mean() for s in saved])
