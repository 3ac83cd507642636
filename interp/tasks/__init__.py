"""Tasks: paired prompts, clean and corrupt, with right and wrong answers; built in or read from a table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interp.tasks.load import load_task as load_task
    from interp.tasks.load import register_task as register_task
    from interp.tasks.table import task_from_table as task_from_table
    from interp.tasks.values import Answers as Answers
    from interp.tasks.values import Task as Task

_WHERE = {
    "Answers": "values",
    "Task": "values",
    "load_task": "load",
    "register_task": "load",
    "task_from_table": "table",
}
__all__ = ["Answers", "Task", "load_task", "register_task", "task_from_table"]


def __getattr__(name: str) -> object:
    # lexicon and templates are read without torch, so nothing that needs it is imported up here
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
