"""Discovery and evaluation on different prompts: which prompts a circuit was found on, and a check of overlap."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from interp.registry import UserError
from interp.tasks.values import Task


def prompt_digests(task: Task) -> list[str]:
    """A digest of each prompt's real clean tokens."""
    out = []
    for row in task.first_rows.tolist():
        real = task.clean.tokens[row][task.clean.mask[row]].cpu().numpy().astype("int64")
        out.append(hashlib.sha256(real.tobytes()).hexdigest()[:16])
    return out


def require_disjoint(found_on: Task | Collection[str], evaluated_on: Task) -> None:
    """UserError where a circuit would be evaluated on prompts it was found on."""
    seen = set(prompt_digests(found_on) if isinstance(found_on, Task) else found_on)
    shared = [i for i, digest in enumerate(prompt_digests(evaluated_on)) if digest in seen]
    if shared:
        raise UserError(
            f"{len(shared)} of the {evaluated_on.n} evaluation prompts (the first is prompt {shared[0]}) were used for "
            "discovery; evaluate on other prompts: another split, another part, or another seed"
        )
