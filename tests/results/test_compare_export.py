"""Two tables side by side, and tables as text."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from interp.registry import UserError
from interp.results.compare import compare, contrasts
from interp.results.export import export, latex, markdown, ranked, summary
from interp.results.frames import typed
from interp.results.schemas import EFFECT
from interp.results.store import read_parquet


def frame(model: str, effects: dict[int, float], **more: object) -> pd.DataFrame:
    rows = [{"model": model, "layer": k, "effect": v, "ci_low": v - 1, **more} for k, v in effects.items()]
    return typed(rows, EFFECT)


def test_compare_two_models_by_what_both_have() -> None:
    a, b = frame("a", {0: 1.0, 1: 2.0}), frame("b", {1: 2.5, 2: 4.0})
    both = compare(a, b, EFFECT)
    assert both["layer"].tolist() == [0, 1, 2]
    assert both["found"].tolist() == ["a", "both", "b"]
    assert both["difference"].tolist()[1] == 0.5
    assert both["difference"].isna().tolist() == [True, False, True]
    assert both.loc[1, ["effect_a", "effect_b", "ci_low_a", "ci_low_b"]].tolist() == [2.0, 2.5, 1.0, 1.5]
    assert contrasts(a, b, EFFECT) == {"model": ("a", "b")}


def test_a_table_against_itself() -> None:
    a = frame("a", {0: 1.0, 1: 2.0}, site="z")
    both = compare(a, a, EFFECT)
    assert both["difference"].tolist() == [0.0, 0.0]
    assert contrasts(a, a, EFFECT) == {}


def test_null_keys_join() -> None:
    a = typed([{"layer": 0, "head": 1, "effect": 1.0}, {"layer": 0, "effect": 2.0}], EFFECT)
    both = compare(a, a, EFFECT)
    assert both["found"].tolist() == ["both", "both"]


def test_tables_that_cannot_be_joined() -> None:
    a = frame("a", {0: 1.0})
    with pytest.raises(UserError, match="no key column in common"):
        compare(a[["effect"]], a, EFFECT)
    with pytest.raises(UserError, match="second table has no column 'effect'"):
        compare(a, a.drop(columns="effect"), EFFECT)


def test_ranked_by_size() -> None:
    a = frame("a", {0: 1.0, 1: -3.0, 2: float("nan"), 3: 2.0})
    assert ranked(a, EFFECT)["layer"].tolist() == [1, 3, 0, 2]
    assert summary(a, EFFECT, most=2)["layer"].tolist() == [1, 3]


def test_text_formats() -> None:
    a = typed([{"site": "a|b_%", "layer": 1, "effect": 1 / 3}, {"site": "z"}], EFFECT)
    assert markdown(summary(a, EFFECT)) == (
        "| site | layer | effect |\n| --- | --- | --- |\n| a\\|b_% | 1 | 0.33333 |\n| z |  |  |\n"
    )
    assert r"a|b\_\% & 1 & 0.33333 \\" in latex(summary(a, EFFECT))
    assert export(a, EFFECT, "markdown") == markdown(summary(a, EFFECT))
    csv = export(a, EFFECT, "csv")
    assert csv is not None
    assert pd.read_csv(io.StringIO(csv))["effect"].iloc[0] == 1 / 3


def test_parquet_and_files(tmp_path: Path) -> None:
    a = frame("a", {0: 1 / 3})
    assert export(a, EFFECT, "parquet", tmp_path / "t.parquet") is None
    pd.testing.assert_frame_equal(read_parquet(tmp_path / "t.parquet"), a)
    assert export(a, EFFECT, "latex", tmp_path / "t.tex") is None
    assert (tmp_path / "t.tex").read_text().startswith("\\begin{tabular}{")
    with pytest.raises(UserError, match="unknown format 'xlsx'"):
        export(a, EFFECT, "xlsx")
