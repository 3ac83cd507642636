"""oneDNN's products: right whatever the layout, alike whatever rows lie beside, and only where they may be used."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from interp.models import loose
from interp.models.products import FUSED, _operator, by_onednn, product, product_onto

needs_onednn = pytest.mark.skipif(_operator() is None, reason="no AVX-512, or no oneDNN: torch's own products only")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_every_activation_has_both_ways() -> None:
    assert set(FUSED) == set(loose.IN_PLACE)


@needs_onednn
def test_layouts() -> None:
    weight, wide = drawn(96, 384), drawn(96, 1200)
    weights = {
        "[in, out]": weight, "[out, in]": drawn(384, 96).T, "some columns of another": wide[:, 5:389],
        "some rows of another": drawn(384, 900)[:, 7:103].T,
    }  # fmt: skip
    inputs = {"whole": drawn(60, 96), "turned": drawn(96, 60).T, "one row": drawn(1, 96).expand(60, 96),
              "gaps": drawn(60, 200)[:, 3:99], "axes": drawn(5, 12, 96), "nothing": drawn(0, 96)}  # fmt: skip
    with torch.no_grad():
        for w in weights.values():
            for x in inputs.values():
                stream = drawn(384, *x.shape[:-1]).movedim(0, -1)
                close = {"rtol": 0, "atol": 2e-5}
                torch.testing.assert_close(product(x, w), x @ w, **close)
                torch.testing.assert_close(product(x, w, w[0]), x @ w + w[0], **close)
                torch.testing.assert_close(product_onto(stream, x, w, w[0]), stream + x @ w + w[0], **close)
        assert bool(product(torch.full((2, 96), torch.nan), weight).isnan().all())


@needs_onednn
def test_weights_with_gaps_are_not_slow() -> None:
    x, wide = drawn(480, 96), drawn(96, 1200)
    taken = []
    with torch.no_grad():
        for w in (wide[:, :384].contiguous(), wide[:, :384]):
            product(x, w)
            start = time.perf_counter()
            for _ in range(5):
                product(x, w)
            taken.append(time.perf_counter() - start)
    assert taken[1] < 50 * taken[0]  # 2,000 times as long where it is handed over as it is


@needs_onednn
@pytest.mark.parametrize(("d", "out"), [(96, 384), (384, 96), (64, 192)])
def test_a_row_is_alike_whatever_lies_beside_it(d: int, out: int) -> None:
    x, w, b = drawn(300, d), drawn(d, out), drawn(out)
    with torch.no_grad():
        whole = product(x, w, b, ("gelu", "tanh"))
        for rows in (1, 2, 7, 16, 33, 120, 299):
            assert torch.equal(product(x[:rows], w, b, ("gelu", "tanh")), whole[:rows])


def test_only_where_it_may_be() -> None:
    x, w = drawn(3, 4), drawn(4, 5)
    assert not by_onednn(x, w), "a graph may be wanted"

    class Own(torch.Tensor):
        pass

    with torch.no_grad():
        assert by_onednn(x, w) == (_operator() is not None)
        assert by_onednn(x, nn.Parameter(w)) == (_operator() is not None)
        assert not by_onednn(x, w, w[0].double())
        assert not by_onednn(x.double(), w.double())
        assert not by_onednn(x.bfloat16(), w.bfloat16())
        assert not by_onednn(x, w.to_sparse())
        assert not by_onednn(x, w.as_subclass(Own))


MANY_SHAPES = """
import torch
from interp.models.products import product
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
x, w = torch.randn(1200, 64), torch.randn(64, 64)
with torch.no_grad():
    for rows in range(1, 1201):
        product(x[:rows], w)
        if rows == 600:
            before = resident()
print(resident() - before)
"""


@needs_onednn
def test_kernels_of_many_shapes_do_not_pile_up() -> None:
    before = dict(os.environ)
    done = subprocess.run([sys.executable, "-c", MANY_SHAPES], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 60, "MB that 600 more shapes take"  # 226 where oneDNN keeps what it likes
    assert dict(os.environ) == before
