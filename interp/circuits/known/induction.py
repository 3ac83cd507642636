"""The two published attention-only models that continue a repeated token (`induction-2l`), by their folder.

Two layers of one head: head 0.0 attends to the previous token, head 1.0 to the token after the earlier
occurrence, and copies it. The folder holds `l_2_2_model.safetensors` and `finetuned_model_0.safetensors` with a
config.json; it is not part of this package. Public origin: JasonGross/guarantees-based-mechanistic-
interpretability, `gbmi/exp_indhead` (MIT).

Limits: the models are trained, so edges that are not listed may carry a little; the list is of what the
mechanism needs.
"""

from __future__ import annotations

from pathlib import Path

import torch

from interp.circuits.known.outputs import CHANGE
from interp.circuits.known.planted import repeats
from interp.circuits.known.registry import Known, register_known
from interp.circuits.values import Circuit
from interp.graph import Graph
from interp.interventions.sources import Recipe
from interp.metrics import get_metric
from interp.models.load import load_model
from interp.models.model import Model
from interp.registry import UserError

EDGES = (
    "input->a0.h0<q>", "input->a0.h0<k>", "input->a0.h0<v>", "input->a1.h0<q>", "a0.h0->a1.h0<k>",
    "input->a1.h0<v>", "a1.h0->logits",
)  # fmt: skip
FILES = {"induction-2l": "l_2_2_model.safetensors", "induction-2l-finetuned": "finetuned_model_0.safetensors"}


def _known(name: str, folder: str | Path | None, n: int, seed: int) -> Known:
    if folder is None:
        raise UserError(f"{name} is not part of this package: give its folder (induction_dir=DIR)")
    path = Path(folder) / FILES[name]
    if not path.is_file():
        raise UserError(f"{name}: there is no {path}")
    model = load_model(path)
    assert isinstance(model, Model)
    generator = torch.Generator().manual_seed(seed)
    task = repeats(name, n, model.geometry.n_ctx, model.geometry.d_vocab, generator, bos=None)
    truth = Circuit.of(Graph(model.geometry), EDGES)
    # a mean by position would leave the previous-token head what it reads
    recipe = Recipe("mean", over="clean", mean_by="all")
    smooth, source = get_metric("logit_diff"), "the published mechanism"
    return Known(name, model, task, truth, recipe, CHANGE, smooth, source, constructed=False)


@register_known("induction-2l")
def induction_2l(n: int = 32, seed: int = 0, folder: str | Path | None = None) -> Known:
    """`l_2_2_model`: right on every such prompt."""
    return _known("induction-2l", folder, n, seed)


@register_known("induction-2l-finetuned")
def induction_2l_finetuned(n: int = 32, seed: int = 0, folder: str | Path | None = None) -> Known:
    """`finetuned_model_0`, its noisier twin."""
    return _known("induction-2l-finetuned", folder, n, seed)
