"""What each edit means: known numbers, alignment of runs of unequal length, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from interp.hooks.context import EditContext
from interp.hooks.edits import add, donors, freeze, function, mean, patch, project_out, resample, scale, zero
from interp.hooks.prompts import Prompts
from interp.registry import UserError
from tests.tiny import tiny
from tests.unchecked import unchecked

CLEAN, CORRUPT = [[1, 2, 3, 4, 5, 6]], [[7, 8, 9, 10, 11, 12]]


def many(n: int = 5, length: int = 6, seed: int = 0) -> Prompts:
    return Prompts.of(torch.randint(0, 50, (n, length), generator=torch.Generator().manual_seed(seed)))


# -- patch --------------------------------------------------------------------------------------------------------


def test_patched_runs_line_up_token_by_token_whatever_the_padding() -> None:
    model = tiny("gpt2")
    rows, others = [[1, 2, 3, 4, 5, 6], [7, 8, 9]], [[11, 12, 13, 14, 15, 16], [17, 18, 19]]
    left, right = Prompts.of(rows, pad_side="left"), Prompts.of(others, pad_side="right")
    donor = model.run(right, capture=["L0.z", "L0.pattern"])
    for site in ("L0.z", "L0.pattern"):
        batched = model.run(left, edits=[patch(site, donor)])
        for i in range(2):
            alone = model.run([rows[i]], edits=[patch(site, model.run([others[i]], capture=[site]))])
            assert torch.allclose(batched.logits[i][left.mask[i]], alone.logits[0], atol=1e-5)


def test_pairs_of_unequal_length_are_refused_and_patch_by_label() -> None:
    model = tiny("llama")
    long = Prompts.of([[1, 2, 3, 4, 5, 6]], labels={"END": torch.tensor([5]), "S": torch.tensor([1])})
    short = Prompts.of([[7, 8, 9, 10, 11]], labels={"END": torch.tensor([4]), "S": torch.tensor([3])})
    donor = model.run(short, capture=["L0.z"])
    with pytest.raises(UserError, match="pair 0 differs in length: 6 and 5 tokens"):
        model.run(long, edits=[patch("L0.z", donor)])
    run = model.run(long, edits=[patch("L0.z", donor, pos=["S", "END"])], capture="L0.z")
    base = model.run(long, capture="L0.z")
    assert torch.equal(run["L0.z"][0, 1], donor["L0.z"][0, 3])
    assert torch.equal(run["L0.z"][0, 5], donor["L0.z"][0, 4])
    assert torch.equal(run["L0.z"][0, [0, 2, 3, 4]], base["L0.z"][0, [0, 2, 3, 4]])
    with pytest.raises(UserError, match="label"):
        model.run(long, edits=[patch("L0.z", donor, pos="IO")])


def test_basis_patch_swaps_the_span_and_nothing_else() -> None:
    model = tiny("gpt2")
    basis = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
    donor = model.run(CORRUPT, capture="L1.resid_mid")
    base = model.run(CLEAN, capture="L1.resid_mid")
    run = model.run(CLEAN, edits=[patch("L1.resid_mid", donor, basis=basis)], capture="L1.resid_mid")
    got, own, theirs = run["L1.resid_mid"], base["L1.resid_mid"], donor["L1.resid_mid"]
    assert torch.allclose(got @ basis, theirs @ basis, atol=1e-4)
    inside = torch.linalg.qr(basis).Q
    outside = torch.eye(32) - inside @ inside.T
    assert torch.allclose(got @ outside, own @ outside, atol=1e-5)
    whole = model.run(CLEAN, edits=[patch("L1.resid_mid", donor, basis=torch.eye(32))])
    assert torch.allclose(whole.logits, model.run(CLEAN, edits=[patch("L1.resid_mid", donor)]).logits, atol=1e-5)


def test_a_run_that_did_not_capture_the_site_is_refused_before_the_pass() -> None:
    model = tiny("gpt2")
    with pytest.raises(UserError, match=r"captured address 'L0.z'.*L1.z"):
        model.run(CLEAN, edits=[patch("L0.z", model.run(CORRUPT, capture="L1.z"))])
    with pytest.raises(UserError, match="other run has 5 prompts, this one 1"):
        model.run(CLEAN, edits=[patch("L0.z", model.run(many(), capture="L0.z"))])


# -- resample -----------------------------------------------------------------------------------------------------


def test_donors_have_other_tokens_and_the_same_length_and_labels() -> None:
    p = Prompts.of(
        [[1, 2, 3], [1, 2, 3], [4, 5, 6], [1, 2], [3, 4], [9, 9, 9]], pad_side="left",
        labels={"S": torch.tensor([0, 0, 0, 1, 1, 1])},
    )  # fmt: skip
    for seed in range(30):
        chosen = donors(p.rows([0, 1, 2, 3, 4]), seed)
        assert chosen[:2].tolist() == [2, 2]  # row 1 has the same tokens as row 0
        assert chosen[2] in (0, 1)
        assert chosen[3:].tolist() == [4, 3]
    with pytest.raises(UserError, match="prompt 5 has no donor"):
        donors(p, 0)


def test_donors_are_seeded_and_use_every_candidate() -> None:
    p = many(6)
    assert torch.equal(donors(p, 3), donors(p, 3))
    seen = torch.stack([donors(p, seed) for seed in range(60)])
    for i in range(6):
        assert set(seen[:, i].tolist()) == set(range(6)) - {i}


def test_donors_may_have_to_share_a_token() -> None:
    p = Prompts.of([[1, 5, 2], [3, 5, 4], [6, 7, 8], [9, 7, 10]], labels={"S": torch.tensor([1, 1, 1, 1])})
    for seed in range(10):
        assert donors(p, seed, match="S").tolist() == [1, 0, 3, 2]


def test_resampling_one_prompt_is_refused() -> None:
    model = tiny("gpt2")
    with pytest.raises(UserError, match="prompt 0 has no donor"):
        resample("L0.z", model.run(CLEAN, capture="L0.z"), seed=0)


def test_resample_takes_the_donors_value() -> None:
    model, p = tiny("gpt2"), many()
    own = model.run(p, capture="L0.z")
    edit = resample("L0.z", own, seed=1, head=1)
    run = model.run(p, edits=[edit], capture="L0.z")
    rows = donors(p, 1)
    assert torch.equal(run["L0.z"][:, :, 1], own["L0.z"][rows][:, :, 1])
    assert torch.equal(run["L0.z"][:, :, 0], own["L0.z"][:, :, 0])


# -- freeze, add, project_out, function ----------------------------------------------------------------------------


def test_freeze_holds_the_base_value_against_an_earlier_edit() -> None:
    model, p = tiny("gpt2"), many()
    base = model.run(p, capture=["L1.pattern", "L1.v"])
    free = model.run(p, edits=[zero("L0.z")], capture="L1.pattern")
    held = model.run(p, edits=[zero("L0.z"), freeze("L1.pattern")], capture=["L1.pattern", "L1.v"])
    assert torch.equal(held["L1.pattern"], base["L1.pattern"])
    assert not torch.allclose(free["L1.pattern"], base["L1.pattern"], atol=1e-3)
    assert not torch.allclose(held["L1.v"], base["L1.v"], atol=1e-3)


def test_freezing_every_sublayer_isolates_the_direct_path() -> None:
    """With all later outputs frozen, a change of z reaches the last residual as its own W_O image."""
    model, p = tiny("gpt2"), many()
    base = model.run(p, capture=["resid_post", "L0.z"])
    frozen = [freeze("L0.mlp_out"), freeze("L1.attn_out"), freeze("L1.mlp_out")]
    run = model.run(p, edits=[zero("L0.z", head=2), *frozen], capture="resid_post")
    lost = torch.einsum("bpd,dm->bpm", base["L0.z"][:, :, 2], model.weights(0).W_O[2])
    assert torch.allclose(base["L1.resid_post"] - run["L1.resid_post"], lost, atol=1e-5)


def test_edits_are_made_in_the_order_given() -> None:
    model, p = tiny("gpt2"), many()
    one = torch.ones(8)
    ab = model.run(p, edits=[zero("L0.z"), add("L0.z", one)], capture="L0.z")["L0.z"]
    ba = model.run(p, edits=[add("L0.z", one), zero("L0.z")], capture="L0.z")["L0.z"]
    assert bool((ab == 1).all())
    assert bool((ba == 0).all())


def test_a_site_without_a_layer_means_every_layer() -> None:
    model, p = tiny("gpt2"), many()
    both = model.run(p, edits=[zero("L0.z"), zero("L1.z")]).logits
    assert torch.equal(model.run(p, edits=[zero("z")]).logits, both)


def test_steering_one_position() -> None:
    model, p = tiny("llama"), many()
    vector = torch.arange(32.0)
    base = model.run(p, capture="L1.resid_pre")["L1.resid_pre"]
    run = model.run(p, edits=[add("L1.resid_pre", vector, pos=-1)], capture="L1.resid_pre")["L1.resid_pre"]
    assert torch.allclose(run[:, -1] - base[:, -1], vector.expand(5, 32), atol=1e-5)
    assert torch.equal(run[:, :-1], base[:, :-1])


def test_project_out_leaves_nothing_of_the_span() -> None:
    model, p = tiny("gpt2"), many()
    directions = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    directions[2] = directions[0] - directions[1]  # a dependent row changes nothing
    run = model.run(p, edits=[project_out("L0.resid_post", directions)], capture="L0.resid_post")
    assert float((run["L0.resid_post"] @ directions.T).abs().max()) < 1e-4
    two = model.run(p, edits=[project_out("L0.resid_post", directions[:2])])
    assert torch.allclose(run.logits, two.logits, atol=1e-4)
    with pytest.raises(UserError, match="span nothing"):
        project_out("L0.resid_post", torch.zeros(32))


def test_a_function_gets_a_copy_and_its_context() -> None:
    model, p = tiny("llama"), many()
    seen = []

    def in_place(x: Tensor, ctx: EditContext) -> Tensor:
        seen.append((str(ctx.address), tuple(x.shape)))
        x.zero_()
        return x

    def silent(x: Tensor, ctx: EditContext) -> None:
        x.zero_()

    base = model.run(p, capture=["L1.k", "L1.k_rot"])
    run = model.run(p, edits=[function("L1.k", in_place, kv_head=1)], capture=["L1.k"])
    assert seen == [("L1.k", (5, 6, 1, 8))]
    assert bool((run["L1.k"][:, :, 1] == 0).all())
    assert torch.equal(run["L1.k"][:, :, 0], base["L1.k"][:, :, 0])
    with pytest.raises(UserError, match="edited in place and returned None"):
        model.run(p, edits=[function("L1.k", silent)])
    assert torch.equal(model.run(p, edits=[function("L1.k", lambda x, ctx: None)]).logits, base.logits)


def test_a_value_of_the_wrong_shape_is_named() -> None:
    model, p = tiny("gpt2"), many()
    with pytest.raises(UserError, match=r"function\('L0.z'\) gave shape \(3,\) where L0.z needs \(5, 6, 4, 8\)"):
        model.run(p, edits=[function("L0.z", lambda x, ctx: torch.ones(3))])
    with pytest.raises((UserError, RuntimeError), match=r"7|shape"):
        model.run(p, edits=[add("L0.z", torch.ones(7))])


def test_neurons_experts_keys_and_labels_are_selected() -> None:
    p = Prompts.of(many().tokens, labels={"S": torch.tensor([0, 1, 2, 3, 4])})
    model = tiny("gpt2")
    base = model.run(p, capture=["L0.mlp_post", "L0.pattern"])
    run = model.run(p, edits=[zero("L0.mlp_post", neuron=[0, -1])], capture="L0.mlp_post")
    assert bool((run["L0.mlp_post"][..., [0, 127]] == 0).all())
    assert torch.equal(run["L0.mlp_post"][..., 1:127], base["L0.mlp_post"][..., 1:127])
    cut = model.run(p, edits=[zero("L0.pattern", head=3, pos=-1, key="S")], capture="L0.pattern")
    keep = torch.ones_like(base["L0.pattern"], dtype=torch.bool)
    for row in range(5):
        keep[row, 3, 5, row] = False
    assert torch.equal(cut["L0.pattern"][keep], base["L0.pattern"][keep])
    assert bool((cut["L0.pattern"][~keep] == 0).all())
    assert bool((base["L0.pattern"][~keep] > 0).all())


@pytest.mark.parametrize(
    ("address", "parts", "says"),
    [
        ("L0.z", {"head": 4}, "head 4 of z lies outside the model's 4 heads"),
        ("L0.z", {"head": -5}, "head -5"),
        ("L0.z", {"kv_head": 0}, "no kv_head axis; select it by head="),
        ("L0.resid_pre", {"head": 0}, "no head axis"),
        ("L0.z", {"neuron": 0}, "no neuron axis"),
        ("L0.z", {"key": 0}, "no key axis"),
        ("L0.z", {"pos": 6}, "position 6 lies outside prompt 0, which has 6 tokens"),
        ("L0.z", {"pos": -7}, "position -7"),
        ("L0.z", {"pos": "S9"}, "unknown position label 'S9'"),
        ("L2.z", {}, "layer 2 of z lies outside the model's 2 layers"),
        ("L0.ln_final", {}, "has no layer"),
        ("L0 z", {}, "not a site address"),
    ],
)
def test_selections_that_do_not_fit_are_refused(address: str, parts: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        tiny("gpt2").run(many(), edits=[zero(address, **parts)])


@pytest.mark.parametrize("bad", [{"head": True}, {"head": 1.5}, {"head": []}, {"pos": [None]}])
def test_selections_are_whole_numbers_or_labels(bad: dict[str, object]) -> None:
    with unchecked(), pytest.raises(UserError):
        zero("L0.z", **bad)


def test_what_is_no_edit_is_refused() -> None:
    with unchecked(), pytest.raises(UserError, match=r"not an edit.*freeze"):
        tiny("gpt2").run(many(), edits=["L0.z"])  # type: ignore[list-item]


def test_scaling_by_zero_is_zeroing() -> None:
    model, p = tiny("gemma2"), many()
    assert torch.equal(model.run(p, edits=[scale("mlp_out", 0.0)]).logits, model.run(p, edits=[zero("mlp_out")]).logits)


def test_mean_of_another_site_is_refused() -> None:
    model, p = tiny("gpt2"), many()
    with pytest.raises(UserError, match=r"averaged address 'L0\.z'"):
        model.run(p, edits=[mean("L0.z", model.means(p, ["L1.z"]))])
