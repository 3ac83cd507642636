"""Sweep files, `--set`, `--cells` and run.json, spoilt: cells come out, or a UserError."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from drawn_input import JSON, TEXT, few, many, parses_or_says, spoilt
from hypothesis import example, given
from hypothesis import strategies as st

from interp.cells import EXPERIMENTS, cell_hash
from interp.cli.running import Flags, _recorded, run_one
from interp.sweep.cellfile import read_cells
from interp.sweep.plan import Plan, make_plan

pytestmark = pytest.mark.long

SWEEP = b"""name: heads
defaults: {n: 8}
cells:
  - experiment: [activation_patching, ablation]
    set: {sites: z}
    grid: {task: [ioi, induction], seed: [0, 1]}
    zip: {metric: [logit_diff, kl], split: [all, all]}
  - experiment: logit_lens
    list: [{seed: 3}]
    resources: {minutes: 20}
exclude:
  - {when: {task: induction, seed: [1]}, reason: one draw is enough}
presets:
  quick: {only: {seed: [0]}, override: {n: 4}}
resources: {cpus: 1, minutes: 60}
group: {by: [model]}
"""
SETTINGS = (
    b"sites=z", b"sites=[q, k, v]", b"task_options={bos: true, corruption: abc}", b"task_options.bos=true",
    b"metric=logit_diff", b"n=8", b"plain=false", b"model_options={a: {b: [1, 2.5, ~]}}",
)  # fmt: skip
RUN = json.dumps({"experiment": "ablation", "version": 1, "config": {"n": 8, "sites": "z"}, "files": {}}).encode()


def planned(path: Path, preset: str | None) -> Plan:
    return make_plan(path, preset)


@many
@given(spoilt(SWEEP), st.sampled_from([None, "quick", "slow"]))
@example(b"cells: &a\n  - {experiment: ablation, grid: {seed: *a}}\n", None)
@example(b"a: &a [1]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (i, i) for i in range(9)), None)
@example(b"cells:\n  - experiment: ablation\npresets:\n  quick: {only: {eed: [0]}}\n", "quick")
@example(b"cells:\n  - experiment: ablation\npresets:\n  quick: {only: {seed: [7]}}\n", "quick")
@example(b"cells:\n  - experiment: ablation\n    grid: {n: [!!int ]}\n", None)
def test_sweep_files(content: bytes, preset: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.yaml")
        path.write_bytes(content)
        plan = parses_or_says(lambda: planned(path, preset))
    assert plan is None or plan.cells


@many
@given(spoilt(*SETTINGS))
@example(b"task_options=&a [*a]")
@example(b"task_options={a: &a {b: *a}}")
@example(b"task_options=2001-99-99")
@example(b"n=!!int x")
@example(b"n=!!int ")
@example(b"n=!!float")
@example(b"n=!!bool ")
def test_settings(content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    experiment = EXPERIMENTS["activation_patching"]

    def read() -> str:
        config = experiment.make_config(Flags({}, (text,)).values())
        return cell_hash(experiment, config, {})

    digest = parses_or_says(read)
    assert digest is None or len(digest) == 64


@many
@given(st.dictionaries(st.sampled_from(["sites", "by", "n", "task_options", "model"]) | TEXT, JSON, max_size=4))
def test_settings_of_any_type(values: dict[str, Any]) -> None:
    experiment = EXPERIMENTS["ablation"]
    digest = parses_or_says(lambda: cell_hash(experiment, experiment.make_config(values), {}))
    assert digest is None or len(digest) == 64


@many
@given(spoilt(RUN, b'{"experiment": "ablation", "config": {"n": 3}}\n', b'{"sweep": "a", "out": "b", "threads": 1}\n'))
def test_cells_and_recorded_runs(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.json")
        path.write_bytes(content)
        parses_or_says(lambda: _recorded(path))
        read = parses_or_says(lambda: read_cells(path))
    assert read is None or read[1]


@few
@given(spoilt(RUN), st.sampled_from([(), ("n=4",), ("task_options.a=1",)]))
def test_run_again_from_a_spoilt_record(content: bytes, settings: tuple[str, ...]) -> None:
    """Nothing is loaded: the device that is asked for is nowhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.json")
        path.write_bytes(content)
        flags = Flags({}, settings, device="nowhere", run_json=path, out=Path(folder, "out"))
        assert parses_or_says(lambda: run_one(None, flags)) is None
        assert not Path(folder, "out").exists()
