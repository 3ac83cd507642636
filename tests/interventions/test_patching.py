"""`patch` against one plain run per row, and the cases that users of such tools have met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import interp.interventions.replay as replay
from interp.hooks import edits
from interp.hooks.edits import Edit
from interp.hooks.prompts import Prompts
from interp.hooks.sites import sites_of
from interp.interventions.patching import patch
from interp.interventions.plan import Options, make_plan
from interp.interventions.reading import Reader
from interp.metrics import get_metric
from interp.registry import UserError
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.interventions.tables import by_hand, m_task, pairs, unequal
from tests.tiny import FURTHER, tiny

EXACT = 1e-5
UNITS = ("head", "kv_head", "neuron")


def _patch_by_key(donor: Any) -> Any:
    def make(key: Mapping[str, Any]) -> list[Edit]:
        parts = {k: key[k] for k in UNITS if k in key}
        place = key.get("pos", key.get("pos_label"))
        if place is not None:
            parts["pos"] = place
        address = key["site"] if key["layer"] is None else f"L{key['layer']}.{key['site']}"
        return [edits.patch(address, donor, **parts)]

    return make


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "gemma2", "native:post", "native:bidirectional"])
@pytest.mark.parametrize(
    ("sites", "by"),
    [("z", "head"), ("resid_pre", "position"), (["q", "k", "v"], "head"), ("mlp_out", "layer"), ("z", "head+position")],
)
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_every_row_equals_a_plain_run(kind: str, sites: str | list[str], by: str, direction: Any) -> None:
    model, task = tiny(kind), pairs(3, 5, first=2)
    effects = patch(model, task, sites, by, direction=direction)
    base, other = ("corrupt", "clean") if direction == "denoise" else ("clean", "corrupt")
    donor = model.run(task.prompts(other), capture=sites)  # type: ignore[arg-type]
    want = by_hand(model, task, base, effects.keys, _patch_by_key(donor))  # type: ignore[arg-type]
    assert float((effects.values - want).abs().max()) <= EXACT * float(want.std())
    assert torch.allclose(effects.baseline, effects.corrupt if direction == "denoise" else effects.clean, atol=1e-5)
    table = effects.table()
    assert len(table) == len(effects.keys) == len(want)
    moved = (want - effects.baseline).abs().amax(1) > 1e-4
    assert bool(moved.any()), "nothing moved: the comparison says nothing"


def test_whole_cut_patched_gives_the_clean_metric_and_full_normalized_share() -> None:
    model, task = tiny("gpt2"), m_task(5)
    effects = patch(model, task, "L0.resid_pre", "layer")
    assert torch.allclose(effects.values[0], effects.clean, atol=1e-5)
    row = effects.table().iloc[0]
    assert row["normalized"] == pytest.approx(1.0, abs=1e-4)
    assert row["effect"] == pytest.approx(float((effects.clean - effects.corrupt).mean()), abs=1e-5)


def test_grouped_queries_sweep_kv_heads_and_both_make_the_whole_of_k() -> None:
    """Fault 1: tables are layers × kv heads, kv head 2 raises, both together equal all of k."""
    model, task = tiny("llama"), m_task(2)
    effects = patch(model, task, ["k", "v"], "head")
    assert [(k["site"], k["layer"], k["kv_head"]) for k in effects.keys] == [
        (s, layer, h) for s in ("k", "v") for layer in (0, 1) for h in (0, 1)
    ]
    assert effects.table()["head"].isna().all()
    donor = model.run(task.clean, capture=["k"])
    with pytest.raises(UserError, match="kv_head 2 of k lies outside the model's 2 kv_heads"):
        model.run(task.corrupt, edits=[edits.patch("L1.k", donor, kv_head=2)])
    both = model.run(task.corrupt, edits=[edits.patch("L1.k", donor, kv_head=[0, 1])]).logits
    whole = model.run(task.corrupt, edits=[edits.patch("L1.k", donor)]).logits
    assert torch.equal(both, whole)
    single = model.run(task.corrupt, edits=[edits.patch("L1.k", donor, kv_head=0)]).logits
    assert not torch.equal(single, whole)
    with pytest.raises(UserError, match="no head axis; select it by kv_head="):
        model.run(task.corrupt, edits=[edits.patch("L1.k", donor, head=0)])


@pytest.mark.parametrize("pad_side", ["left", "right"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "gemma2", *FURTHER])
@pytest.mark.parametrize(("sites", "by"), [("z", "head"), ("resid_post", "position"), ("pattern", "head")])
def test_batched_lengths_give_the_rows_of_one_by_one(kind: str, pad_side: str, sites: str, by: str) -> None:
    """Fault 5: lengths 4 and 6 batched against one by one."""
    model = tiny(kind)
    rows = [([1, 2, 3, 4], [7, 8, 9, 10]), ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])]

    def task(chosen: list[tuple[list[int], list[int]]]) -> Task:
        clean, corrupt = (Prompts.of([pair[i] for pair in chosen], pad_side=pad_side) for i in (0, 1))
        n = len(chosen)
        return Task.of("rows", clean, corrupt, Answers.of([[[3]]] * n), Answers.of([[[7]]] * n))

    together = patch(model, task(rows), sites, by)
    at = {tuple(sorted(k.items())): i for i, k in enumerate(together.keys)}
    for i, one in enumerate(rows):
        alone = patch(model, task([one]), sites, by)
        mine = together.values[[at[tuple(sorted(k.items()))] for k in alone.keys], i]
        # one prompt has no spread; where its sides agree too, what is left is the rounding of logits of their size
        own = float((alone.clean - alone.corrupt).abs().max()), float(alone.values.abs().max()) / 8
        scale = max(*own, float(alone.values.std()))
        assert float((mine - alone.values[:, 0]).abs().max()) <= EXACT * scale
    if by == "position":  # the short prompt has no position 5
        last = [i for i, k in enumerate(together.keys) if k["pos"] == 5]
        assert bool(together.values[last, 0].isnan().all())
        assert bool(together.values[last, 1].isfinite().all())


def test_pairs_of_unequal_length_raise_by_position_before_any_forward() -> None:
    """Fault 19: the pair is named, and nothing has run."""
    model, calls = tiny("gpt2"), []
    handle = model.net.layers[0].out.register_forward_hook(lambda *_: calls.append(1))
    try:
        for by in ("position", "head", "layer"):
            with pytest.raises(UserError, match="pair 0 of task 'unequal' has 6 clean and 4 corrupt tokens"):
                patch(model, unequal(), "z" if by == "head" else "resid_pre", by)
    finally:
        handle.remove()
    assert calls == []


@pytest.mark.parametrize("pad_side", ["left", "right"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "native:bidirectional"])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_labels_join_pairs_of_unequal_length(kind: str, pad_side: str, direction: Any) -> None:
    """Fault 19: by label it works; each prompt alone, unpadded, with the donor's token written in by hand."""
    model, task = tiny(kind), unequal(pad_side)
    effects = patch(model, task, "resid_mid", "label", direction=direction, labels=["S", "END"])
    base, other = (task.corrupt, task.clean) if direction == "denoise" else (task.clean, task.corrupt)
    logit_diff = get_metric("logit_diff")
    for row, key in enumerate(effects.keys):
        for i in range(task.n):
            mine, theirs = (p.tokens[i][p.mask[i]][None] for p in (base, other))
            here, there = (int(p.labels[key["pos_label"]][i]) for p in (base, other))
            donor = model.run(theirs, capture=["resid_mid"])[f"L{key['layer']}.resid_mid"][0, there]
            value = torch.zeros(1, mine.shape[1], len(donor))
            value[0, here] = donor
            run = model.run(mine, edits=[edits.hold(f"L{key['layer']}.resid_mid", value, pos=here)])
            single = Task.of(
                "one", Prompts.of(mine), Prompts.of(mine), Answers.of([[[i + 3]]]), Answers.of([[[i + 22]]])
            )
            want = float(logit_diff(run.logits, single)[0])
            assert float(effects.values[row, i]) == pytest.approx(want, abs=1e-4)


