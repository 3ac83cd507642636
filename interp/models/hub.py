"""Hub names to local folders, through huggingface_hub's cache: configuration, tokenizer and safetensors only."""

from __future__ import annotations

import re
from pathlib import Path

from interp.registry import UserError

WANTED = ["*.json", "*.safetensors", "*.model", "*.txt"]
NESTED = ["*/*"]
"""Other formats and variants lie in subfolders."""

_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?$")


def could_be_hub_name(name: str) -> bool:
    """Whether a string is spelt like a hub name: `name` or `owner/name`."""
    return bool(_NAME.match(name)) and not name.startswith((".", "-"))


def fetch(name: str, revision: str | None) -> Path:
    """The local snapshot of a hub repository, downloaded where it is not yet cached (HF_HUB_OFFLINE is heeded).

    Raises UserError with what the hub, or its cache, said.
    """
    from huggingface_hub import snapshot_download

    from interp.models.hf_folder import quiet

    try:
        with quiet():
            return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED, ignore_patterns=NESTED))
    except Exception as error:  # the hub's client raises its own, httpx's and the system's errors
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        at = f" at revision {revision}" if revision else ""
        raise UserError(
            f"the hub or its cache has no {name!r}{at} to give ({type(error).__name__}: {first})"
        ) from error
