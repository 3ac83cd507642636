"""Padding: positions, masks and gradients (faults 4 to 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from interp.hooks.edits import function, zero
from interp.hooks.prompts import Prompts
from interp.models.model import Model
from tests.interventions.drawn import in_double, model_of
from tests.tiny import HF_KINDS, tiny

LEFT, MASK = torch.tensor([[0, 0, 1, 2, 3, 4]]), torch.tensor([[0, 0, 1, 1, 1, 1]])


def last(logits: Tensor) -> Tensor:
    return logits[:, -1, 3] - logits[:, -1, 7]


@pytest.mark.parametrize("kind", HF_KINDS)
def test_left_padding_alone_and_in_a_mixed_batch(kind: str) -> None:
    model = tiny(kind)
    want = model.run([[1, 2, 3, 4]]).logits[0]
    alone = model.run(LEFT, MASK).logits
    other = torch.tensor([[7, 8, 9, 10, 11, 12]])
    mixed = model.run(torch.cat([LEFT, other]), torch.cat([MASK, torch.ones_like(MASK)]))
    for got in (alone[0], mixed.logits[0]):
        assert torch.allclose(got[2:], want, atol=1e-5)
    assert torch.allclose(mixed.logits[1], model.run(other).logits[0], atol=1e-5)


@pytest.mark.parametrize("kind", HF_KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_two_lengths_equal_themselves_alone(kind: str, side: str) -> None:
    """Effects of an edit too, not only logits."""
    model = tiny(kind)
    rows = [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]
    both = Prompts.of(rows, pad_side=side)
    for edits in ([], [zero("L0.z", head=1, pos=-1)], [zero("L1.mlp_out", pos=0)]):
        run = model.run(both, edits=edits)
        for i, row in enumerate(rows):
            alone = model.run([row], edits=edits).logits[0]
            assert torch.allclose(run.logits[i][both.mask[i]], alone, atol=1e-5)


@pytest.mark.parametrize("kind", HF_KINDS)
def test_right_padding_leaves_the_loss_alone(kind: str) -> None:
    model = tiny(kind)
    rows = [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10], [11, 12]]
    losses = []
    for pad in (0, 13, 49):
        p = Prompts.of(rows, pad_id=pad)
        nll = F.cross_entropy(model.run(p).logits[:, :-1].flatten(0, 1), p.tokens[:, 1:].flatten(), reduction="none")
        real = (p.mask[:, 1:] & p.mask[:, :-1]).flatten()
        losses.append(nll[real].sum() / real.sum())
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])
    alone = [F.cross_entropy(model.run([r]).logits[0, :-1], torch.tensor(r[1:]), reduction="sum") for r in rows]
    assert float(losses[0]) == pytest.approx(float(sum(alone)) / (3 + 5 + 1), rel=1e-5)


@pytest.mark.parametrize("made", [tiny, in_double])
@pytest.mark.parametrize("kind", HF_KINDS)
def test_nothing_is_infinite_under_padding(kind: str, made: Callable[[str], Model]) -> None:
    model = made(kind)
    sites = list(model.sites())
    run = model.run(LEFT, MASK, capture=sites, grads=sites, metric=last)
    for values in (run.acts, run.grads):
        for address, value in values.items():
            assert bool(value.isfinite().all()), address
    for i in range(2):
        pattern = run[f"L{i}.pattern"]
        assert bool((pattern[:, :, :2] == 0).all())  # padding reads nothing
        assert bool((pattern[..., :2] == 0).all())  # and is not read
        torch.testing.assert_close(pattern[:, :, 2:].sum(-1), torch.ones(1, 4, 4).to(pattern), rtol=0, atol=1e-6)
        assert bool((run[f"L{i}.scores"][:, :, :2] == torch.finfo(model.dtype).min).all())


@pytest.mark.parametrize("kind", HF_KINDS)
def test_a_row_that_an_edit_leaves_nothing_to_read_is_finite(kind: str) -> None:
    edit = function("L0.scores", lambda x, ctx: torch.full_like(x, torch.finfo(x.dtype).min))
    single, double = (made(kind).run(LEFT, MASK, edits=[edit]).logits for made in (model_of, in_double))
    assert torch.allclose(single[:, 2:].double(), double[:, 2:], atol=1e-5)


@pytest.mark.parametrize("kind", HF_KINDS)
def test_gradients_do_not_see_padding(kind: str) -> None:
    model = tiny(kind)
    padded = model.run(LEFT, MASK, grads=["embed", "L1.z"], metric=last)
    alone = model.run([[1, 2, 3, 4]], grads=["embed", "L1.z"], metric=last)
    for address in ("embed", "L1.z"):
        assert torch.allclose(padded.grads[address][:, 2:], alone.grads[address], atol=1e-5)
        assert bool((padded.grads[address][:, :2] == 0).all())
