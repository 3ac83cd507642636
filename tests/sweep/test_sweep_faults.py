"""Sweeps that are broken on purpose: after the resume every cell is published exactly once, nothing is lost.

The faults are those of `experiments/faults/`, made here one by one: the quick half in `make test`, the rest in
`make test-long`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.faults.local_faults import LOCAL, Unfit

QUICK = ("worker killed", "submitter and workers killed", "Ctrl-C", "two submitters", "disk full")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_fault(name: str, tmp_path: Path) -> None:
    _whole(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in LOCAL if n not in QUICK])
def test_other_fault(name: str, tmp_path: Path) -> None:
    _whole(name, tmp_path)


def _whole(name: str, folder: Path) -> None:
    try:
        seen = LOCAL[name].make(folder / "scene")
    except Unfit as e:
        pytest.skip(str(e))
    assert seen.whole, f"{seen.told()}; left behind: {seen.left}"
