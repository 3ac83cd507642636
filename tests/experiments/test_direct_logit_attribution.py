"""The experiment: rows, checks of the sum, intervals, examples, presets and bad settings, through run_cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.direct_logit_attribution import EXPERIMENT
from interp.attribution.direct import direct_logit_attribution
from interp.cells import Cell, Loaders, run_cell
from interp.hooks.prompts import Prompts
from interp.registry import UserError
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.tiny import tiny


def task_of(n: int, seed: int = 0) -> Task:
    """Random prompts with labels A (missing from the first prompt) and B."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 50, 5 + i % 2).tolist() for i in range(n)]
    labels = {"A": torch.tensor([-1] + [1] * (n - 1)), "B": torch.tensor([3] * n)}
    prompts = Prompts.of(rows, labels=labels)
    right, wrong = ([[[int(t)]] for t in rng.integers(low, low + 25, n)] for low in (0, 25))
    return Task.of("random", prompts, prompts, Answers.of(right), Answers.of(wrong), meta={"split": "train"})


def loaders(kind: str = "gpt2") -> Loaders:
    return Loaders(
        load_model=lambda name, **_: tiny(kind), load_task=lambda name, model, n, seed, **_: task_of(n, seed)
    )


def cell(out: Path, kind: str = "gpt2", preset: str | None = None, **settings: Any) -> Cell:
    config = EXPERIMENT.make_config({"model": "tiny", "task": "random", "n": 8, **settings}, preset)
    return run_cell(EXPERIMENT, config, out=out, loaders=loaders(kind))


def component(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[~frame["site"].isin(["total", "logit_diff"])]


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "neox", "llama", "native:pre"])
def test_rows_sum_to_the_logit_difference_and_say_so(tmp_path: Path, kind: str) -> None:
    frame = cell(tmp_path, kind).table()
    total, whole = (frame[frame["site"] == s].iloc[0] for s in ("total", "logit_diff"))
    assert component(frame)["score"].sum() == pytest.approx(total["score"], abs=1e-4)
    assert total["score"] == pytest.approx(whole["score"], abs=1e-4)
    assert (total["ci_low"], total["ci_high"]) == pytest.approx((whole["ci_low"], whole["ci_high"]), abs=1e-3)
    assert (frame["n"] == 8).all()
    assert (frame["unit"] == "logits").all()
    assert (frame["split"] == "train").all()
    assert (component(frame)["ci_low"] <= component(frame)["score"]).all()
    assert frame.loc[frame["site"].isin(["total", "logit_diff"]), "p_adjusted"].isna().all()
    assert component(frame)["p_adjusted"].notna().all()


def test_the_numbers_are_those_of_the_function(tmp_path: Path) -> None:
    made = cell(tmp_path)
    want = direct_logit_attribution(tiny("gpt2"), task_of(8))
    frame = made.table()
    row = frame[(frame["site"] == "head_out") & (frame["layer"] == 1) & (frame["head"] == 2)].iloc[0]
    assert row["score"] == pytest.approx(want["L1.H2"].mean().item(), abs=1e-5)
    assert row["clean"] == pytest.approx(want.capped.mean().item(), abs=1e-5)
    each = made.examples()
    assert each is not None
    mine = each[(each["site"] == "head_out") & (each["layer"] == 1) & (each["head"] == 2)].sort_values("prompt")
    assert mine["example_value"].tolist() == pytest.approx(want["L1.H2"].tolist(), abs=1e-5)


def test_the_smoke_preset_shows_the_largest_neurons(tmp_path: Path) -> None:
    frame = cell(tmp_path, preset="smoke").table()
    neurons = frame[frame["neuron"].notna()]
    assert len(neurons) == 5
    assert (neurons["granularity"] == "neurons").all()
    assert (frame.loc[frame["site"] == "mlp_out", "components"] == "rest").all()
    total = frame.loc[frame["site"] == "total", "score"].item()
    assert component(frame)["score"].sum() == pytest.approx(total, abs=1e-4)


def test_several_positions_and_a_prompt_without_the_label(tmp_path: Path) -> None:
    frame = cell(tmp_path, positions=["answer", "A", 0]).table()
    by_place = frame[frame["site"] == "total"].set_index("positions")
    assert sorted(by_place.index) == ["0", "A", "answer"]
    assert by_place.loc["A", "n"] == 7
    assert by_place.loc["answer", "n"] == 8
    assert np.isnan(by_place.loc["A", "clean"])


@pytest.mark.parametrize(("by_source", "column"), [("position", "pos"), ("label", "pos_label")])
def test_heads_split_by_source(tmp_path: Path, by_source: str, column: str) -> None:
    frame = cell(tmp_path, by_source=by_source).table()
    heads = frame[frame["site"] == "head_out"]
    assert heads[column].notna().all()
    assert heads[column].nunique() == (6 if by_source == "position" else 3)
    prompts_with = heads.groupby(column)["n"].first()
    assert prompts_with.to_dict() == ({0: 8, 1: 8, 2: 8, 3: 8, 4: 8, 5: 4} if by_source == "position" else
                                      {"A": 7, "B": 8, "other": 8})  # fmt: skip
    total, whole = (frame.loc[frame["site"] == s, "score"].item() for s in ("total", "logit_diff"))
    assert total == pytest.approx(whole, abs=1e-4)


def test_the_same_settings_are_one_cell_and_others_another(tmp_path: Path) -> None:
    first, again, other = cell(tmp_path), cell(tmp_path), cell(tmp_path, granularity="components")
    assert again.reused
    assert first.path == again.path != other.path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"granularity": "head"}, "granularity"),
        ({"metric": "kl"}, "metric"),
        ({"top": 0}, "top"),
        ({"positions": []}, "positions"),
        ({"positions": ["A", "A"]}, "twice"),
        ({"positions": ["C"]}, "C"),
        ({"granularity": "components", "by_source": "label"}, "heads' terms"),
    ],
)
def test_bad_settings_are_one_line_and_nothing_is_written(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as e:
        cell(tmp_path, **settings)
    assert "\n" not in str(e.value)
    assert not list(tmp_path.iterdir())
