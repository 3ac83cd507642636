"""Hooks, forwards and adapters of the user's own: planned equals plain, or one clear line says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interp.attribution.direct import direct_logit_attribution
from interp.attribution.methods import attribute
from interp.circuits.running import Evaluator
from interp.interventions.edges import edge_effects
from interp.interventions.patching import patch
from interp.interventions.paths import path_effects
from interp.interventions.plan import Options
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Task
from tests.interventions.drawn import tokens_task
from tests.tiny import tiny

SWEEPS = (("z", "head"), ("resid_pre", "position"), ("mlp_out", "layer"))
KINDS = ("gpt2", "llama")


class Linear(nn.Module):
    """An adapter as PEFT writes it: named like the map it wraps, whose weight and bias it shows."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer: Any = base
        wide, out = base.weight.shape if type(base).__name__ == "Conv1D" else base.weight.shape[::-1]  # type: ignore[union-attr,misc]
        g = torch.Generator().manual_seed(0)
        self.a, self.b = 0.3 * torch.randn(wide, 2, generator=g), 0.3 * torch.randn(2, out, generator=g)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight  # type: ignore[no-any-return]

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + x @ self.a @ self.b  # type: ignore[no-any-return]


PLACES = {
    "gpt2": ("transformer.h.1.ln_1", "transformer.h.1.attn.c_attn", "transformer.h.1.attn.c_proj",
             "transformer.h.0.mlp.c_fc", "transformer.h.1.mlp.c_proj", "transformer.h.0.mlp.act", "transformer.ln_f",
             "lm_head"),
    "llama": ("model.layers.1.input_layernorm", "model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.o_proj",
              "model.layers.0.mlp.gate_proj", "model.layers.1.mlp.down_proj", "model.layers.0.mlp.act_fn",
              "model.norm", "lm_head"),
}  # fmt: skip
ALL = [(kind, name) for kind in KINDS for name in PLACES[kind]]
LINEAR = [(kind, name) for kind, name in ALL if not any(w in name for w in ("norm", "ln_", "act"))]
OUT = {kind: PLACES[kind][2] for kind in KINDS}


def task() -> Task:
    return tokens_task([6] * 4, 2, "left", 0, False, False)


def same(model: Model) -> None:
    for site, by in SWEEPS:
        planned, plain = (patch(model, task(), site, by, options=o).values for o in (Options(), Options(plain=True)))
        torch.testing.assert_close(planned, plain, atol=5e-6, rtol=1e-5)


