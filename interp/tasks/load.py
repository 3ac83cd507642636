"""`load_task`: a task by name or from a file, and the registry of built-in and users' tasks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from interp.registry import Registry, UserError, unknown
from interp.tasks.sources import SUFFIXES, is_file_name
from interp.tasks.values import Task

Builder = Callable[..., Task]
"""`fn(model, *, n, seed, split, **options) -> Task`; a model is anything with `.tokenizer`, `.geometry`, `.device`."""

TASKS: Registry[Builder] = Registry("task", group="interp.tasks")
register_task = TASKS.register
"""Decorator: register a task builder `fn(model, *, n, seed, split, **options) -> Task`."""

DEFAULT_N = 64
MOST_MADE = 1_000_000


def load_task(
    name_or_file: str | Path,
    model: Any,
    n: int | None = None,
    seed: int = 0,
    split: str = "all",
    **options: Any,
) -> Task:
    """A built-in or registered task by name, or a table of pairs by path (see `task_from_table`).

    `n` is exact: 64 by default for tasks that are made, every good row for a file. Options are the builder's
    own (`corruption`, `bos`, …). The task is checked against the model before it is given out. An unknown name
    or option, or a file that is nowhere, raises UserError.

    >>> import interp
    >>> load_task("ioi", interp.load_model("toy-ioi"), n=8).n
    8
    """
    if not hasattr(model, "geometry"):
        raise UserError(f"load_task takes a loaded model (interp.load_model), got {model!r}")
    if is_file_name(name_or_file):
        from interp.tasks.table import task_from_table

        _check_options(str(name_or_file), task_from_table, options)
        return task_from_table(name_or_file, model, n=n, seed=seed, split=split, **options)
    name = str(name_or_file)
    if name not in TASKS and os.path.isfile(name):
        raise UserError(f"{name} is a file, but a table's name ends in one of {', '.join(SUFFIXES)}")
    if n is not None and n > MOST_MADE:
        raise UserError(f"n = {n} prompts of task {name!r} were asked for; at most {MOST_MADE} are made")
    builder = get_task(name)
    _check_options(name, builder, options)
    task = builder(model, n=DEFAULT_N if n is None else n, seed=seed, split=split, **options)
    check_task(task, model)
    if n is not None and task.n != n:
        raise UserError(f"task {name!r} made {task.n} prompts, {n} were asked for")
    return task


def get_task(name: str) -> Builder:
    """A registered task's builder; an unknown name raises with the nearest ones."""
    if name not in TASKS:
        # a built-in task is one file of this folder, registered when it is imported
        for path in sorted(Path(__file__).parent.glob("*.py")):
            if "\n@register_task(" in path.read_text(encoding="utf-8"):
                import_module(f"{__package__}.{path.stem}")
    return TASKS[name]


def check_task(task: Task, model: Any) -> None:
    """UserError unless the task fits the model: tokens and answers in the vocabulary, prompts in the context.

    That labels lie inside their prompts and answers exist is checked where prompts and tasks are built.
    """
    d_vocab, n_ctx = int(model.geometry.d_vocab), int(model.geometry.n_ctx)
    for what, ids in (
        ("clean", task.clean.tokens[task.clean.mask]),
        ("corrupt", task.corrupt.tokens[task.corrupt.mask]),
        ("right answer", task.right.tokens[task.right.mask]),
        ("wrong answer", task.wrong.tokens[task.wrong.mask]),
    ):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < d_vocab:
            raise UserError(f"task {task.name!r}: {what} tokens go up to {int(ids.max())}, the vocabulary is {d_vocab}")
    longest = max(task.clean.width, task.corrupt.width)
    if longest > n_ctx:
        raise UserError(f"task {task.name!r} has prompts of {longest} tokens, the model's context holds {n_ctx}")
    if not task.aligned and not task.clean.labels:
        task.require_aligned()


def _check_options(name: str, builder: Any, options: dict[str, Any]) -> None:
    parameters = inspect.signature(builder).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    taken = {"table", "model", "n", "seed", "split"}
    allowed = sorted(p.name for p in parameters if p.name not in taken)
    for option in options:
        if option not in allowed:
            raise unknown(f"option of task {name!r}:", option, allowed)
