"""Smoke presets of the weight, head, flow, training and module experiments, and what their tables promise."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from interp.cells import run_cell
from interp.registry import UserError


def cell(name: str, out: Path, preset: str | None = "smoke", **settings: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    done = run_cell(experiment, experiment.make_config(settings, preset), out=out)
    return pd.read_parquet(done.path / "table.parquet"), done.run()


def test_qk_ov_circuits(tmp_path: Path) -> None:
    frame, _ = cell("qk_ov_circuits", tmp_path)
    assert {"copying", "copy_score", "k_composition", "k_matching", "virtual_copying", "top_ov"} <= set(frame["metric"])
    pairs = frame[frame["metric"] == "k_composition"]
    assert len(pairs) == 3 * 4 * 4
    assert pairs["baseline"].between(0, 1).all()
    assert (pairs["null_low"] <= pairs["null_high"]).all()
    assert frame[(frame["metric"] == "copy_score") & (frame["layer"] == 0)]["value"].isna().all()
    with pytest.raises(UserError, match=r"\(9, 0\) is not in"):
        cell("qk_ov_circuits", tmp_path, heads=[[9, 0]])


def test_head_census(tmp_path: Path) -> None:
    frame, _ = cell("head_census", tmp_path)
    scores = frame[frame["metric"] == "induction"]
    assert set(scores["components"]) == {"with BOS", "without BOS"}
    assert scores["score"].between(0, 1).all()
    assert sorted(scores[scores["components"] == "with BOS"]["rank"]) == list(range(12))
    assert frame[frame["layer"].notna()]["class"].notna().all()
    assert (frame[frame["metric"] == "direct_effect"]["n"] == 8).all()


def test_path_expansion_and_training_dynamics(tmp_path: Path) -> None:
    frame, _ = cell("path_expansion", tmp_path)
    losses = frame[frame["metric"] == "loss"].sort_values("x")["value"].tolist()
    marginal = frame[frame["metric"] == "marginal"]["value"].sum()
    assert losses[0] == pytest.approx(math.log(1024), abs=1e-4)
    assert losses[0] + marginal == pytest.approx(losses[-1], abs=1e-4)
    assert len(frame[frame["metric"] == "left_out"]) == 82
    curve, record = cell("training_dynamics", tmp_path)
    scores = curve[curve["metric"] == "best induction"].sort_values("x")["value"]
    assert scores.iloc[0] < 0.1 < 0.4 < scores.iloc[-1]
    assert "final best induction head" in str(record)
    with pytest.raises(UserError, match="keeps no checkpoints"):
        cell("training_dynamics", tmp_path, model="toy-ioi")
    with pytest.raises(UserError, match=r"unknown weight file of attn-2l 'step-1.safetensors'"):
        cell("training_dynamics", tmp_path, also={"step-1.safetensors": 1})


def test_gradient_flow(tmp_path: Path) -> None:
    frame, _ = cell("gradient_flow", tmp_path)
    shares = frame[frame["metric"] == "share"].groupby(["series", "positions", "layer"])["value"].sum()
    assert shares.to_numpy() == pytest.approx(1.0, abs=1e-4)
    no_skip = frame[(frame["series"] == "no skip") & (frame["components"] == "skip")]
    assert (no_skip["value"] == 0).all()


def test_numerics(tmp_path: Path) -> None:
    frame, _ = cell("numerics", tmp_path)
    assert set(frame["metric"]) == {"site", "grad_norm"}
    assert {"forward", "backward"} <= set(frame["direction"].dropna())
    assert (frame[frame["metric"] == "site"][["nan", "inf"]] == 0).all().all()


def test_module_debugging(tmp_path: Path) -> None:
    frame, record = cell("module_debugging", tmp_path)
    assert {"plain", "even", "zero a1.h3", "window 2", "alibi × 1"} <= set(frame["components"])
    assert record["notes"]["as a share of the largest output"] < 1e-6
    assert frame[frame["components"] == "plain"]["effect"].tolist() == [0.0]
    with pytest.raises(UserError, match="heads=3 do not divide the width 32"):
        cell("module_debugging", tmp_path, heads=3)