def test_a_label_on_one_side_only_is_an_error_and_on_neither_a_gap() -> None:
    model, task = tiny("gpt2"), unequal()
    effects = patch(model, task, "L0.resid_pre", "label", labels=["X"])
    assert effects.values[0].isnan().tolist() == [True, False, True, True, True]
    assert effects.table()["n"].tolist() == [1]
    lost = {**task.clean.labels, "X": torch.full((5,), -1)}
    broken = replace(task, clean=replace(task.clean, labels=lost))
    with pytest.raises(UserError, match="prompt 1 carries label 'X', its partner does not"):
        patch(model, broken, "L0.resid_pre", "label", labels=["X"])


def test_a_sweep_by_label_goes_over_the_prompts_own_labels() -> None:
    labels = {"S": torch.tensor([1, 2, 0]), "END": torch.tensor([4, 4, 4])}
    effects = patch(tiny("gpt2"), pairs(3, 5, labels=labels), "L0.resid_pre", "label")
    assert [k["pos_label"] for k in effects.keys] == ["S", "END"]


def test_self_patch_at_every_site_leaves_every_bit() -> None:
    """Fault 25, through the planner: nothing to run; and run anyway, bit for bit."""
    for kind in ("gpt2", "llama", "neox", "gemma2"):
        model, task = tiny(kind), m_task(2)
        sites = [s.name for s in sites_of(model.geometry)]
        base = model.run(task.clean, capture=sites)
        single = [
            [edits.patch(s if not site.in_block else f"L{layer}.{s}", base)]
            for s in sites
            for site in [model.sites()[s]]
            for layer in (range(model.geometry.layers) if site.in_block else [0])
        ]
        for e in single:
            assert torch.equal(model.run(task.clean, edits=e).logits, base.logits), str(e[0])
        reader = Reader(model.net, task, get_metric("logit_diff"), "clean")
        plan = make_plan(model, single, reader)
        unedited = replay.baseline(plan)
        assert len(plan.idle) >= len(single) - 4
        assert torch.equal(plan.run(), unedited.expand(len(single), -1)) or torch.allclose(
            plan.run(), unedited.expand(len(single), -1), atol=1e-6
        )


