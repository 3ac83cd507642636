"""The experiment `logit_lens`: rows, units, presets and bad settings, through run_cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.logit_lens import EXPERIMENT
from interp.attribution.lens import logit_lens
from interp.cells import Cell, run_cell
from interp.registry import UserError
from tests.experiments.test_direct_logit_attribution import loaders, task_of
from tests.tiny import tiny


def cell(out: Path, preset: str | None = None, **settings: Any) -> Cell:
    config = EXPERIMENT.make_config({"model": "tiny", "task": "random", "n": 8, **settings}, preset)
    return run_cell(EXPERIMENT, config, out=out, loaders=loaders())


def test_the_rows_are_the_function_s(tmp_path: Path) -> None:
    frame = cell(tmp_path, "smoke").table()
    want = logit_lens(tiny("gpt2"), task_of(8))
    assert len(frame) == 9
    for row in frame.to_dict("records"):
        mean = want.of(row["metric"])[int(row["x"])].mean().item()
        assert row["value"] == pytest.approx(mean, abs=1e-5)
        assert row["ci_low"] <= row["value"] <= row["ci_high"]
        assert (row["n"], row["split"], row["x_name"]) == (8, "train", "blocks")
    assert frame.groupby("metric")["unit"].first().to_dict() == {
        "logit_diff": "logits", "prob": "probability", "rank": "rank"
    }  # fmt: skip


def test_every_position(tmp_path: Path) -> None:
    frame = cell(tmp_path, "positions", also=[]).table()
    assert frame.groupby("pos")["n"].first().to_dict() == {0: 8, 1: 8, 2: 8, 3: 8, 4: 8, 5: 4}
    assert len(frame) == 3 * 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"metric": "rnak"}, "rank"), ({"also": ["cross_entropy"]}, "every position"), ({"positions": ["C"]}, "C")],
)
def test_bad_settings_write_nothing(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cell(tmp_path, **settings)
    assert not list(tmp_path.iterdir())
