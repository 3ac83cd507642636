"""Run a test's body without the run-time shape and type checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def unchecked() -> Iterator[None]:
    """For code that is called thousands of times, and for what a user without the checks may pass in."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
