"""Attention by products and by the kernel equals the steps, over prefixes, windows and grouped heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from interp.hooks.context import Held
from interp.hooks.prompts import Prompts
from interp.models import loose_attention as module
from interp.models.attention import attend, per_query_head, with_prefix
from interp.models.grid import Grid
from interp.models.loose_attention import fits_attention, lanes_short, loose_attention
from tests.tiny import tiny


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("by", ["products", "kernel"])
def test_equals_the_steps(kind: str, first: int, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, called = torch.nn.functional.scaled_dot_product_attention, []
    monkeypatch.setattr(module, "FEW_KEYS", 64 if by == "products" else 0)
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *x, **y: called.append(1) or kernel(*x, **y)
    )
    net = tiny(kind).net
    g, width, generator = net.geometry, 9, torch.Generator().manual_seed(0)
    prompts = Prompts.of(torch.ones(3, width, dtype=torch.long))
    grid = Grid(net, Held(prompts, torch.arange(first, width), first == 0), net.dtype, first)
    q = torch.randn(3, g.heads, width - first, g.d_head, generator=generator)
    k, v = (torch.randn(3, g.kv_heads, width, g.d_head, generator=generator) for _ in range(2))
    windows = set()
    with torch.no_grad():
        for layer in range(g.layers):
            windows.add(net.layers[layer].window)
            assert fits_attention(net, layer, q, grid)
            keys, values = (per_query_head(t, g.group) for t in (k, v))
            expected = attend(net, layer, q, keys, grid) @ values
            for more in (0, 7):  # keys that nobody reads change nothing
                longer = [with_prefix(None, t, more) for t in (k, v)]
                assert [t.shape[2] for t in longer] == [width + more] * 2
                mixed = loose_attention(net, layer, q, *longer, grid)
                torch.testing.assert_close(mixed, expected, rtol=0, atol=2e-6)
    assert bool(called) == (by == "kernel")
    assert (kind == "mistral") == any(w is not None and w < width for w in windows)


def test_keys_fill_whole_vectors() -> None:
    """The kernel takes a few keys beyond whole vectors as they are; a GPU has no such vectors."""
    cpu = torch.device("cpu")
    assert [lanes_short(n, cpu) for n in (4, 5, 15, 16, 17, 20, 21, 32)] == [12, 11, 1, 0, 15, 12, 11, 0]
    assert [lanes_short(n, cpu) for n in (64, 65, 68, 69, 80)] == [0, 0, 0, 11, 0]
    assert lanes_short(15, torch.device("cuda")) == 0


def test_steps_back() -> None:
    net = tiny("gpt2").net
    whole = Prompts.of([[1, 2, 3], [4, 5, 6]])
    padded = Prompts.of([[1, 2, 3], [4, 5]])
    q = torch.randn(2, net.geometry.heads, 3, net.geometry.d_head)
    with torch.no_grad():
        assert fits_attention(net, 0, q, Grid.of(net, whole, net.dtype))
        assert not fits_attention(net, 0, q, Grid.of(net, padded, net.dtype))
        assert not fits_attention(net, 0, q.bfloat16(), Grid.of(net, whole, net.dtype))
        capped = replace(net, layers=(replace(net.layers[0], cap=5.0), *net.layers[1:]))
        assert not fits_attention(capped, 0, q, Grid.of(net, whole, net.dtype))
        bloom = tiny("bloom").net
        assert not fits_attention(bloom, 0, q, Grid.of(bloom, whole, bloom.dtype))
    assert not fits_attention(net, 0, q, Grid.of(net, whole, net.dtype))  # a graph may be wanted
