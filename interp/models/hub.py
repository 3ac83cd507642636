"""Hub names to local folders, through huggingface_hub's cache: configuration, tokenizer and safetensors only."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interp.registry import UserError

WANTED = ["*.json", "*.safetensors", "*.model", "*.txt"]
NESTED = ["*/*"]
"""Other formats and variants lie in subfolders."""

_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?$")


def could_be_hub_name(name: str) -> bool:
    """Whether a string is spelt like a hub name: `name` or `owner/name`."""
    return bool(_NAME.match(name)) and not name.startswith((".", "-"))


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep the hub client's warnings and progress bars to itself; both are as before afterwards."""
    from huggingface_hub import utils

    hub: Any = utils  # its progress-bar switches are public but not in its typed exports
    hidden = hub.are_progress_bars_disabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hub.disable_progress_bars()
            yield
    finally:
        (hub.disable_progress_bars if hidden else hub.enable_progress_bars)()


def fetch(name: str, revision: str | None) -> Path:
    """The local snapshot of a hub repository, downloaded where it is not yet cached (HF_HUB_OFFLINE is heeded).

    Raises UserError with what the hub, or its cache, said.
    """
    from huggingface_hub import snapshot_download

    try:
        with without_bars():
            return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED, ignore_patterns=NESTED))
    except Exception as error:  # the hub's client raises its own, httpx's and the system's errors
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        at = f" at revision {revision}" if revision else ""
        raise UserError(
            f"the hub or its cache has no {name!r}{at} to give ({type(error).__name__}: {first})"
        ) from error