def test_normalized_is_null_with_a_reason_where_clean_and_corrupt_coincide() -> None:
    """Fault 29."""
    task = m_task(5)
    same = Task.of("same", task.clean, task.clean, task.right, task.wrong)
    table = patch(tiny("gpt2"), same, "z", "head").table()
    assert table["normalized"].isna().all()
    assert table["normalized_low"].isna().all()
    assert table["reason"].notna().all()
    assert (table["effect"] == 0).all()


def test_four_of_thirty_two_pairs_are_exactly_four() -> None:
    """Fault 34."""
    model, task = tiny("gpt2"), pairs(32)
    four, all_ = patch(model, task.subset(4), "z", "head"), patch(model, task, "z", "head")
    assert four.values.shape[1] == 4
    assert four.table()["n"].tolist() == [4] * 8
    assert torch.allclose(four.values, all_.values[:, :4], atol=1e-5)
    assert not torch.allclose(four.mean, all_.mean, atol=1e-3)


def test_windows_patch_layers_jointly_beside_the_sum_of_singles() -> None:
    model, task = tiny("gpt2", n_layer=3), pairs(5)
    effects = patch(model, task, "mlp_out", "layer", window=2)
    rows = {(k.get("algorithm", "single"), k["layer"]): v for k, v in zip(effects.keys, effects.values, strict=True)}
    donor = model.run(task.clean, capture=["mlp_out"])
    for start in (0, 1):
        both = [edits.patch(f"L{layer}.mlp_out", donor) for layer in (start, start + 1)]
        want = by_hand(model, task, "corrupt", ({},), lambda _, both=both: both)[0]  # type: ignore[misc]
        assert torch.allclose(rows["window of 2: joint", start], want, atol=1e-5)
        singles = sum((rows["single", layer] - effects.baseline for layer in (start, start + 1)), effects.baseline)
        assert torch.allclose(rows["window of 2: sum of singles", start], singles, atol=1e-5)
        assert not torch.allclose(singles, want, atol=1e-3)
    assert len(rows) == 3 + 2 + 2
    assert set(effects.table()["algorithm"]) == {"single", "window of 2: joint", "window of 2: sum of singles"}
    with pytest.raises(UserError, match="window must be 1 to 3 layers, got 4"):
        patch(model, task, "mlp_out", "layer", window=4)


