"""Means against brute force: one real token at a time, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from interp.hooks.edits import mean
from interp.hooks.prompts import Prompts
from interp.models.model import Model
from interp.registry import UserError
from tests.tiny import tiny

LENGTHS = (6, 4, 5, 6, 2)
TEMPLATE = torch.tensor([0, 1, 0, 1, 1])
LABELS = {"A": torch.tensor([0, 1, 2, 3, 1]), "B": torch.tensor([5, -1, 4, 0, -1])}


def prompts(side: str = "left") -> Prompts:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 50, (n,), generator=generator).tolist() for n in LENGTHS]
    return Prompts.of(rows, pad_side=side, labels=LABELS, template=TEMPLATE)


def alone(model: Model, p: Prompts, site: str) -> list[Tensor]:
    """The site's value of each prompt run by itself, unpadded."""
    return [model.run(p.tokens[i][p.mask[i]][None], capture=site)[site][0].double() for i in range(len(p))]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("site", ["L0.z", "L1.resid_mid", "ln_final", "L1.v"])
def test_means_by_everything(side: str, site: str) -> None:
    model, p = tiny("llama"), prompts(side)
    rows = alone(model, p, site)
    every = model.means(p, [site])
    assert torch.allclose(every[site].double(), torch.cat(rows).mean(0), atol=1e-6)
    assert int(every.counts[site]) == sum(LENGTHS)
    by_position = model.means(p, [site], by="position")
    for place in range(6):
        here = [row[place] for row in rows if len(row) > place]
        assert torch.allclose(by_position[site][place].double(), torch.stack(here).mean(0), atol=1e-6)
        assert int(by_position.counts[site][place]) == len(here)
    by_label = model.means(p, [site], by="label")
    for i, label in enumerate(by_label.labels):
        here = [row[at] for row, at in zip(rows, LABELS[label].tolist(), strict=True) if at >= 0]
        assert torch.allclose(by_label[site][i].double(), torch.stack(here).mean(0), atol=1e-6)
    by_template = model.means(p, [site], by="template")
    for t in (0, 1):
        for place in range(6):
            here = [r[place] for r, k in zip(rows, TEMPLATE.tolist(), strict=True) if k == t and len(r) > place]
            if here:
                assert torch.allclose(by_template[site][t, place].double(), torch.stack(here).mean(0), atol=1e-6)


@pytest.mark.parametrize("by", ["all", "position", "label", "template"])
def test_batch_sizes_do_not_matter(by: str) -> None:
    model, p = tiny("gpt2"), prompts()
    whole = model.means(p, ["z"], by=by, batch_size=5)
    for size in (1, 2):
        parts = model.means(p, ["z"], by=by, batch_size=size)
        for address in whole:
            assert torch.allclose(parts[address], whole[address], atol=1e-6)
            assert torch.equal(parts.counts[address], whole.counts[address])


def test_the_pattern_is_averaged_by_position() -> None:
    model, p = tiny("gpt2"), prompts()
    means = model.means(p, ["L1.pattern"], by="position")["L1.pattern"]  # query, head, key
    rows = [model.run(p.tokens[i][p.mask[i]][None], capture="L1.pattern")["L1.pattern"][0] for i in range(5)]
    for query in range(6):
        for key in range(6):
            here = [r[:, query, key] if key < r.shape[1] else r.new_zeros(4) for r in rows if r.shape[1] > query]
            assert torch.allclose(means[query, :, key], torch.stack(here).mean(0), atol=1e-6)
    with pytest.raises(UserError, match="means of pattern are taken by position or template"):
        model.means(p, ["pattern"])


def test_mean_edits_put_each_mean_where_it_belongs() -> None:
    model, p = tiny("gpt2"), prompts("right")
    other = prompts("left")
    rows = alone(model, other, "L0.z")
    cases = {"all": {}, "position": {}, "template": {}, "label": {"pos": ["A", "B"]}}
    for by, parts in cases.items():
        means = model.means(other, ["L0.z"], by=by)
        run = model.run(p, edits=[mean("L0.z", means, head=1, **parts)], capture="L0.z")
        base = model.run(p, capture="L0.z")
        for i, n in enumerate(LENGTHS):
            for place in range(n):
                got = run["L0.z"][i, place, 1].double()
                assert torch.equal(run["L0.z"][i, place, 0], base["L0.z"][i, place, 0])
                if by == "all":
                    want = torch.cat(rows).mean(0)[1]
                elif by == "position":
                    want = torch.stack([r[place] for r in rows if len(r) > place]).mean(0)[1]
                elif by == "template":
                    same = [r for r, t in zip(rows, TEMPLATE, strict=True) if t == TEMPLATE[i] and len(r) > place]
                    want = torch.stack([r[place] for r in same]).mean(0)[1]
                else:
                    hit = [k for k in LABELS if int(LABELS[k][i]) == place]
                    want = base["L0.z"][i, place, 1].double()
                    if hit:
                        at = LABELS[hit[-1]].tolist()
                        want = torch.stack([r[a] for r, a in zip(rows, at, strict=True) if a >= 0]).mean(0)[1]
                assert torch.allclose(got, want, atol=1e-6), (by, i, place)


def test_means_that_are_missing_are_named() -> None:
    model = tiny("gpt2")
    short = model.means([[1, 2, 3]], ["L0.z"], by="position")
    with pytest.raises(UserError, match=r"saw no token at position 3 of L0\.z"):
        model.run([[1, 2, 3, 4]], edits=[mean("L0.z", short)])
    model.run([[1, 2, 3, 4]], edits=[mean("L0.z", short, pos=2)])
    with pytest.raises(UserError, match="need prompts that carry labels"):
        model.means([[1, 2, 3]], ["L0.z"], by="label")
    with pytest.raises(UserError, match="need prompts that carry template ids"):
        model.means([[1, 2, 3]], ["L0.z"], by="template")
    with pytest.raises(UserError, match=r"unknown kind of mean 'head'"):
        model.means([[1, 2, 3]], ["L0.z"], by="head")
    one, two = (Prompts.of([[1, 2, 3]], template=torch.tensor([t])) for t in (0, 1))
    by_template = model.means(one, ["L0.z"], by="template")
    with pytest.raises(UserError, match="no mean for template 1"):
        model.run(two, edits=[mean("L0.z", by_template)])
    with pytest.raises(UserError, match="means by label need positions selected by label"):
        model.run(prompts(), edits=[mean("L0.z", model.means(prompts(), ["L0.z"], by="label"))])
