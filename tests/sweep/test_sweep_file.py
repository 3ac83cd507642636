"""The sweep file: what is wrong is told with its line, and nothing unknown is taken."""

from __future__ import annotations

import pytest
from sweep_files import Sweeps

from interp.registry import UserError
from interp.sweep.spec import read_file

WRONG = {
    "unknown key": (
        "cells:\n  - experiment: probe\n    gird: {seed: [1]}\n",
        r"line 3: unknown key 'cells.0.gird'; did you mean grid\?",
    ),
    "unknown key of resources": (
        "cells:\n  - experiment: probe\nresources:\n  cpu: 2\n",
        r"line 4: .*did you mean cpus\?",
    ),
    "wrong type": (
        "cells:\n  - experiment: probe\nresources:\n  gpus: 1\n  minutes: long\n",
        r"line 5: resources.minutes: .*'long'",
    ),
    "key twice": (
        "cells:\n  - experiment: probe\n    set: {rows: 1}\n    set: {rows: 2}\n",
        r"line 4: key 'set' is given twice",
    ),
    "zip of unequal lists": (
        "cells:\n  - experiment: probe\n    zip: {seed: [1, 2], rows: [1]}\n",
        r"line 3: .*equally long.*'seed': 2, 'rows': 1",
    ),
    "one setting in two places": (
        "cells:\n  - experiment: probe\n    grid: {seed: [1]}\n    list: [{seed: 2}]\n",
        r"line 3: .*'seed' is given by two",
    ),
    "empty axis": ("cells:\n  - experiment: probe\n    grid: {seed: []}\n", r"line 3: .*grid.seed is an empty list"),
    "no cells": ("name: x\n", r"line 1: cells: is missing: a list of blocks"),
    "no mapping": ("- 1\n", r"line 1: expected a mapping"),
    "empty": ("", r"line 1: the file is empty"),
    "no yaml": ("cells:\n  - experiment: [probe\n", r"line 3: "),
    "object of Python's": ("cells: !!python/object:os.system {}\n", r"line 1: could not determine a constructor"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_with_its_line(case: str, sweeps: Sweeps) -> None:
    text, message = WRONG[case]
    with pytest.raises(UserError, match=message):
        read_file(sweeps.write(text))


SETTINGS = {
    "unknown experiment": (
        "cells:\n  - experiment: [probe, prob]\n",
        r"line 2: unknown experiment 'prob'; did you mean probe\?",
    ),
    "unknown metric": (
        "cells:\n  - experiment: activation_patching\n    grid:\n      metric:\n        - logit_dif\n",
        r"line 5: unknown metric 'logit_dif'; did you mean logit_diff or logit",
    ),
    "unknown site": (
        "cells:\n  - experiment: activation_patching\n    set:\n      sites: [z, L1.zz]\n",
        r"line 4: unknown site 'zz'; did you mean z\?",
    ),
    "no such file of pairs": (
        "defaults:\n  task: nowhere.csv\ncells:\n  - experiment: activation_patching\n",
        r"line 2: no such file: nowhere.csv",
    ),
    "unknown setting": (
        "cells:\n  - experiment: probe\n    grid:\n      seed: [1]\n      row: [1, 2]\n",
        r"line 5: unknown setting of probe 'row'; did you mean rows\?",
    ),
    "bad value of a list": (
        "cells:\n  - experiment: probe\n    grid:\n      rows:\n        - 1\n        - 0\n",
        r"line 6: setting rows of probe: .*got 0",
    ),
    "bad value set": ("cells:\n  - experiment: probe\n    set:\n      seed: -1\n", r"line 4: setting seed of probe"),
    "bad default": (
        "defaults:\n  rows: 1\n  colour: red\ncells:\n  - experiment: probe\n",
        r"line 3: unknown setting of the sweep's experiments 'colour'",
    ),
    "bad name in an exclusion": (
        "cells:\n  - experiment: probe\nexclude:\n  - when: {sede: 1}\n",
        r"line 4: unknown setting of the sweep's experiments 'sede'; did you mean seed",
    ),
    "bad name in an exclusion of a block": (
        "cells:\n  - experiment: probe\n    exclude:\n      - when:\n          sede: 1\n",
        r"line 5: unknown setting of the sweep's experiments 'sede'",
    ),
    "bad name in a preset": (
        "cells:\n  - experiment: probe\npresets:\n  quick:\n    only: {sede: 0}\n",
        r"line 5: unknown setting of the sweep's experiments 'sede'",
    ),
    "bad name in what a preset overrides": (
        "cells:\n  - experiment: probe\npresets:\n  quick:\n    override: {row: 1}\n",
        r"line 5: unknown setting of the sweep's experiments 'row'; did you mean rows\?",
    ),
    "unknown preset of the experiment": (
        "cells:\n  - experiment: probe\n    preset: huge\n",
        r"line 3: unknown preset of probe 'huge'",
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_wrong_settings_are_told_with_their_line(case: str, sweeps: Sweeps) -> None:
    text, message = SETTINGS[case]
    with pytest.raises(UserError, match=message):
        sweeps.plan(text)


def test_an_absent_file_and_an_unknown_preset(sweeps: Sweeps) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_file(sweeps.folder / "none.yaml")
    with pytest.raises(UserError, match=r"unknown preset of the sweep 'fast'\. There are: none"):
        sweeps.plan("cells: [{experiment: probe}]", "fast")


def test_anchors_and_merge_keys_are_plain_yaml(sweeps: Sweeps) -> None:
    plan = sweeps.plan(
        """
        cells:
          - &one
            experiment: probe
            set: {rows: 3}
          - {<<: *one, grid: {seed: [5, 6]}}
        """
    )
    assert [(c.config["rows"], c.config.get("seed")) for c in plan.cells] == [(3, None), (3, 5), (3, 6)]
