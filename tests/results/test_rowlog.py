"""The row log: unique rows, torn lines, floats to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from interp.results.rowlog import RowLog, canonical

KEYS = [{"layer": i // 4, "head": i % 4} for i in range(8)]


def row(key: dict[str, int]) -> dict[str, object]:
    return {"values": np.random.default_rng(key["layer"] * 4 + key["head"]).normal(size=3)}


def fill(path: Path, stop: int | None = None) -> RowLog:
    log = RowLog(path)
    for i, key in enumerate(log.missing(KEYS)):
        if i == stop:
            break
        log.add(key, row(key))
    log.close()
    return log


def test_killed_after_five_rows_with_a_torn_line_and_resumed_twice(tmp_path: Path) -> None:
    undisturbed = fill(tmp_path / "whole" / "rows.jsonl").rows()
    path = tmp_path / "killed" / "rows.jsonl"
    fill(path, stop=5)
    torn = json.dumps({"key": KEYS[5], "row": {"values": [1.0, 2.0, 3.0]}})[:-9]
    with path.open("a") as file:
        file.write(torn)
    assert len(RowLog(path)) == 5
    for _ in range(2):
        fill(path)
        got = RowLog(path).rows()
        assert len(got) == 8
        assert got == undisturbed


def test_torn_in_the_middle_by_two_writers(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    fill(path, stop=3)
    text = path.read_text()
    path.write_text(text + '{"key": {"layer": 0, {"key": {"layer": 1}, "row"\n' + text + "null\n17\n\x00\n")
    assert len(RowLog(path)) == 3
    assert fill(path).rows() == fill(tmp_path / "other.jsonl").rows()


def test_the_first_of_two_rows_of_one_key_stays(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    one, other = RowLog(path), RowLog(path)
    one.add({"layer": 0}, {"x": 1})
    other.add({"layer": 0}, {"x": 2})
    assert RowLog(path).rows() == [{"layer": 0, "x": 1}]
    with pytest.raises(ValueError, match="in the log already"):
        one.add({"layer": 0}, {"x": 3})


def test_values_survive_exactly_and_key_order_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    log = RowLog(path)
    numbers = [0.1, 1 / 3, 5e-324, -0.0, 1.7976931348623157e308, float("nan"), float(np.float32(0.1))]
    log.add({"b": 1, "a": "é\n"}, {"x": np.array(numbers), "y": np.float32(0.1), "n": np.int64(3), "none": None})
    log.close()
    got = RowLog(path).get({"a": "é\n", "b": np.int64(1)})
    assert got is not None
    assert np.array_equal(np.array(got["x"]).view(np.int64)[:5], np.array(numbers).view(np.int64)[:5])
    assert np.isnan(got["x"][5])
    assert got["y"] == float(np.float32(0.1))
    assert log.rows()[0]["n"] == 3


def test_parts_say_what_was_computed_under_which_settings(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for pack, count in ((1, 3), (4, 2)):
        log = RowLog(path, {"pack": pack})
        for key in list(log.missing(KEYS))[:count]:
            log.add(key, {})
        log.close()
    assert RowLog(path).parts == [{"settings": {"pack": 1}, "rows": 3}, {"settings": {"pack": 4}, "rows": 2}]


def test_nothing_is_created_before_the_first_row(tmp_path: Path) -> None:
    log = RowLog(tmp_path / "deep" / "rows.jsonl")
    assert len(log) == 0
    log.close()
    assert not any(tmp_path.iterdir())


def test_canonical() -> None:
    assert canonical({"b": (1, 2), "a": {2, 1}}) == '{"a":[1,2],"b":[1,2]}'
    with pytest.raises(TypeError, match="object cannot be written"):
        canonical(object())
