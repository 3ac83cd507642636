"""What every test shares: offline, quiet and reproducible settings, the order of the tiers, the shared folder.

Nothing here seeds a global generator: a test draws from a generator of its own.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

# before torch and huggingface_hub are first imported, which read these once
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# results of a person's own are no place for tests to write to or read from
os.environ.pop("INTERP_RESULTS", None)

import pytest
from hypothesis import HealthCheck, settings

# a shell that starts its jobs in the background hands them an ignored Ctrl-C, which tests send
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared"

# the same draws everywhere in CI; a machine's speed is no fault of the code
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the project, with data and models of others; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs the folder of shared data beside the project (../shared), which is absent")
    return SHARED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of seconds first, those marked slow after them, those marked long last."""
    items.sort(key=lambda item: (item.get_closest_marker("long") is not None) * 2 + _slow(item))


def _slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None
