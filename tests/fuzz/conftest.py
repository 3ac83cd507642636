"""Readers are given what a user without run-time type checks may give them, and no more than two gigabytes for it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from tests.unchecked import unchecked


@pytest.fixture(autouse=True, scope="module")
def _unchecked() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with unchecked():
        yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    assert grown < 2, f"the peak of memory rose by {grown:.1f} GB"
