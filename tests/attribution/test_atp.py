"""AtP and AtP*: equal to activation times gradient, to dropped gradients by hand, and exact where that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from interp.attribution.methods import attribute
from interp.hooks.context import EditContext
from interp.interventions.ablation import ablate
from interp.metrics import get_metric
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Task
from tests.attribution.small_tasks import small_task
from tests.attribution.test_eap import even_task, freeze_patterns
from tests.tiny import FURTHER, KINDS, tiny

LOGIT_DIFF = get_metric("logit_diff")
SITES = ("L0.resid_pre", "q", "k", "v", "z")


def by_hand(model: Model, task: Task, site: str) -> Tensor:
    """Σ_pos (clean − corrupt) · gradient at a site, `[row, …unit]`, by the model's own runs."""
    clean = model.run(task.clean, capture=site, grads=site, metric=lambda logits: LOGIT_DIFF(logits, task))
    change = clean[site] - model.run(task.corrupt, capture=site)[site]
    part = change * clean.grads[site]
    part = torch.where(task.clean.mask.view(*task.clean.mask.shape, *(1,) * (part.ndim - 2)), part, 0.0)
    return part.sum((1, -1))


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_nodes_are_change_times_gradient(kind: str) -> None:
    model = tiny(kind)
    mlp = tuple(site for site in ("mlp_out", "mlp_post") if site in model.sites())
    got = attribute(model, even_task(), "atp", "node", sites=(*SITES, *mlp))
    seen = set()
    for site in (*SITES, *mlp):
        for layer in range(model.geometry.layers) if "." not in site else (0,):
            name = site if "." in site else f"L{layer}.{site}"
            want = by_hand(model, even_task(), name)
            short = site.removeprefix("L0.")
            if want.ndim == 1:
                seen.add(f"L{layer}.{short}")
                torch.testing.assert_close(got.of(f"L{layer}.{short}"), want, atol=1e-5, rtol=1e-4)
                continue
            word = "kv_head" if short in "kv" else "head"
            for unit in range(want.shape[1]):
                seen.add(f"L{layer}.{short} {word}={unit}")
                torch.testing.assert_close(
                    got.of(f"L{layer}.{short} {word}={unit}"), want[:, unit], atol=1e-5, rtol=1e-4
                )
    assert len(seen) == len(got)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("method", ["atp", "eap_ig_inputs", "relp"])
def test_parts_add_up(kind: str, method: str) -> None:
    model, task = tiny(kind), small_task()
    whole = attribute(model, task, method, "node", sites=["z", "mlp_post"])
    spots = attribute(model, task, method, "node", sites="z", by="head+position")
    neurons = attribute(model, task, method, "node", sites="mlp_post", by="neuron")
    total = torch.stack([spots.of(f"L1.z head=2 pos={i}") for i in range(6)])
    assert torch.equal(total.isnan().sum(0), torch.tensor([0, 2, 1]))  # prompts of 6, 4 and 5 tokens
    # appended answer tokens belong to no position
    if method == "atp":
        first = float(total.nansum(0)[0])
        assert first == pytest.approx(float(whole.of("L1.z head=2")[0]), abs=1e-5)
    each = torch.stack([neurons.of(f"L0.mlp_post neuron={i}") for i in range(model.geometry.d_mlp)])
    torch.testing.assert_close(each.sum(0), whole.of("L0.mlp_post"), atol=1e-5, rtol=1e-4)


def test_labels_are_places() -> None:
    model, task = tiny("gpt2"), small_task()
    places = attribute(model, task, "atp", "node", sites="z", by="head+label", labels=["A"])
    spots = attribute(model, task, "atp", "node", sites="z", by="head+position")
    got = places.of("L0.z head=1 pos_label=A")
    assert bool(got[2].isnan())
    torch.testing.assert_close(got[0], spots.of("L0.z head=1 pos=2")[0])
    torch.testing.assert_close(got[1], spots.of("L0.z head=1 pos=0")[1])


