"""Which pairs of words are kept from the training of `toy-ioi`: a fixed rule, the same for grammar and tasks.

A pair is two names, a noun and an attractor, or a century and two digits of a year. About 15% of all pairs
are held out. Templates say themselves whether they are (`Template.held_out`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from interp.registry import UserError
from interp.tasks.templates import Template

SHARE = 0.15
SPLITS = ("all", "train", "heldout")


def held_out(a: str, b: str) -> bool:
    """Whether a pair of words is kept from training; the order does not matter."""
    key = "|".join(sorted((a, b))).encode()
    return zlib.crc32(key) % 1000 < 1000 * SHARE


def check_split(split: str) -> None:
    """UserError for a split that does not exist."""
    if split not in SPLITS:
        raise UserError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


def in_split(a: str, b: str, split: str) -> bool:
    """Whether a pair belongs to a split: `train`, `heldout`, or `all`."""
    return split == "all" or held_out(a, b) == (split == "heldout")


def templates_of(group: Sequence[Template], split: str) -> list[tuple[int, Template]]:
    """Templates of a split, each with its number in the group (its template id)."""
    check_split(split)
    return [(i, t) for i, t in enumerate(group) if split == "all" or t.held_out == (split == "heldout")]
