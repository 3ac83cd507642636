"""Nothing outlives a call, however it ends: hooks, modes, gradients, and what a user put there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interp.hooks.edits import add, function, scale, zero
from interp.models.model import Model
from interp.registry import UserError
from tests.tiny import FURTHER, KINDS, tiny

TOKENS = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]


class BoomError(Exception):
    pass


def boom(*_: Any) -> Tensor:
    raise BoomError


def total(logits: Tensor) -> Tensor:
    return logits[:, -1, 3] - logits[:, -1, 7]


def state(model: Model) -> list[Any]:
    """All that a call could leave behind."""
    held: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), list(model._functions)]
    for name, module in model.module.named_modules():
        hooks = [len(getattr(module, h)) for h in vars(module) if h.endswith("_hooks") and getattr(module, h)]
        held.append((name, module.training, hooks, sorted(vars(module))))
    for name, parameter in model.module.named_parameters():
        grad = None if parameter.grad is None else parameter.grad.clone().tolist()
        held.append((name, parameter.requires_grad, parameter._version, grad, len(parameter._backward_hooks or {})))
    return held


CALLS: dict[str, Callable[[Model], Any]] = {
    "run": lambda m: m.run(TOKENS),
    "capture": lambda m: m.run(TOKENS, capture=list(m.sites())),
    "edit": lambda m: m.run(TOKENS, edits=[zero("L0.z"), add("L1.resid_pre", torch.ones(32))]),
    "gradients": lambda m: m.run(TOKENS, grads=list(m.sites()), metric=total),
    "means": lambda m: m.means(TOKENS, ["z"]),
    "generate": lambda m: m.generate(TOKENS, 2),
    "plain module": lambda m: m.run(TOKENS, plain_module=True),
    "edit raises": lambda m: m.run(TOKENS, edits=[function("L1.z", boom)], capture=["z"]),
    "edit raises under gradients": lambda m: m.run(TOKENS, edits=[function("L1.z", boom)], grads=["z"], metric=total),
    "metric raises": lambda m: m.run(TOKENS, grads=["z"], metric=boom),
    "hook raises": lambda m: _hooked(m, ("L0.q", boom)),
    "backward hook raises": lambda m: _hooked(m, ("L0.q", boom, "backward")),
    "means raise": lambda m: _hooked(m, ("L1.v", boom)),
    "bad input": lambda m: m.run([[1, 99]]),
}  # fmt: skip


def _hooked(model: Model, spec: Any) -> None:
    with model.hooks(spec):
        model.run(TOKENS, metric=total, grads=["z"])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_everything_is_as_before(call: str, train: bool) -> None:
    model = tiny("gpt2")
    model.module.train(train)
    model.module.transformer.h[0].eval()  # type: ignore[union-attr,index]
    next(model.module.parameters()).requires_grad_(False)
    before, logits = state(model), model.run(TOKENS).logits
    try:
        CALLS[call](model)
    except (BoomError, UserError):
        assert "raise" in call or "bad" in call
    else:
        assert "raise" not in call
        assert "bad" not in call
    assert state(model) == before
    assert torch.equal(model.run(TOKENS).logits, logits)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_any_grad_mode_around_a_call(mode: Callable[[], Any]) -> None:
    model = tiny("llama")
    plain = model.run(TOKENS)
    assert not plain.logits.requires_grad
    with mode():
        before = torch.is_grad_enabled()
        run = model.run(TOKENS, capture="z")
        assert torch.is_grad_enabled() == before
    assert torch.equal(run.logits, plain.logits)
    assert not any(t.requires_grad for t in (run.logits, *run.acts.values()))


def test_gradients_of_parameters_are_never_touched() -> None:
    model = tiny("gpt2")
    weight = next(model.module.parameters())
    weight.grad = torch.full_like(weight, 3.0)
    model.run(TOKENS, grads=["embed", "z"], metric=total)
    assert bool((weight.grad == 3.0).all())
    assert all(p.grad is None for p in list(model.module.parameters())[1:])


def test_gradients_do_not_need_trainable_parameters() -> None:
    free, frozen = tiny("gpt2"), tiny("gpt2")
    frozen.module.requires_grad_(False)
    sites = list(free.sites())
    a, b = (m.run(TOKENS, grads=sites, metric=total).grads for m in (free, frozen))
    for address in a:
        assert torch.equal(a[address], b[address]), address
        assert float(a[address].abs().max()) > 0, address


# -- a user's own hooks ----------------------------------------------------------------------------------------------


def leaves(model: Model) -> dict[str, nn.Module]:
    called = {id(m) for m in model.net.called}
    # a list of modules is not called itself
    return {n: m for n, m in model.module.named_modules() if id(m) in called and not isinstance(m, nn.ModuleList)}


def times(count: Counter[str], n: int) -> dict[str, int]:
    return {name: n * calls for name, calls in count.items()}


def counted(model: Model) -> Counter[str]:
    """Calls of each leaf module from now on, by name."""
    count: Counter[str] = Counter()
    for name, module in leaves(model).items():
        module.register_forward_hook(lambda m, i, o, n=name: count.update([n]))
    return count


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_hooks_on_leaf_modules_fire_once_per_real_forward(kind: str) -> None:
    """As often as the checkpoint's own forward calls them: Gemma 3's rotary module once for each kind of layer."""
    model = tiny(kind)
    count = counted(model)
    model.run(TOKENS, plain_module=True)
    own = Counter(count)
    several = {name for name in own if "rotary" in name or "experts" in name}
    assert len(own) > 5
    assert {calls for name, calls in own.items() if name not in several} == {1}
    assert set(own) == set(leaves(model))
    model.run(TOKENS)
    assert count == times(own, 2)
    model.run(TOKENS, edits=[zero("L0.z")], capture="pattern")
    assert count == times(own, 3)
    if not model.geometry.experts:  # how many experts a batch calls for depends on the batch
        model.means(TOKENS, ["z"], batch_size=1)
        assert count == times(own, 5)


def test_hooks_on_leaf_modules_still_fire_once_when_every_site_is_captured() -> None:
    model = tiny("llama")
    count: dict[str, int] = {}
    for name, module in leaves(model).items():
        module.register_forward_hook(lambda m, i, o, n=name: count.__setitem__(n, count.get(n, 0) + 1))
    model.run(TOKENS, capture=list(model.sites()))
    assert set(count.values()) == {1}, {k: v for k, v in count.items() if v != 1}


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_counting_hooks_fire_once_though_inputs_of_heads_are_edited(kind: str) -> None:
    """What an edit at a head's input changes is learned past the user's hooks; gradients there count alike."""
    model = tiny(kind)
    sites = [s for s in ("q_input", "k_input", "v_input", "mlp_in") if s in model.sites()]
    edits = [scale(f"L1.{site}", 0.5) for site in sites]
    plain = model.run(TOKENS, edits=edits).logits
    count = counted(model)
    assert torch.equal(model.run(TOKENS, edits=edits).logits, plain)
    once = Counter(count)
    assert {calls for name, calls in once.items() if "rotary" not in name and "experts" not in name} == {1}
    count.clear()
    model.run(TOKENS, grads=sites, metric=total)
    assert {n for n, c in count.items() if "experts" not in n and c != once[n]} == set()


@pytest.mark.parametrize("where", ["ln_1", "attn.c_attn", "ln_2"])
def test_a_hook_that_changes_outputs_changes_an_edit_at_an_input_alike(where: str) -> None:
    """With the residual zeroed at an input, what is read is what the leaf modules, hooks and all, give for zeros."""
    model = tiny("gpt2")
    block: Any = model.module.transformer.h[1]  # type: ignore[union-attr,index]
    block.get_submodule(where).register_forward_hook(lambda m, i, o: o * 0.5)
    run = model.run(TOKENS, edits=[zero("L1.q_input"), zero("L1.mlp_in")], capture=["L1.q", "L1.ln2"])
    nothing = torch.zeros(1, 1, 32)
    with torch.no_grad():
        q = block.attn.c_attn(block.ln_1(nothing))[..., :32].view(1, 1, 4, 8)
        ln2 = block.ln_2(nothing)
    torch.testing.assert_close(run["L1.q"], q.expand_as(run["L1.q"]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run["L1.ln2"], ln2.expand_as(run["L1.ln2"]), rtol=1e-5, atol=1e-5)


def test_a_users_hook_on_a_leaf_module_changes_the_run() -> None:
    model = tiny("gpt2")
    plain = model.run(TOKENS, plain_module=True).logits
    handle = model.module.transformer.h[1].mlp.c_fc.register_forward_hook(lambda m, i, o: o * 0.5)  # type: ignore[union-attr,index]
    ours, theirs = model.run(TOKENS).logits, model.run(TOKENS, plain_module=True).logits
    assert torch.equal(ours, theirs)
    assert not torch.allclose(ours, plain, atol=1e-3)
    handle.remove()
    assert torch.equal(model.run(TOKENS).logits, plain)


@pytest.mark.filterwarnings("ignore:For backward hooks to be called")
@pytest.mark.parametrize("name", ["", "transformer", "transformer.h.1", "transformer.h.0.attn", "transformer.h.0.mlp"])
@pytest.mark.parametrize(
    "how",
    [
        "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)  # fmt: skip
def test_hooks_on_containers_are_named(name: str, how: str) -> None:
    model = tiny("gpt2")
    container = model.module.get_submodule(name)
    seen = []
    handle = getattr(container, how)(lambda *a: seen.append(1))
    with pytest.raises(UserError, match=f"module '{name or 'GPT2LMHeadModel'}' carries a hook"):
        model.run(TOKENS)
    model.run(TOKENS, plain_module=True)
    assert seen or "backward" in how
    handle.remove()
    model.run(TOKENS)


def test_plain_module_takes_nothing_else() -> None:
    model = tiny("gpt2")
    for extra in ({"edits": [zero("L0.z")]}, {"capture": ["z"]}, {"grads": ["z"], "metric": total}):
        with pytest.raises(UserError, match="logits only"):
            model.run(TOKENS, plain_module=True, **extra)
    with model.hooks(("L0.z", lambda x, ctx: x)), pytest.raises(UserError, match="logits only"):
        model.run(TOKENS, plain_module=True)
