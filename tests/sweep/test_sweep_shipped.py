"""The sweep that ships: every embedded model with every task of ours, or an exclusion that is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from interp.listing import listing
from interp.models.load import load_model
from interp.registry import UserError
from interp.sweep.plan import make_plan
from interp.sweep.spec import read_file
from interp.tasks import load_task

FILE = Path(__file__).resolve().parents[2] / "experiments" / "sweeps" / "all.yaml"


@pytest.mark.slow
def test_every_pair_of_model_and_task_is_swept_or_excluded_for_a_reason() -> None:
    plan = make_plan(FILE)
    pairs = {(m.name, t.name) for m in listing("models") for t in listing("tasks")}
    swept = {(str(c.config["model"]), str(c.config["task"])) for c in plan.cells}
    assert {c.config["seed"] for c in plan.cells} == {0, 1, 2, 3, 4}
    rules = [r.when for r in read_file(FILE)[0].exclude if set(r.when) == {"model", "task"}]
    excluded = {(rule["model"], task) for rule in rules for task in rule["task"]}
    assert swept | excluded == pairs
    assert not swept & excluded
    for model, task in excluded:
        with pytest.raises(UserError):
            load_task(task, load_model(model), n=128, seed=0)
    assert all(count for _, count in plan.excluded)
