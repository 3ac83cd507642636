"""The other kernels give the same numbers up to rounding, and step back where somebody could tell."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from interp.models import loose


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["gelu_new", "silu"])
@pytest.mark.parametrize("spare", [False, True])
def test_activations_agree(name: str, spare: bool) -> None:
    x, module = 4 * drawn(3, 5, 64), ACT2FN[name]
    with torch.no_grad():
        expected, kernel, given = module(x), loose.one_kernel(module), x.clone()
        assert kernel is not None
        out = kernel(given, spare)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    assert torch.equal(given, x) is not spare


def test_activations_step_back() -> None:
    module = type(ACT2FN["gelu_new"])()
    assert loose.one_kernel(module) is None  # a graph may be wanted
    with torch.no_grad():
        assert loose.one_kernel(nn.Softplus()) is None
        assert loose.one_kernel(module) is not None
        handle = module.register_forward_hook(lambda *_: None)
        assert loose.one_kernel(module) is None
        handle.remove()
        assert loose.one_kernel(module) is not None


@pytest.mark.parametrize("bias", [True, False])
def test_added(bias: bool) -> None:
    stream, x = drawn(2, 3, 8), drawn(2, 3, 16)
    before, linear = stream.clone(), nn.Linear(16, 8, bias=bias)
    with torch.no_grad():
        torch.testing.assert_close(loose.added(stream, linear, x), stream + linear(x), rtol=0, atol=1e-6)
        conv = Conv1D(8, 16)
        conv.bias.copy_(drawn(8))
        torch.testing.assert_close(loose.added(stream, conv, x), stream + conv(x), rtol=0, atol=1e-6)
    assert torch.equal(stream, before)


@pytest.mark.parametrize("keys", [1, 15, 16, 33])
def test_softmax(keys: int) -> None:
    scores = 30 * drawn(2, 3, 4, keys)
    scores[..., keys // 2 + 1 :] = torch.finfo(torch.float32).min
    ours = loose.softmax(scores, None)
    torch.testing.assert_close(ours, torch.softmax(scores, -1), rtol=0, atol=1e-6)
    assert bool((ours[..., keys // 2 + 1 :] == 0).all())
    half = scores[..., : keys // 2 + 1].bfloat16()
    assert torch.equal(loose.softmax(half, torch.float32), torch.softmax(half, -1, dtype=torch.float32))
