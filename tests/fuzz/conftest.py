"""Readers are given what a user without run-time type checks may give them, and no more than two gigabytes for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interp.results.origin import peak_memory
from tests.unchecked import unchecked


@pytest.fixture(autouse=True, scope="module")
def _unchecked() -> Iterator[None]:
    before = peak_memory()
    with unchecked():
        yield
    after = peak_memory()
    assert before is not None
    assert after is not None
    grown = (after - before) / 2**30
    assert grown < 2, f"the peak of memory rose by {grown:.1f} GB"
