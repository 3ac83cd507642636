"""Typed frames: columns, kinds, nulls, keys; rows from numbers per prompt."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from interp import stats
from interp.registry import UserError
from interp.results.frames import adjusted, effect_rows, example_rows, score_rows, typed
from interp.results.schemas import ATTRIBUTION, AUDIT, CURVE, EFFECT, FAULTS, TIMING, Column, Schema

COLUMNS = """
experiment model task split metric method algorithm direction ablation corruption granularity components positions
side site layer head kv_head expert pos pos_label neuron src dst src_label dst_label
value baseline clean corrupt effect stderr ci_low ci_high p_value p_adjusted normalized normalized_low normalized_high
n unit seed reason
"""
LISTED = COLUMNS.split()


def how(n: int) -> stats.Resampling:
    return stats.resampling(n, np.random.default_rng(0))


def test_effect_and_attribution_schemas() -> None:
    assert EFFECT.names == LISTED
    assert [c for c in ATTRIBUTION.names if c not in LISTED] == ["score"]
    assert [c for c in LISTED if c not in ATTRIBUTION.names] == ["value", "baseline", "effect"]
    assert ATTRIBUTION.key == EFFECT.key


@pytest.mark.parametrize("schema", [EFFECT, ATTRIBUTION, CURVE, AUDIT, TIMING, FAULTS])
def test_every_schema(schema: Schema) -> None:
    assert len({*schema.names}) == len(schema.names)
    assert schema.main in schema.kinds("number")
    frame = typed([{}], schema)
    assert frame.isna().all(axis=None)
    wanted = {"name": "string", "index": "Int64", "number": "float64", "flag": "boolean"}
    assert {c.name: str(frame[c.name].dtype) for c in schema.columns} == {
        c.name: wanted[c.kind] for c in schema.columns
    }


def test_sorted_by_key_nulls_first_and_indices_by_size() -> None:
    frame = typed([{"layer": 10}, {"layer": 2, "head": 1}, {"layer": 2}, {"layer": None, "site": "a"}], EFFECT)
    assert frame[["site", "layer", "head"]].to_csv(index=False, header=False) == ",2,\n,2,1\n,10,\na,,\n"


def test_rows_in_any_order_give_one_frame() -> None:
    rows = [{"layer": i, "head": h, "effect": i + h / 10} for i in range(3) for h in range(3)]
    pd.testing.assert_frame_equal(typed(rows, EFFECT), typed(rows[::-1], EFFECT))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"effct": 1.0}], "unknown column of schema effect: 'effct'; did you mean effect"),
        ([{"layer": 1}, {"layer": 1}], r"two rows of the effect table have the same key: \{'layer': 1\}"),
        ([{"effect": 1.0}, {"effect": 2.0}], "same key"),
        ([{"layer": 1.5}], "'layer' of schema effect takes whole numbers"),
        ([{"site": 3}], "'site' of schema effect takes text: 3 is no text"),
        ([{"effect": "high"}], "'effect' of schema effect takes numbers"),
    ],
)
def test_what_does_not_fit(rows: list[dict[str, object]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        typed(rows, EFFECT)


def test_infinite_becomes_null_with_the_reason() -> None:
    frame = typed([{"layer": 0, "effect": np.inf, "reason": "x"}, {"layer": 1, "effect": 1.0}], EFFECT)
    assert frame["effect"].isna().tolist() == [True, False]
    assert frame["reason"].iloc[0] == "x; effect was infinite"
    assert pd.isna(frame["reason"].iloc[1])


def test_effect_rows_by_hand() -> None:
    base = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    values = np.stack([base, base + 2, base * 2])
    keys = [{"layer": 0, "head": h} for h in (2, 0, 1)]
    frame = effect_rows(keys, values, base, how(5), clean=base + 4, corrupt=base, unit="logits", seed=3)
    assert frame["head"].tolist() == [0, 1, 2]
    assert frame["effect"].tolist() == [2.0, 3.0, 0.0]
    assert frame["value"].tolist() == [5.0, 6.0, 3.0]
    assert frame["baseline"].tolist() == [3.0] * 3
    assert (frame["clean"].iloc[0], frame["corrupt"].iloc[0]) == (7.0, 3.0)
    assert frame["normalized"].tolist() == [0.5, 0.75, 0.0]
    assert frame["normalized_low"].iloc[0] == 0.5
    # head 0 has no spread (p = 2^-4), head 1 t = 3 / sqrt(.5), head 2 is 0 everywhere
    assert frame["p_value"].tolist() == pytest.approx([0.0625, 0.013235, 1.0], abs=1e-6)
    assert frame["p_adjusted"].tolist() == pytest.approx([0.09375, 0.039705, 1.0], abs=1e-5)
    assert frame["n"].tolist() == [5] * 3
    assert frame["seed"].tolist() == [3] * 3
    assert frame["kv_head"].isna().all()


def test_coinciding_metrics_give_null_and_say_so() -> None:
    x = np.arange(8.0)
    frame = effect_rows([{"layer": 0}], x[None] + 1, x, how(8), clean=x, corrupt=x)
    assert frame[["normalized", "normalized_low", "normalized_high"]].isna().all(axis=None)
    assert frame["reason"].tolist() == ["normalized: clean and corrupt coincide"]
    assert frame["effect"].tolist() == [1.0]


def test_four_prompts_give_no_interval() -> None:
    x = np.arange(4.0)
    frame = effect_rows([{"layer": 0}], x[None] * 2, x, how(4), clean=x + 1, corrupt=x)
    assert frame["n"].tolist() == [4]
    assert frame[["ci_low", "ci_high", "p_value", "normalized_low"]].isna().all(axis=None)
    assert frame["reason"].tolist() == ["n = 4 < 5"]
    assert frame["normalized"].tolist() == [1.5]


def test_score_rows() -> None:
    clean, corrupt = np.full(6, 5.0), np.full(6, 1.0)
    frame = score_rows([{"head": 0}, {"head": 1}], np.array([[1.0] * 6, [-2.0] * 6]), how(6), clean=clean,
                       corrupt=corrupt)  # fmt: skip
    assert frame["score"].tolist() == [1.0, -2.0]
    assert frame["normalized"].tolist() == [0.25, -0.5]
    assert "effect" not in frame


def test_computed_columns_cannot_be_given() -> None:
    with pytest.raises(ValueError, match="'effect' is computed here"):
        effect_rows([{"effect": 1.0}], np.zeros((1, 5)), np.zeros(5), how(5))


def test_adjusted_over_a_table_made_of_parts() -> None:
    g = np.random.default_rng(0)
    x, base = g.normal(size=(6, 9)), np.zeros(9)
    keys = [{"layer": i} for i in range(6)]
    whole = effect_rows(keys, x, base, how(9))
    parts = [effect_rows(keys[i : i + 2], x[i : i + 2], base, how(9)) for i in (0, 2, 4)]
    together = adjusted(typed(pd.concat(parts), EFFECT))
    pd.testing.assert_frame_equal(whole, together)
    assert not np.array_equal(pd.concat(parts)["p_adjusted"], whole["p_adjusted"])


def test_example_rows() -> None:
    frame = example_rows([{"layer": 1}, {"layer": 0}], np.array([[1.0, np.nan], [3.0, 4.0]]), task="t")
    assert frame.to_csv(index=False) == "task,layer,prompt,example_value\nt,0,0,3.0\nt,0,1,4.0\nt,1,0,1.0\n"


def test_an_experiments_own_schema() -> None:
    own = EFFECT.plus("mine", Column("role", "name", "role", key=True), Column("share", "number", "share"))
    assert own.key == [*EFFECT.key, "role"]
    assert typed([{"role": "a", "share": 1}, {"role": "b"}], own)["share"].tolist()[0] == 1.0
    with pytest.raises(UserError, match="has a column 'site' already"):
        EFFECT.plus("bad", Column("site", "name", ""))