def test_several_sites_together_are_one_intervention() -> None:
    """{q, k, v} patched whole gives the clean attn_out."""
    model, task = tiny("gpt2"), pairs(4)
    together = patch(model, task, ["q", "k", "v"], "layer", together=True)
    assert [k["site"] for k in together.keys] == ["q+k+v"] * 2
    whole = patch(model, task, "attn_out", "layer")
    assert torch.allclose(together.values, whole.values, atol=1e-5)


def test_plain_exact_and_packed_ways_agree() -> None:
    model, task = tiny("llama"), pairs(4, first=3)
    ways = [Options(), Options(plain=True), Options(pack=1), Options(prefix=False), Options(exact=True)]
    values = [patch(model, task, "z", "head", options=o).values for o in ways]
    for other in values[1:]:
        assert torch.allclose(values[0], other, atol=1e-5)
    assert torch.equal(values[1], patch(model, task, "z", "head", options=Options(prefix=False, pack=1)).values)


def test_exact_raises_where_replay_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = tiny("gpt2"), pairs(4, first=2)
    monkeypatch.setattr(Reader, "values_of", lambda self, x: x[:, :, 0, 0] * 3)
    with pytest.raises(UserError, match="differs from the plain run by"):
        patch(model, task, "z", "head", options=Options(exact=True))


def test_out_of_memory_halves_the_pack_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = tiny("gpt2"), pairs(4)
    want = patch(model, task, "z", "head").values
    real, tried = replay.block, []

    def short_of_memory(net: Any, layer: int, resid: torch.Tensor, *rest: Any, **more: Any) -> Any:
        tried.append(len(resid))
        if len(resid) > 2 * task.n:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        return real(net, layer, resid, *rest, **more)

    monkeypatch.setattr(replay, "block", short_of_memory)
    got = patch(model, task, "z", "head")
    assert torch.allclose(got.values, want, atol=1e-5)
    assert sum(t > 2 * task.n for t in tried) <= 3, "a smaller pack must be remembered"
    assert max(tried[-2:]) <= 2 * task.n
    monkeypatch.setattr(replay, "block", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("CUDA out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        patch(model, task, "z", "head")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sites": "zz"}, "unknown site 'zz'"),
        ({"by": "heads"}, "unknown axis to sweep by 'heads'; did you mean head"),
        ({"by": "position+label"}, "sweep by position or by label, not both"),
        ({"sites": "resid_pre"}, "site resid_pre has no heads to sweep by"),
        ({"sites": "z", "by": "neuron"}, "site z has no neurons to sweep by"),
        ({"by": "label"}, "a sweep by label needs prompts that carry labels"),
        ({"metric": "logit_dif"}, "unknown metric 'logit_dif'; did you mean logit_diff"),
        ({"window": 0}, "window must be 1 to 2 layers, got 0"),
        ({"sites": []}, "nothing to sweep over"),
    ],
)
def test_bad_input_is_one_clear_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as e:
        patch(tiny("gpt2"), m_task(2), **{"sites": "z", "by": "head", **given})
    assert message in str(e.value)
    assert "\n" not in str(e.value)