def _first_column_off(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    """What a replayed pass would not see: it need not hold column 0, nor rows as they came."""
    return torch.cat([0 * out[:, :1], 1.5 * out[:, 1:]], 1) if out.ndim > 2 else 1.5 * out


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_hook_on_a_module_is_heeded(kind: str, name: str) -> None:
    model = tiny(kind)
    before = patch(model, task(), "z", "head").values
    handle = model.module.get_submodule(name).register_forward_hook(_first_column_off)
    same(model)
    assert not torch.allclose(patch(model, task(), "z", "head").values, before, atol=1e-3)
    handle.remove()
    assert torch.equal(patch(model, task(), "z", "head").values, before)


def test_a_hook_on_all_modules_is_heeded() -> None:
    model = tiny("gpt2")
    change: Callable[..., Any] = lambda m, a, o: 2 * o if isinstance(m, nn.LayerNorm) else None  # noqa: E731
    handle = nn.modules.module.register_module_forward_hook(change)
    try:
        same(model)
    finally:
        handle.remove()


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_forward_put_on_a_module_is_heeded(kind: str, name: str) -> None:
    model = tiny(kind)
    module = model.module.get_submodule(name)
    own = module.forward
    module.forward = lambda *args: 1.5 * own(*args)  # type: ignore[method-assign]
    same(model)


@pytest.mark.parametrize(("kind", "name"), LINEAR)
def test_an_adapter_is_heeded_whatever_it_is_called(kind: str, name: str) -> None:
    model = tiny(kind)
    before = patch(model, task(), "z", "head").values
    above, _, own = name.rpartition(".")
    setattr(model.module.get_submodule(above), own, Linear(model.module.get_submodule(name)))
    same(model)
    assert not torch.allclose(patch(model, task(), "z", "head").values, before, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_says_why(kind: str) -> None:
    model = tiny(kind)
    model.module.get_submodule(OUT[kind]).register_forward_hook(lambda *_: None)
    effects = patch(model, task(), "z", "head")
    assert effects.plan is not None
    assert "a hook of the user is on a" in str(effects.plan.explain())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_what_a_module_does_are_not_read(kind: str) -> None:
    model = tiny(kind)
    above, _, own = OUT[kind].rpartition(".")
    setattr(model.module.get_submodule(above), own, Linear(model.module.get_submodule(OUT[kind])))
    for read in (
        lambda: model.weights(1),
        lambda: model.run(task().clean, capture=["L1.head_out"]),
        lambda: direct_logit_attribution(model, task(), granularity="heads"),
        lambda: edge_effects(model, task()),
        lambda: attribute(model, task(), "eap"),
    ):
        with pytest.raises(UserError, match="a Linear computes something else than its weight and bias say"):
            read()


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_adds_nothing_is_read(kind: str) -> None:
    model, plain = tiny(kind), tiny(kind)
    above, _, own = OUT[kind].rpartition(".")
    adapter = Linear(model.module.get_submodule(OUT[kind]))
    adapter.b.zero_()
    setattr(model.module.get_submodule(above), own, adapter)
    assert torch.equal(model.weights(1).W_O, plain.weights(1).W_O)
    run = model.run(task().clean, capture=["L1.head_out"])
    torch.testing.assert_close(run["L1.head_out"], plain.run(task().clean, capture=["L1.head_out"])["L1.head_out"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["hook", "forward", "function"])
def test_what_computes_a_model_part_by_part_refuses(kind: str, what: str) -> None:
    model = tiny(kind)
    module = model.module.get_submodule(OUT[kind])
    if what == "hook":
        module.register_forward_hook(lambda m, a, o: 2 * o)
    elif what == "forward":
        own = module.forward
        module.forward = lambda x: 2 * own(x)  # type: ignore[method-assign]

    def refused() -> None:
        for ask in (
            lambda: edge_effects(model, task()),
            lambda: path_effects(model, task()),
            *(lambda name=name: attribute(model, task(), name, "node") for name in ("atp", "atp_star", "relp")),
            lambda: attribute(model, task(), "eap_ig_inputs"),
            lambda: Evaluator.of(model, task()),
        ):
            with pytest.raises(UserError, match=r"part by part|computes something else"):
                ask()

    if what == "function":
        with model.hooks(("L1.z", lambda x, ctx: 2 * x)):
            refused()
    else:
        refused()


def test_modules_that_only_move_tensors_are_replayed() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model = tiny("llama")
    before = patch(model, task(), "z", "head").values
    for module in list(model.module.modules()):
        if isinstance(module, nn.Linear):
            hooks.add_hook_to_module(module, hooks.AlignDevicesHook(execution_device="cpu"))
    effects = patch(model, task(), "z", "head")
    assert effects.plan is not None
    assert "of the user" not in str(effects.plan.explain())
    torch.testing.assert_close(effects.values, before, atol=1e-6, rtol=0)
    same(model)


class RMSNorm(nn.Module):
    """Named like a norm, with a norm's parts, and not quite one."""

    def __init__(self, base: nn.Module, power: float) -> None:
        super().__init__()
        self.weight, self.eps, self.power = base.weight, 1e-6, power

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps) ** self.power * self.weight  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize("power", [0.5, 0.4])
def test_a_norm_of_the_users_is_heeded_and_read_only_if_it_is_one(power: float) -> None:
    model = tiny("llama")
    layer: Any = model.module.model.layers[1]  # type: ignore[union-attr,index]
    layer.input_layernorm = RMSNorm(layer.input_layernorm, power)
    same(model)
    edge_effects(model, task())  # calls the module itself
    for read in (
        lambda: model.run(task().clean, capture=["L1.ln1_scale"]),
        lambda: attribute(model, task(), "eap"),
    ):
        if power == 0.5:
            read()
            continue
        with pytest.raises(UserError, match="a RMSNorm is neither the LayerNorm nor the RMSNorm"):
            read()


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_is_heeded_by_whole_passes(kind: str) -> None:
    model = tiny(kind)
    with torch.autocast("cpu", torch.bfloat16):
        for sites, by in SWEEPS:
            planned, plain = (patch(model, task(), sites, by, options=o) for o in (Options(), Options(plain=True)))
            assert torch.equal(planned.values, plain.values)
            assert planned.plan is not None
            assert planned.plan.explain()["why"].str.contains("autocast").any()
        with pytest.raises(UserError, match="autocast"):
            edge_effects(model, task())
