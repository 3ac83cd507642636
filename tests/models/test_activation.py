"""The activation in pieces: same bits, one call where somebody counts, the input's memory only where spare."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import activations
from transformers.activations import ACT2FN

from interp.models.activation import _ELEMENTWISE, PIECE, activate, gives_fresh, in_pieces
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


@pytest.mark.parametrize("module", [nn.PReLU(96, init=0.5), nn.Softmax(-1), nn.LogSoftmax(-1), nn.RReLU(0.1, 0.9)])
def test_what_is_not_elementwise_is_called_whole(module: nn.Module) -> None:
    """PReLU's channels are axis 1, which flattening moves: on (rows, 3, 96) it cannot even run with 96 slopes."""
    x = big()
    x = x.flatten(0, 1) if isinstance(module, nn.PReLU) else x
    with torch.no_grad():
        assert not in_pieces(module, x)
        assert torch.equal(activate(module.eval(), x), module(x))


def test_prelu_over_axis_one_keeps_its_channels() -> None:
    """Three slopes along axis 1 of (rows, 3, 96): in flattened pieces they would meet the wrong numbers or none."""
    module, x = nn.PReLU(3), big()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([0.0, 1.0, 2.0]))
        want = torch.where(x > 0, x, x * module.weight[:, None])
        torch.testing.assert_close(activate(module, x), want)


@pytest.mark.parametrize("name", sorted(_ELEMENTWISE))
def test_the_list_holds_only_elementwise_activations(name: str) -> None:
    """Each listed activation gives a number the same output whatever stands beside it."""
    home = next((m for m in (activations, nn) if hasattr(m, name)), None)
    assert home is not None
    extra = {"ClippedGELUActivation": (-10.0, 10.0), "Threshold": (0.1, 0.0)}.get(name, ())
    module, x = getattr(home, name)(*extra), torch.linspace(-4, 4, 64).view(8, 8)
    torch.testing.assert_close(module(x).flatten(), torch.cat([module(v[None, None])[0] for v in x.flatten()]))


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
