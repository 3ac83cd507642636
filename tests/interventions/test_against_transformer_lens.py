"""Patching tables equal `transformer_lens.patching`'s, on its bridge over a deep copy of the same checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.hooks import edits
from interp.hooks.prompts import Prompts
from interp.interventions.patching import patch
from interp.metrics import get_metric
from interp.models.model import Model
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.interventions.tables import pairs
from tests.tiny import hf, tiny

transformer_lens = pytest.importorskip("transformer_lens")
from transformer_lens import patching  # noqa: E402
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module  # noqa: E402

pytestmark = pytest.mark.slow
KINDS = ("gpt2", "llama")
WITHIN = 1e-5
"""Of the metric's scale."""


def bridge_of(kind: str) -> Any:
    """The bridge over its own copy: it may rewrite a module it is given."""
    module = copy.deepcopy(hf(kind))
    config: Any = module.config
    bridge = build_bridge_from_module(
        module, architecture=type(module).__name__, hf_config=config, model_name="tiny", device="cpu"
    )
    return bridge.eval()


def task_of() -> Task:
    return pairs(4, 7, first=3, seed=1)


def metric_of(task: Task) -> Callable[[Tensor], Tensor]:
    right, wrong = task.right.first, task.wrong.first
    return lambda logits: (logits[:, -1].gather(1, right) - logits[:, -1].gather(1, wrong)).mean()


SWEEPS = [
    ("get_act_patch_resid_pre", "resid_pre", "position", ("layer", "pos")),
    ("get_act_patch_attn_out", "attn_out", "position", ("layer", "pos")),
    ("get_act_patch_mlp_out", "mlp_out", "position", ("layer", "pos")),
    ("get_act_patch_attn_head_out_all_pos", "z", "head", ("layer", "head")),
    ("get_act_patch_attn_head_q_all_pos", "q", "head", ("layer", "head")),
    ("get_act_patch_attn_head_k_all_pos", "k", "head", ("layer", "head")),
    ("get_act_patch_attn_head_v_all_pos", "v", "head", ("layer", "head")),
    ("get_act_patch_attn_head_pattern_all_pos", "pattern", "head", ("layer", "head")),
    ("get_act_patch_attn_head_out_by_pos", "z", "head+position", ("layer", "pos", "head")),
    ("get_act_patch_attn_head_q_by_pos", "q", "head+position", ("layer", "pos", "head")),
    ("get_act_patch_attn_head_k_by_pos", "k", "head+position", ("layer", "pos", "head")),
    ("get_act_patch_attn_head_v_by_pos", "v", "head+position", ("layer", "pos", "head")),
    ("get_act_patch_attn_head_pattern_by_pos", "pattern", "head+position", ("layer", "head", "pos")),
]


def grid(model: Model, task: Task, site: str, by: str, axes: tuple[str, ...]) -> Tensor:
    """Our mean values with theirs' axes."""
    effects = patch(model, task, site, by)
    keys = [{**k, "head": k.get("head", k.get("kv_head"))} for k in effects.keys]
    out = torch.full([1 + max(k[a] for k in keys) for a in axes], torch.nan)
    for key, value in zip(keys, effects.values.mean(1), strict=True):
        out[tuple(key[a] for a in axes)] = value
    return out


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return {kind: bridge_of(kind) for kind in KINDS}


@pytest.mark.parametrize(("name", "site", "by", "axes"), SWEEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_tables_equal(theirs: dict[str, Any], kind: str, name: str, site: str, by: str, axes: tuple[str, ...]) -> None:
    bridge, task = theirs[kind], task_of()
    with torch.no_grad():
        _, cache = bridge.run_with_cache(task.clean.tokens)
        want = getattr(patching, name)(bridge, task.corrupt.tokens, cache, metric_of(task))
    got = grid(tiny(kind), task, site, by, axes)
    assert got.shape == want.shape
    scale = float(get_metric("logit_diff")(tiny(kind).run(task.corrupt).logits, task, "corrupt").std())
    assert float((got - want).abs().max()) <= WITHIN * scale
    assert float(want.std()) > 1e-3, "nothing moved: the comparison says nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_resid_mid_is_where_theirs_is_wrong(theirs: dict[str, Any], kind: str) -> None:
    """Their `hook_resid_mid` is the second norm's input: a hook that returns a new tensor misses the skip path.

    Patched whole, resid_mid is a cut, so the clean logits must come out. Ours gives them; theirs does not. Their
    own sweep clones where autograd is on, and is wrong there; without it, it writes in place into the residual
    that the skip path reads too, and is right by that accident.
    """
    bridge, task, model = theirs[kind], task_of(), tiny(kind)
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(task.clean.tokens)

        def hook(x: Tensor, hook: Any) -> Tensor:
            return cache[hook.name].clone()

        their_cut = bridge.run_with_hooks(task.corrupt.tokens, fwd_hooks=[("blocks.0.hook_resid_mid", hook)])
    donor = model.run(task.clean, capture=["L0.resid_mid"])
    our_cut = model.run(task.corrupt, edits=[edits.patch("L0.resid_mid", donor)]).logits
    assert float((our_cut - logits).abs().max()) < 1e-4
    assert float((their_cut - logits).abs().max()) > 0.1
    swept = grid(model, task, "resid_mid", "position", ("layer", "pos"))
    sweep = patching.get_act_patch_resid_mid
    wrong = sweep(bridge, task.corrupt.tokens, cache, metric_of(task)).detach()
    with torch.no_grad():
        in_place = sweep(bridge, task.corrupt.tokens, cache, metric_of(task))
    assert torch.allclose(swept, in_place, atol=1e-5)
    assert float((swept - wrong).abs().max()) > 0.05


def test_left_padded_prompts_equal_theirs_unpadded(theirs: dict[str, Any]) -> None:
    """The same pair, padded beside a longer one in ours, alone in theirs."""
    bridge, one = theirs["llama"], pairs(1, 5, first=2, seed=3)
    rows = [[p.tokens[0].tolist(), list(range(1, 9))] for p in (one.clean, one.corrupt)]
    task = Task.of(
        "two", Prompts.of(rows[0], pad_side="left"), Prompts.of(rows[1], pad_side="left"),
        *(Answers.of(a.lists() * 2) for a in (one.right, one.wrong)),
    )  # fmt: skip
    effects = patch(tiny("llama"), task, "z", "head")
    with torch.no_grad():
        _, cache = bridge.run_with_cache(one.clean.tokens)
        want = patching.get_act_patch_attn_head_out_all_pos(bridge, one.corrupt.tokens, cache, metric_of(one))
    assert torch.allclose(effects.values[:, 0].view(2, 4), want, atol=1e-5)
