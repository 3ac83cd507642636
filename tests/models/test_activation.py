"""The activation in pieces: same bits, one call where somebody counts, the input's memory only where spare."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from interp.models.activation import PIECE, activate, gives_fresh, in_pieces
from tests.tiny import tiny


def big(width: int = 96) -> Tensor:
    rows = 5 * PIECE // width
    return torch.randn(rows // 3, 3, width, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("name", ["gelu_new", "gelu", "silu", "relu", "gelu_pytorch_tanh", "quick_gelu"])
@pytest.mark.parametrize("spare", [False, True])
def test_pieces_give_the_modules_bits(name: str, spare: bool) -> None:
    module, x = ACT2FN[name], big()
    with torch.no_grad():
        want = module(x)
        assert in_pieces(module, x)
        given = x.clone()
        got = activate(module, given, spare)
    assert torch.equal(got, want)
    assert (got.data_ptr() == given.data_ptr()) == spare
    assert spare or torch.equal(given, x)


def test_only_a_large_elementwise_tensor_without_graph_or_hook_goes_in_pieces() -> None:
    module, x = ACT2FN["gelu_new"], big()
    assert not in_pieces(module, x), "a graph is recorded"
    with torch.no_grad():
        assert in_pieces(module, x)
        assert not in_pieces(module, x[:4])
        assert not in_pieces(module, big(33))
        assert not in_pieces(module, x.transpose(0, 1))
        assert not in_pieces(nn.LayerNorm(96), x)
        assert not in_pieces(torch.tanh, x)
        calls: list[int] = []
        handle = module.register_forward_hook(lambda *_: calls.append(1))
        try:
            assert not in_pieces(module, x)
            activate(module, x)
        finally:
            handle.remove()
    assert calls == [1]


def test_a_projection_with_a_hook_is_never_overwritten() -> None:
    model = tiny("gpt2")
    fc = model.net.layers[0].mlp_in
    assert fc is not None
    assert gives_fresh(fc)
    assert not gives_fresh(nn.Identity())
    handle = fc.register_forward_hook(lambda *_: None)
    try:
        assert not gives_fresh(fc)
    finally:
        handle.remove()


def test_a_large_batch_keeps_what_is_captured_and_equals_small_ones() -> None:
    model = tiny("gpt2", n_embd=96, n_inner=384)
    tokens = torch.randint(1, 50, (64, 14), generator=torch.Generator().manual_seed(1))
    assert 2 * PIECE <= 64 * 14 * 384
    plain = model.run(tokens)
    both = model.run(tokens, capture=["L0.mlp_pre", "L0.mlp_post"])
    assert torch.equal(plain.logits, both.logits)
    with torch.no_grad():
        act = model.net.layers[0].act
        assert act is not None
        assert torch.equal(act(both["L0.mlp_pre"]), both["L0.mlp_post"])
        assert torch.equal(model.module(tokens).logits, plain.logits)
