"""The loop: it learns, logs, clips, resumes to the bit, runs in mixed precision, and refuses bad input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_recipe
import torch
from safetensors.torch import load_file

from interp.registry import UserError
from interp.training import checkpoint
from interp.training.loop import summed_cross_entropy, train
from interp.training.recipes import Batch, Open


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.checkpoints(folder / "checkpoints")[-1] / "model.safetensors")


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def steps_only(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def logits_by_hand() -> torch.Tensor:
    quarter = torch.tensor([0.25, 0.25, 0.25, 0.25]).log()
    half = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    return torch.stack([quarter, half, quarter])[None]


def test_loss_by_hand() -> None:
    """Two targets of probability ¼ (weight 3) and ½ (weight 1); the first token is never a target."""
    batch = Batch(torch.tensor([[2, 1, 0]]), torch.tensor([[9.0, 3.0, 1.0]]))
    total, weight = summed_cross_entropy(logits_by_hand(), batch)
    assert float(total) == pytest.approx(3 * math.log(4) + math.log(2))
    assert float(weight) == 4


def test_open_target_by_hand() -> None:
    """The last token could be 0 or 2, three to one: ¾·log 2 + ¼·log 8 = 1.5 log 2, weight 2."""
    choice = Open(torch.tensor([0]), torch.tensor([2]), torch.tensor([[0.75, 0, 0.25, 0]]), torch.tensor([2.0]))
    batch = Batch(torch.tensor([[2, 1, 0]]), torch.tensor([[0.0, 1.0, 0.0]]), choice)
    total, weight = summed_cross_entropy(logits_by_hand(), batch)
    assert float(total) == pytest.approx(math.log(4) + 2 * 1.5 * math.log(2))
    assert float(weight) == 3


def test_learns_and_logs(tmp_path: Path) -> None:
    train(tiny_recipe.recipe(steps=60, every=30), out=tmp_path)
    rows = log(tmp_path)
    assert [row["step"] for row in rows] == list(range(60))
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert set(rows[0]) == {"step", "loss", "lr", "grad_norm", "grad_norm_clipped", "loss_scale", "seconds"}
    assert all(row["grad_norm_clipped"] <= min(1.0, row["grad_norm"]) * 1.0001 for row in rows)
    assert any(row["grad_norm"] > 1 for row in rows)
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["figures"][0]["value"] == 1.0
    assert card["origin"]["steps"] == 60


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_resume_is_bit_identical(tmp_path: Path, dtype: str) -> None:
    """Stopped after 6 of 12 steps with dropout on, then resumed: parameters, moments and log all equal."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(tiny_recipe.recipe(), out=whole, dtype=dtype)
    train(tiny_recipe.recipe(), out=halves, dtype=dtype, stop_after=6)
    assert not (halves / "card.json").exists()
    # lines written after the last checkpoint, as a killed run leaves them
    with (halves / "log.jsonl").open("a") as torn:
        torn.write('{"step": 6, "loss": 0.0}\n{"step": 7, "lo')
    torch.randn(5)
    train(tiny_recipe.recipe(), out=halves, dtype=dtype)
    one, two = (checkpoint.checkpoints(f / "checkpoints")[-1] for f in (whole, halves))
    for file in ("model.safetensors", "optimizer.safetensors", "rng.safetensors"):
        a, b = load_file(one / file), load_file(two / file)
        assert a.keys() == b.keys()
        assert a
        assert all(torch.equal(a[k], b[k]) for k in a), file
    assert steps_only(log(whole)) == steps_only(log(halves))


def test_seed_decides(tmp_path: Path) -> None:
    runs = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny_recipe.recipe(), out=tmp_path / name, seed=seed)
        runs[name] = weights(tmp_path / name)
    assert all(torch.equal(runs["a"][k], runs["b"][k]) for k in runs["a"])
    assert not all(torch.equal(runs["a"][k], runs["c"][k]) for k in runs["a"])


def test_callers_random_state_is_untouched(tmp_path: Path) -> None:
    torch.randn(3)
    before = torch.get_rng_state()
    train(tiny_recipe.recipe(), out=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision(tmp_path: Path, dtype: str) -> None:
    """Learns as well, parameters stay fp32, and the numbers really are not those of fp32."""
    train(tiny_recipe.recipe(steps=60, every=60), out=tmp_path / "mixed", dtype=dtype)
    train(tiny_recipe.recipe(steps=60, every=60), out=tmp_path / "plain")
    mixed, plain = log(tmp_path / "mixed"), log(tmp_path / "plain")
    assert mixed[-1]["loss"] < 0.5 * mixed[0]["loss"]
    assert mixed[0]["loss"] != plain[0]["loss"]
    assert mixed[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.05)
    assert all(tensor.dtype == torch.float32 for tensor in weights(tmp_path / "mixed").values())
    scales = {row["loss_scale"] for row in mixed}
    assert scales == {1.0} if dtype == "bfloat16" else min(scales) > 1.0
    state = checkpoint.read_state(checkpoint.checkpoints(tmp_path / "mixed" / "checkpoints")[-1])
    assert (state.scaler is not None) == (dtype == "float16")


def test_other_run_in_the_folder(tmp_path: Path) -> None:
    train(tiny_recipe.recipe(), out=tmp_path, stop_after=4)
    with pytest.raises(UserError, match="seed 0 there, 1 asked"):
        train(tiny_recipe.recipe(), out=tmp_path, seed=1)
    train(tiny_recipe.recipe(), out=tmp_path, seed=1, resume=False)
    assert len(log(tmp_path)) == 12


def test_old_checkpoints_go(tmp_path: Path) -> None:
    train(tiny_recipe.recipe(steps=10, every=2), out=tmp_path)
    names = [path.name for path in sorted((tmp_path / "checkpoints").iterdir())]
    assert names == ["step-000008", "step-000010"]


def test_no_pickle_on_disk(tmp_path: Path) -> None:
    train(tiny_recipe.recipe(), out=tmp_path)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".json", ".jsonl", ".safetensors", ".md"}


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown recipe 'toy-oi'; did you mean toy-ioi"):
        train("toy-oi", out=tmp_path / "x")
    with pytest.raises(UserError, match="unknown dtype 'int8'"):
        train(tiny_recipe.recipe(), out=tmp_path / "x", dtype="int8")
    with pytest.raises(UserError, match="unknown device"):
        train(tiny_recipe.recipe(), out=tmp_path / "x", device="gpu")
    with pytest.raises(UserError, match="steps"):
        train(tiny_recipe.recipe(), out=tmp_path / "x", steps=0)
    assert not (tmp_path / "x").exists()


def test_diverging_run_stops(tmp_path: Path) -> None:
    endless = replace(tiny_recipe.recipe(), batches=lambda seed, step: [Batch(ROW, torch.full((1, 3), math.inf))])
    with pytest.raises(UserError, match="diverged at step 0"):
        train(endless, out=tmp_path)


ROW = torch.tensor([[1, 2, 3]])
