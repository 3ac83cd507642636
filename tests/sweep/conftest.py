"""Sweeps of probes in this process: the probe is registered for the time of a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_files import Sweeps

from experiments.faults.probe import PROBE
from interp.cells import EXPERIMENTS


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    monkeypatch.setitem(EXPERIMENTS._rows, "probe", PROBE)
    monkeypatch.delenv("INTERP_RESULTS", raising=False)
    return Sweeps(tmp_path)
