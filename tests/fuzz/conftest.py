"""Readers are given what a user without run-time type checks may give them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unchecked import unchecked


@pytest.fixture(autouse=True, scope="module")
def _unchecked() -> Iterator[None]:
    with unchecked():
        yield
