"""The head census on a model whose heads are known, and its errors."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny

from interp.models.families import FAMILIES
from interp.models.load import load_model
from interp.models.model import Model
from interp.models.native import Native, NativeConfig
from interp.registry import UserError
from interp.tasks import load_task
from interp.tasks.repeated import repeated
from interp.weights.heads import head_scores, path_classes, random_periods


def previous_token_model() -> Model:
    """Head 0 attends to the position before by learned positions; head 1 has zero weights: even attention."""
    n = 24
    config = NativeConfig(layers=1, heads=2, d_model=2 * n, d_head=n, d_vocab=30, n_ctx=n, norm="none")
    module = Native(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.pos_embed.weight[:, :n] = torch.eye(n)
        attn = module.layers[0].attn
        attn.q.weight[:n, :n] = 400 * torch.eye(n).roll(-1, 0)
        attn.k.weight[:n, :n] = torch.eye(n)
    return Model(module.eval(), FAMILIES["native"], config, name="previous")


def test_known_heads() -> None:
    found = head_scores(previous_token_model(), periods=(5, 7, 11), n=3)
    assert found.scores["previous"].shape == (9, 1, 2)
    assert float(found.mean("previous")[0, 0]) == pytest.approx(1.0, abs=1e-6)
    assert float(found.mean("entropy")[0, 0]) == pytest.approx(0.0, abs=1e-6)
    assert found.best("previous") == (0, 0)
    assert found.classes() == [["previous", ""]]
    for name in ("previous", "duplicate", "induction", "current", "first"):
        torch.testing.assert_close(found.scores[name][:, 0, 1], found.chance[name])


def test_with_and_without_bos_and_seeds() -> None:
    model = tiny("gpt2")
    plain = head_scores(model, periods=(3, 4, 5), n=2)
    bos = head_scores(model, periods=(3, 4, 5), n=2, bos=True, bos_id=0)
    assert plain.bos is False
    assert bos.scores["first"].shape == plain.scores["first"].shape
    assert not torch.equal(bos.scores["first"], plain.scores["first"])
    again = head_scores(model, periods=(3, 4, 5), n=2)
    assert torch.equal(again.scores["induction"], plain.scores["induction"])
    assert len(set(random_periods(64, True, 3))) == 3
    with pytest.raises(UserError, match="no BOS token"):
        head_scores(model, bos=True)
    with pytest.raises(UserError, match="3 different periods"):
        head_scores(model, periods=(4, 4, 5))
    with pytest.raises(UserError, match="context holds 16"):
        head_scores(model, periods=(3, 4, 9))
    with pytest.raises(UserError, match="holds no 3"):
        random_periods(5, False, 0)


def test_attn_2l_has_its_heads() -> None:
    """The shipped language model: the same pair is first by census, by K-composition and by ablation.

    Ablation: the loss on second copies with each head's z replaced by its mean; both heads cost most in their layer.
    """
    import interp
    from interp.weights.composition import composition

    model = load_model("attn-2l")
    found = head_scores(model, n=4)
    (l1, h1), (l2, h2) = found.best("previous"), found.best("induction")
    assert (l1, l2) == (0, 1)
    assert float(found.mean("induction")[l2, h2]) >= 0.4
    assert "induction" in found.classes()[l2][h2]
    k = composition(model, "k", permutations=100)
    assert k.best() == (l1, h1, l2, h2)
    assert float(k.score[l1, h1, l2, h2]) > float(k.band_high[l1, h1, l2, h2])
    assert float(k.p_value[l1, h1, l2, h2]) == pytest.approx(1 / 101)
    period = 20
    prompts = repeated(range(1, 1024), period, 16, seed=7)
    means = model.means(prompts, ["z"])

    def loss(edits: tuple[object, ...] = ()) -> float:
        log_p = model.run(prompts, edits=edits).logits[:, period:-1].log_softmax(-1)  # type: ignore[arg-type]
        return -float(log_p.gather(-1, prompts.tokens[:, period + 1 :, None]).mean())

    for layer, head in ((l1, h1), (l2, h2)):
        cost = [loss((interp.mean(f"L{layer}.z", means, head=h),)) - loss() for h in range(8)]
        assert max(range(8), key=cost.__getitem__) == head
        assert cost[head] > 2


def test_path_classes_on_toy_ioi() -> None:
    """Every named head's path effect is sure and of its sign; copy scores decide between mover and direct."""
    model = load_model("toy-ioi")
    task = load_task("ioi", model, n=24, seed=0)
    none = torch.zeros(model.geometry.layers, model.geometry.heads)
    found = path_classes(model, task, none, none)
    grid = (found.direct.values - found.direct.baseline).mean(1).view(none.shape)
    names = {name for row in found.classes for name in row if name}
    assert names <= {"direct", "direct negative", "inhibition"}
    assert "direct" in names
    for layer, row in enumerate(found.classes):
        for head, name in enumerate(row):
            if name == "direct":
                assert float(grid[layer, head]) < 0
            if name == "direct negative":
                assert float(grid[layer, head]) > 0
    movers = path_classes(model, task, torch.ones_like(none), none)
    assert {n for row in movers.classes for n in row} & {"mover"}
