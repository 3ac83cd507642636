"""Self-repair: the split of an effect adds up, is the direct effect alone where nothing follows, and bad input."""

from __future__ import annotations

import pytest
import torch

from interp.attribution.direct import direct_logit_attribution
from interp.attribution.self_repair import self_repair
from interp.hooks.edits import mean, zero
from interp.metrics import get_metric
from interp.registry import UserError
from tests.attribution.small_tasks import small_task
from tests.tiny import tiny

SUMMING = ["gpt2", "llama", "neox", "neox_sequential", "gemma2", "native:pre", "native:none", "native:attn_only"]


@pytest.mark.parametrize("kind", SUMMING)
def test_the_paths_add_up_to_the_total(kind: str) -> None:
    model, task = tiny(kind), small_task()
    got = self_repair(model, task, [(0, 1), [(0, 2), (1, 0)], (-1, -1)])
    assert got.labels == ["L0.H1", "L0.H2+L1.H0", "L1.H3"]
    torch.testing.assert_close(got.total, got.direct + got.others.sum(2) + got.norms, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got.repair, got.total - got.direct)

    def read(edits: list[object]) -> torch.Tensor:
        run = model.run(task.clean, edits=edits, capture=["logits_pre_cap"] if kind == "gemma2" else [])  # type: ignore[arg-type]
        return get_metric("logit_diff")(run["logits_pre_cap"] if kind == "gemma2" else run.logits, task)

    both = read([zero("L0.z", head=2), zero("L1.z", head=0)])
    torch.testing.assert_close(got.total[:, 1], both - read([]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got.base, read([]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_zeroing_a_head_takes_its_term_away_and_leaves_earlier_parts_alone(kind: str) -> None:
    model, task = tiny(kind), small_task()
    got = self_repair(model, task)
    dla = direct_logit_attribution(model, task)
    assert len(got.sets) == 8
    heads = torch.stack([dla[label] for label in got.labels], 1)
    torch.testing.assert_close(got.direct, -heads, atol=1e-5, rtol=1e-4)
    later = got.labels.index("L1.H2")
    moved = {c.label for c, x in zip(got.components, got.others[:, later].abs().amax(0), strict=True) if x > 1e-6}
    assert moved == {"L1.mlp_out"}  # the only part that reads what the last attention layer writes
    first = {c.label for c, x in zip(got.components, got.others[:, 0].abs().amax(0), strict=True) if x > 1e-6}
    assert {"L0.mlp_out", "L1.H0", "L1.mlp_out"} <= first
    assert not first & {"embed", "pos_embed", "L0.H0", "L0.H1", "L0.attn_bias", "final_norm_bias"}


def test_without_norms_and_later_parts_there_is_no_repair() -> None:
    model, task = tiny("native:attn_only_none"), small_task()
    got = self_repair(model, task, [(1, h) for h in range(4)])
    assert got.repair.abs().max() < 1e-5
    assert got.direct.abs().min() > 1e-4
    early = self_repair(model, task, [(0, 0)])
    assert early.norms.abs().max() < 1e-5
    assert early.others.abs().max() > 1e-3


def test_norm_scales_alone_repair_in_an_attention_only_last_layer() -> None:
    model, task = tiny("native:attn_only"), small_task()
    got = self_repair(model, task, [(1, 0)])
    assert got.others.abs().max() < 1e-6
    torch.testing.assert_close(got.repair, got.norms)
    assert got.norms.abs().max() > 1e-4


def test_another_ablation_and_batches() -> None:
    model, task = tiny("gpt2"), small_task()
    means = model.means(task.corrupt, ["z"])
    got = self_repair(
        model, task, [(0, 3)], ablate=lambda layer, head: mean(f"L{layer}.z", means, head=head)
    )  # fmt: skip
    run = model.run(task.clean, edits=mean("L0.z", means, head=3))
    want = get_metric("logit_diff")(run.logits, task) - get_metric("logit_diff")(model.run(task.clean).logits, task)
    torch.testing.assert_close(got.total[:, 0], want, atol=1e-5, rtol=1e-4)
    whole, single = self_repair(model, task), self_repair(model, task, batch_size=1)
    torch.testing.assert_close(whole.others, single.others, atol=1e-5, rtol=1e-4)


def test_tables() -> None:
    model, task = tiny("gpt2"), small_task()
    got = self_repair(model, task, [(0, 1), [(0, 2), (1, 0)]])
    frame = got.table()
    assert len(frame) == 8
    row = frame[(frame["method"] == "total_effect") & (frame["head"] == 1)].iloc[0]
    assert row["effect"] == pytest.approx(got.total[:, 0].mean().item(), abs=1e-5)
    assert row["value"] - row["baseline"] == pytest.approx(row["effect"], abs=1e-5)
    assert set(frame["components"].dropna()) == {"L0.H2+L1.H0"}
    changes = got.changes(1)
    assert len(changes) == len(got.components) - 2
    assert (changes["src"] == "L0.H2+L1.H0").all()


@pytest.mark.parametrize(
    ("kind", "heads", "message"),
    [
        ("gpt2", [(0, 4)], "no head"),
        ("gpt2", [(2, 0)], "2 layers"),
        ("gpt2", [], "at least one"),
        ("gpt2", [[]], "empty"),
        ("native:post", [(0, 0)], "residual stream itself"),
    ],
)
def test_bad_input(kind: str, heads: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        self_repair(tiny(kind), small_task(), heads)