def test_exact_on_a_linear_model() -> None:
    model, task = freeze_patterns(tiny("native:attn_only_none")), even_task()
    got, want = (attribute(model, task, m, "node", sites=["L0.resid_pre", "z", "v"]) for m in ("atp", "exact"))
    assert got.keys == want.keys
    assert bool(want.values.abs().max() > 1e-2)
    torch.testing.assert_close(got.values, want.values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("metric", ["logit_diff", "kl"])
def test_exact_nodes_are_minus_the_effects(metric: str) -> None:
    model, task = tiny("llama"), even_task()
    got = attribute(model, task, "exact", "node", sites="z", metric=metric, ablation="mean")
    effects = ablate(model, task, "z", "head", metric, ablation="mean")
    sign = 1 if metric == "kl" else -1
    torch.testing.assert_close(got.values, sign * (effects.values - effects.baseline))
    if metric == "kl":
        assert bool((got.values >= -1e-6).all())


@pytest.mark.parametrize("by", ["head", "head+position"])
@pytest.mark.parametrize("variant", [{}, {"kv_heads": 2, "positions": "rotary"}])
def test_the_qk_fix_is_exact_where_only_the_softmax_bends(by: str, variant: dict[str, object]) -> None:
    # last layer, no norms, no MLP: the metric is linear in the pattern, and GradDrop keeps the full estimate
    model, task = tiny("native:attn_only_none", **variant), even_task()
    with torch.no_grad():  # patterns that move a lot
        for layer in model.module.layers:  # type: ignore[union-attr]
            layer.attn.q.weight.mul_(4)  # type: ignore[union-attr]
    sites = ["L1.q", "L1.k", "L1.v"]
    got, want, plain = (attribute(model, task, m, "node", sites=sites, by=by) for m in ("atp_star", "exact", "atp"))
    assert got.keys == want.keys
    torch.testing.assert_close(got.values, want.values.abs(), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(plain.values.abs(), want.values.abs(), atol=1e-2)


@pytest.mark.parametrize("kind", ["gpt2", "neox", "gemma2", "native:attn_only"])
def test_graddrop_by_hand(kind: str) -> None:
    over = (
        {"layers": 3} if kind.startswith("native") else {"n_layer": 3} if kind == "gpt2" else {"num_hidden_layers": 3}
    )
    model, task = tiny(kind, **over), even_task()
    got = attribute(model, task, "atp_star", "node", sites=["L0.resid_pre", "z"])
    clean, other = (model.run(p, capture=["L0.resid_pre", "z"]) for p in (task.clean, task.corrupt))

    def drop(grad: Tensor, ctx: EditContext) -> Tensor:
        return torch.zeros_like(grad)

    sizes: dict[str, Tensor] = {}
    for layer in range(3):
        sites = ["attn_out", "mlp_out"] if model.geometry.mlp else ["attn_out"]
        with model.hooks(*((f"L{layer}.{s}", drop, "backward") for s in sites)):  # type: ignore[arg-type]
            run = model.run(task.clean, grads=["L0.resid_pre", "z"], metric=lambda x: LOGIT_DIFF(x, task))
        for address, grad in run.grads.items():
            part = ((clean[address] - other[address]) * grad).sum((1, -1))
            sizes[address] = sizes.get(address, 0) + part.abs()
    torch.testing.assert_close(got.of("L0.resid_pre"), sizes["L0.resid_pre"] / 2, atol=1e-5, rtol=1e-4)
    for layer in range(3):
        for head in range(4):
            name = f"L{layer}.z head={head}"
            torch.testing.assert_close(got.of(name), sizes[f"L{layer}.z"][:, head] / 2, atol=1e-5, rtol=1e-4)
    assert not got.signed
    assert bool((got.values >= 0).all())
    assert got.table().normalized.isna().all()


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_a_prompt_against_itself_is_exactly_zero(kind: str) -> None:
    model, task = tiny(kind), small_task()
    same = replace(task, corrupt=task.clean)
    for method in ("atp", "atp_star", "eap_ig_inputs", *(["relp"] if not model.geometry.experts else [])):
        assert bool((attribute(model, same, method, "node").values == 0).all())


def test_bad_requests_are_one_clear_line() -> None:
    model, task = tiny("gpt2"), even_task()
    with pytest.raises(UserError, match=r"atp_star averages over dropped layers .* at least 2 layers"):
        attribute(tiny("gpt2", n_layer=1), task, "atp_star", "node")
    for site in ("pattern", "head_out", "ln_final"):
        with pytest.raises(UserError, match=f"inside the blocks that have positions, not of {site}"):
            attribute(model, task, "atp", "node", sites=site)
    with pytest.raises(UserError, match="metric 'rank' has no gradient"):
        attribute(model, task, "atp", "node", metric="rank")
    with pytest.raises(UserError, match="eap_ig_activations scores edges only"):
        attribute(model, task, "eap_ig_activations", "node")
