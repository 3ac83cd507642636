"""The first prompts of a task as text, for pages and people: tokens one by one, and where the labels lie."""

from __future__ import annotations

from typing import Any

from interp.tasks.values import Task

MOST = 3
LONGEST = 200
"""Tokens of a prompt that are kept."""


def shown_prompts(task: Task, model: Any, most: int = MOST) -> list[dict[str, Any]]:
    """Per prompt `tokens`, `labels` (name to position) and the `corrupt` tokens, without padding and answers."""
    found = []
    for prompt in range(min(most, task.n)):
        row = int((task.prompt_of_row == prompt).nonzero()[0])
        clean, corrupt = task.clean, task.corrupt
        labels = {name: int(at[row]) for name, at in clean.labels.items() if 0 <= int(at[row]) < LONGEST}
        found.append({"tokens": _text(clean, row, model), "labels": labels, "corrupt": _text(corrupt, row, model)})
    return found


def _text(prompts: Any, row: int, model: Any) -> list[str]:
    real = prompts.tokens[row][prompts.mask[row]]
    end = len(real) - (0 if prompts.suffix is None else int(prompts.suffix[row]))
    return list(model.to_text(real[:end][:LONGEST]))
