"""The other side: `transformer_lens.patching` on TransformerLens' bridge over a deep copy of the same module."""

from __future__ import annotations

import copy
import os
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from experiments.benchmark.shapes import Case

SETTERS = {"head": ("z", "layer_head_vector_patch_setter", ("layer", "head")),
           "residual": ("resid_pre", "layer_pos_patch_setter", ("layer", "pos"))}  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    """Their progress bars go nowhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        yield


class LensSide:
    """Their sweep of one case; a subset of its edits where the whole would take minutes."""

    def __init__(self, case: Case) -> None:
        import torch
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        module = copy.deepcopy(case.module)
        with quiet():
            bridge: Any = build_bridge_from_module(
                module, architecture=type(module).__name__, hf_config=module.config, model_name="copy", device="cpu"
            )
        self.bridge, self.case = bridge.eval(), case
        with torch.no_grad():
            _, self.cache = self.bridge.run_with_cache(case.task.clean.tokens)

    def unedited(self, kind: str) -> None:
        """The runs that a sweep starts from: the clean one, cached where it is patched from, and the corrupt one."""
        import torch

        site, task = SETTERS[kind][0], self.case.task
        with torch.no_grad():
            self.bridge.run_with_cache(task.clean.tokens, names_filter=lambda name: name.endswith(f"hook_{site}"))
            self.bridge(task.corrupt.tokens)

    def sweep(self, kind: str, indices: Sequence[tuple[int, int]]) -> Any:
        """The metric's mean for each (layer, head) or (layer, position), one edit and one forward pass each."""
        import pandas as pd
        import torch
        from transformer_lens import patching

        site, setter, axes = SETTERS[kind]
        task = self.case.task
        right, wrong = task.right.first, task.wrong.first

        def metric(logits: Any) -> Any:
            return (logits[:, -1].gather(1, right) - logits[:, -1].gather(1, wrong)).mean()

        with quiet(), torch.no_grad():
            return patching.generic_activation_patch(
                self.bridge, task.corrupt.tokens, self.cache, metric, getattr(patching, setter), site,
                index_df=pd.DataFrame(indices, columns=list(axes)),
            )  # fmt: skip
