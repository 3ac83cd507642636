"""The other kernels give the same numbers up to rounding, and step back where somebody could tell."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from interp.models import loose, products


@pytest.fixture(autouse=True, params=["oneDNN", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test with oneDNN's products, where this machine is one for them, and without."""
    if request.param == "torch":
        monkeypatch.setattr(products, "_operator", lambda: None)
    elif products._operator() is None:
        pytest.skip("no AVX-512, or no oneDNN: torch's own products only")
    return str(request.param)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["gelu_new", "gelu_pytorch_tanh", "gelu", "silu", "relu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [2, 700])  # one piece, and several
def test_activations_agree(name: str, bias: bool, tokens: int) -> None:
    x, act, linear = 4 * drawn(3, tokens, 16), ACT2FN[name], nn.Linear(16, 160, bias=bias)
    before, up = x.clone(), drawn(3, tokens, 160)
    with torch.no_grad():
        assert loose.fits_activated(linear, act)
        torch.testing.assert_close(loose.activated(linear, act, x), act(linear(x)), rtol=1e-6, atol=2e-6)
        torch.testing.assert_close(loose.activated(linear, act, x, up), act(linear(x)) * up, rtol=1e-6, atol=8e-6)
        far = loose.activated(linear, act, 1e4 * x)  # where σ and tanh are flat
        torch.testing.assert_close(far, act(linear(1e4 * x)), rtol=1e-5, atol=1e-2)
    assert torch.equal(x, before)


def test_activations_step_back() -> None:
    act, linear = type(ACT2FN["gelu_new"])(), nn.Linear(8, 16)
    assert not loose.fits_activated(linear, act)  # a graph may be wanted
    with torch.no_grad():
        assert not loose.fits_activated(linear, nn.Softplus())
        for module in (act, linear):
            assert loose.fits_activated(linear, act)
            handle = module.register_forward_hook(lambda *_: None)
            assert not loose.fits_activated(linear, act)
            handle.remove()
        assert not loose.fits_activated(nn.Sequential(linear), act)


def test_norms_agree_and_step_back() -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, norm = 3 * drawn(4, 5, 64), LlamaRMSNorm(64, eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(drawn(64))
        torch.testing.assert_close(loose.normed(norm, x), norm(x), rtol=0, atol=1e-6)
        assert loose.normed(GemmaRMSNorm(64), x) is None  # its gain is 1 + weight
        assert loose.normed(norm, x.bfloat16()) is None
        assert loose.normed(nn.LayerNorm(64), x) is None
        handle = norm.register_forward_pre_hook(lambda *_: None)
        assert loose.normed(norm, x) is None
        handle.remove()
    assert loose.normed(norm, x) is None  # a graph may be wanted


def test_a_norm_in_pieces_is_that_of_each_row() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, norm = drawn(4, 9000, 64), LlamaRMSNorm(64, eps=1e-6)
    with torch.no_grad():
        each = [loose.normed(norm, row) for row in x.flatten(0, 1).split(1000)]
        together = loose.normed(norm, x)
        assert together is not None
        torch.testing.assert_close(together, torch.cat(each).view_as(x), rtol=0, atol=1e-6)  # type: ignore[arg-type]
        torch.testing.assert_close(together, norm(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("rows", "angles"), [(2, 1), (2, 2), (7000, 1), (7000, 7000)])  # one piece, and several
def test_turned(rows: int, angles: int) -> None:
    x, angle = drawn(rows, 3, 4, 8), drawn(angles, 3, 1, 4).repeat(1, 1, 1, 2)
    a, b = x.chunk(2, -1)
    expected = x * angle.cos() + torch.cat((-b, a), -1) * angle.sin()
    torch.testing.assert_close(loose.turned(x, angle.cos(), angle.sin()), expected, rtol=0, atol=1e-6)


def test_part_of() -> None:
    x = drawn(2, 3, 4, 8)
    for linear in (nn.Linear(8, 12), nn.Linear(8, 12, bias=False), Conv1D(12, 8)):
        with torch.no_grad():
            part = loose.part_of(linear, x, slice(4, None))
            torch.testing.assert_close(part, linear(x)[..., 4:], rtol=0, atol=1e-6)


def test_mapped() -> None:
    x = drawn(2, 3, 8)
    for linear in (nn.Linear(8, 12), nn.Linear(8, 12, bias=False), Conv1D(12, 8), nn.Sequential(nn.Linear(8, 12))):
        torch.testing.assert_close(loose.mapped(linear, x), linear(x), rtol=0, atol=1e-6)
        assert loose.mapped(linear, x).requires_grad, "a graph may be wanted"
        with torch.no_grad():
            torch.testing.assert_close(loose.mapped(linear, x), linear(x), rtol=0, atol=1e-6)
            handle = linear.register_forward_hook(lambda module, args, out: 0 * out)
            assert not loose.mapped(linear, x).any()
            handle.remove()


@pytest.mark.parametrize("bias", [True, False])
def test_added(bias: bool, kernels: str) -> None:
    stream, x = drawn(2, 3, 8), drawn(2, 3, 16)
    before, linear = stream.clone(), nn.Linear(16, 8, bias=bias)
    with torch.no_grad():
        torch.testing.assert_close(loose.added(stream, linear, x), stream + linear(x), rtol=0, atol=1e-6)
        conv = Conv1D(8, 16)
        conv.bias.copy_(drawn(8))
        torch.testing.assert_close(loose.added(stream, conv, x), stream + conv(x), rtol=0, atol=1e-6)
        assert torch.equal(stream, before)
        for module in (linear, conv):
            own = stream.clone()
            into = loose.added(own, module, x, spare=True)
            torch.testing.assert_close(into, stream + module(x), rtol=0, atol=1e-6)
            assert kernels == "oneDNN" or into.data_ptr() == own.data_ptr()


@pytest.mark.parametrize("keys", [1, 15, 16, 33])
def test_softmax(keys: int) -> None:
    scores = 30 * drawn(2, 3, 4, keys)
    scores[..., keys // 2 + 1 :] = torch.finfo(torch.float32).min
    ours = loose.softmax(scores, None)
    torch.testing.assert_close(ours, torch.softmax(scores, -1), rtol=0, atol=1e-6)
    assert bool((ours[..., keys // 2 + 1 :] == 0).all())
    half = scores[..., : keys // 2 + 1].bfloat16()
    assert torch.equal(loose.softmax(half, torch.float32), torch.softmax(half, -1, dtype=torch.float32))
