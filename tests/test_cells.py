"""Cells: hashes, reuse, resume, origin; with fake models and tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pydantic
import pytest
from fake_experiments import BROKEN, HEADS, HeadsConfig, numbers

from interp.cells import (
    Context,
    Experiment,
    Loaders,
    ModelTaskConfig,
    Table,
    cell_hash,
    named_files,
    resolve_device,
    run_cell,
)
from interp.registry import UserError
from interp.results.frames import typed
from interp.results.schemas import EFFECT
from interp.results.store import Cell, list_cells, partial_path


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@dataclass
class FakeModel:
    name: str
    weights: str = "w1"

    def weights_hash(self) -> str:
        return self.weights * 32


@dataclass
class FakeTask:
    n: int
    content: str

    def hash(self) -> str:
        return self.content * 32


class World:
    """Counts what is loaded; its models' weights and tasks' prompts can be changed behind a name."""

    def __init__(self) -> None:
        self.weights, self.content, self.loaded, self.runs = "w1", "t1", list[str](), 0
        self.loaders = Loaders(self.model, self.task)

    def model(self, name: str, *, device: str, dtype: str, **options: Any) -> FakeModel:
        self.options = options
        self.loaded.append(f"{name} {device} {dtype}")
        return FakeModel(name, self.weights)

    def task(self, name: str, model: FakeModel, *, n: int | None, seed: int, split: str, **options: Any) -> FakeTask:
        assert isinstance(model, FakeModel)
        self.asked = {"split": split, **options}
        return FakeTask(n or 64, self.content)

    def run(self, config: ModelTaskConfig, context: Context) -> Table:
        self.runs += 1
        n = context.task.n
        frame = typed([{"layer": i, "effect": float(i * n), "n": n} for i in range(2)], EFFECT)
        return Table(frame, notes={"plain": context.plain, "dtype": context.dtype, "unit": context.resampling(9).unit})

    @property
    def experiment(self) -> Experiment:
        return Experiment("fake", 1, ModelTaskConfig, self.run, {"smoke": {"n": 4}})

    def cell(self, out: Path, config: dict[str, Any] | None = None, **settings: Any) -> Cell:
        return run_cell(self.experiment, config or {}, out=out, loaders=replace(self.loaders, _held={}), **settings)


@pytest.fixture
def world() -> World:
    return World()


def test_a_cell_and_its_origin(tmp_path: Path, world: World) -> None:
    cell = world.cell(tmp_path, {"n": 6, "seed": 3}, command="interp run fake --n 6 --seed 3")
    assert cell.path.parent == tmp_path / "fake"
    run = cell.run()
    assert cell.path.name == f"toy-ioi.ioi-{run['hash'][:10]}"
    assert run["config"] == ModelTaskConfig(n=6, seed=3).model_dump()
    assert (run["weights"], run["tasks"]) == ({"toy-ioi": "w1" * 32}, {"ioi": "t1" * 32})
    assert (run["experiment"], run["version"], run["seed"], run["device"], run["dtype"]) == (
        "fake", 1, 3, "cpu", "float32",
    )  # fmt: skip
    assert run["reproducible"] is True
    assert run["command"] == "interp run fake --n 6 --seed 3"
    assert {"interp", "python", "torch", "numpy"} <= run["versions"].keys()
    assert run["wall_seconds"] >= 0
    assert run["peak_memory_bytes"] > 1e6
    assert {"threads", "pack", "plain", "commit", "files", "schema_version"} <= run.keys()
    # what the config says of every row is in every row
    first = cell.table().iloc[0]
    assert (first["experiment"], first["model"], first["task"], first["metric"], first["seed"]) == (
        "fake", "toy-ioi", "ioi", "logit_diff", 3,
    )  # fmt: skip


def test_options_reach_the_loaders(tmp_path: Path, world: World) -> None:
    cell = world.cell(
        tmp_path, {"split": "test", "task_options": {"corruption": "abc"}, "model_options": {"revision": "v2"}}
    )
    assert world.asked == {"split": "test", "corruption": "abc"}
    assert world.options == {"revision": "v2"}
    assert cell.table()["n"].tolist() == [64, 64]
    assert cell.table()["split"].tolist() == ["test"] * 2


def test_a_finished_cell_is_returned_untouched(tmp_path: Path, world: World) -> None:
    first = world.cell(tmp_path)
    before = everything(tmp_path)
    again = world.cell(tmp_path, device="cpu", pack=7)
    assert (first.reused, again.reused, again.path) == (False, True, first.path)
    assert everything(tmp_path) == before
    assert world.runs == 1


def test_other_settings_make_a_new_cell(tmp_path: Path, world: World) -> None:
    first = world.cell(tmp_path)
    before = everything(first.path)
    others = [
        world.cell(tmp_path, {"seed": 1}),
        world.cell(tmp_path, dtype="bfloat16"),
        world.cell(tmp_path, plain=True),
    ]
    assert len({c.path for c in [first, *others]}) == 4
    assert everything(first.path) == before
    assert [c.run()["notes"]["dtype"] for c in others] == ["float32", "bfloat16", "float32"]
    assert others[2].run()["notes"]["plain"] is True
    assert world.loaded[2] == "toy-ioi cpu bfloat16"


def test_n_is_what_was_asked_for(tmp_path: Path) -> None:
    few, all_ = (run_cell(HEADS, {"n": n}, out=tmp_path).table() for n in (4, 32))
    assert few["n"].tolist() == [4] * 8
    assert all_["n"].tolist() == [32] * 8
    assert few["effect"].tolist() == pytest.approx([numbers(HeadsConfig(), h)[:4].mean() for h in range(8)])
    assert (few["effect"] != all_["effect"]).all()
    assert set(few["reason"]) == {"n = 4 < 5"}


def test_the_hash() -> None:
    base = cell_hash(HEADS, HeadsConfig())
    assert base == cell_hash(HEADS, HeadsConfig(n=16, seed=0))
    assert len(base) == 64
    others = [
        cell_hash(HEADS, HeadsConfig(n=17)),
        cell_hash(replace(HEADS, version=2), HeadsConfig()),
        cell_hash(replace(HEADS, name="other"), HeadsConfig()),
        cell_hash(HEADS, HeadsConfig(options={"a": 1})),
    ]
    assert len({base, *others}) == 5


def test_the_hash_does_not_know_the_order_of_settings() -> None:
    one, other = HeadsConfig(options={"a": 1, "b": 2}), HeadsConfig(options={"b": 2, "a": 1})
    assert cell_hash(HEADS, one) == cell_hash(HEADS, other)


def test_a_file_changed_in_place_makes_another_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.csv").write_text("clean,corrupt\n")
    config = HeadsConfig(file="pairs.csv", options={"deep": [{"x": "pairs.csv"}]})
    first = run_cell(HEADS, config)
    assert [*first.run()["files"]] == ["pairs.csv"]
    Path("pairs.csv").write_text("clean,corrupt!\n")
    second = run_cell(HEADS, config)
    assert not second.reused
    assert second.path != first.path
    assert named_files(HeadsConfig(file="absent.csv")) == {}


@pytest.mark.parametrize(("what", "named"), [("weights", "toy-ioi"), ("tasks", "ioi")])
def test_changed_weights_or_prompts_behind_a_name(tmp_path: Path, world: World, what: str, named: str) -> None:
    world.cell(tmp_path)
    before = everything(tmp_path)
    setattr(world, {"weights": "weights", "tasks": "content"}[what], "zz")
    old, new = ("w1" if what == "weights" else "t1") * 8, "zz" * 8
    with pytest.raises(UserError, match=f"other {what} under the name '{named}': recorded {old}, now {new}"):
        world.cell(tmp_path)
    assert everything(tmp_path) == before


def test_rows_of_other_weights_are_not_resumed(tmp_path: Path, world: World) -> None:
    def half(config: ModelTaskConfig, context: Context) -> Table:
        context.rows.add({"layer": 0}, {"x": 1})
        raise RuntimeError("half way")

    experiment = Experiment("half", 1, ModelTaskConfig, half)
    with pytest.raises(RuntimeError, match="half way"):
        run_cell(experiment, {}, out=tmp_path, loaders=world.loaders)
    world.weights = "zz"
    with pytest.raises(UserError, match="other weights under the name 'toy-ioi'"):
        run_cell(experiment, {}, out=tmp_path, loaders=replace(world.loaders, _held={}))


def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, pack: int | None = None) -> Path:
    """Run the fake head sweep until it is interrupted; the folder of what it left."""
    monkeypatch.setenv("FAKE_DIE", str(after))
    monkeypatch.setenv("FAKE_SIGNAL", "SIGINT")
    with pytest.raises(KeyboardInterrupt):
        run_cell(HEADS, {}, out=tmp_path, pack=pack)
    monkeypatch.delenv("FAKE_DIE")
    (left,) = (tmp_path / "fake_heads").iterdir()
    return left


def test_interrupted_and_resumed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_cell(HEADS, {}, out=tmp_path / "whole")
    left = interrupted(tmp_path / "cut", monkeypatch, 5)
    assert left.name == f".partial-{whole.path.name}"
    assert list_cells(tmp_path / "cut") == []
    interrupted(tmp_path / "cut", monkeypatch, 6)
    resumed = run_cell(HEADS, {}, out=tmp_path / "cut")
    again = run_cell(HEADS, {}, out=tmp_path / "cut")
    assert (resumed.reused, again.reused) == (False, True)
    for file in ("table.parquet", "examples.parquet", "table.csv"):
        assert (resumed.path / file).read_bytes() == (whole.path / file).read_bytes()
    assert len(resumed.table()) == 8
    assert os.listdir(resumed.path.parent) == [resumed.path.name]


def test_resumed_under_another_pack_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, monkeypatch, 5, pack=4)
    cell = run_cell(HEADS, {}, out=tmp_path, pack=2)
    assert [(p["pack"], p["rows"]) for p in cell.run()["parts"]] == [(4, 5), (2, 3)]


def test_a_failing_run_writes_no_cell(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the sky fell"):
        run_cell(BROKEN, {}, out=tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hads": 3}, "unknown setting of fake_heads 'hads'; did you mean heads"),
        ({"n": "many"}, "setting n of fake_heads: .*integer.*, got 'many'"),
        ({"n": 0}, "setting n of fake_heads: .*greater than or equal to 1, got 0"),
        ({"n": 0, "seed": "x"}, r"\(1 more wrong\)"),
        ({"sites": "y"}, "unknown site 'y'"),
    ],
)
def test_bad_settings_write_nothing(tmp_path: Path, values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run_cell(HEADS, values, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_flags_that_do_not_apply(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fake_heads has no setting plain, so --plain does not apply"):
        run_cell(HEADS, {}, out=tmp_path, plain=True)
    with pytest.raises(UserError, match="--threads must be at least 1, got 0"):
        run_cell(HEADS, {}, out=tmp_path, threads=0)
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        run_cell(HEADS, {}, out=tmp_path, device="gpu")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file, a folder was expected"):
        run_cell(HEADS, {}, out=tmp_path / "file" / "deep")


def test_unknown_preset_and_experiment(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown preset of fake_heads 'smok'; did you mean smoke\?"):
        HEADS.make_config({}, "smok")
    assert HEADS.make_config({"n": 9}, "smoke").model_dump()["heads"] == 2
    with pytest.raises(UserError, match="unknown experiment 'no_such_thing'"):
        run_cell("no_such_thing", {}, out=tmp_path)


def test_configs_are_frozen_values() -> None:
    with pytest.raises(pydantic.ValidationError):
        ModelTaskConfig(nn=3)  # type: ignore[call-arg]
    with pytest.raises(pydantic.ValidationError):
        ModelTaskConfig().n = 4  # type: ignore[misc]


def test_out_by_flag_variable_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERP_RESULTS", raising=False)
    assert run_cell(HEADS, {}).path.is_relative_to("results")
    monkeypatch.setenv("INTERP_RESULTS", "variable")
    assert run_cell(HEADS, {}).path.is_relative_to("variable")
    assert run_cell(HEADS, {}, out="flag").path.is_relative_to("flag")


def test_functions_without_a_name_are_not_reproducible(tmp_path: Path) -> None:
    calls = []

    def run(config: HeadsConfig, context: Context) -> Table:
        context.unregistered("metric <lambda>")
        assert not list(context.rows.rows())
        context.rows.add({"layer": 0}, {"x": 1.0})
        calls.append(1)
        return Table(typed([{"effect": float(len(calls))}], EFFECT))

    experiment = Experiment("own", 1, HeadsConfig, run)
    cells = [run_cell(experiment, {}, out=tmp_path) for _ in range(2)]
    assert [c.table()["effect"].item() for c in cells] == [1.0, 2.0]
    assert [c.run()["reproducible"] for c in cells] == [False, False]
    assert cells[0].run()["unregistered"] == ["metric <lambda>"]
    assert not list(tmp_path.rglob(".partial*"))


def test_an_experiment_without_a_version_is_not_reused(tmp_path: Path) -> None:
    loose = replace(HEADS, version=None)
    cells = [run_cell(loose, {}, out=tmp_path) for _ in range(2)]
    assert cells[0].path != cells[1].path
    assert cells[1].run()["reproducible"] is False


def test_threads_are_set_for_the_run_only(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    seen = []

    def run(config: HeadsConfig, context: Context) -> Table:
        seen.append(torch.get_num_threads())
        return Table(typed([{"effect": 1.0}], EFFECT))

    cell = run_cell(Experiment("t", 1, HeadsConfig, run), {}, out=tmp_path, threads=before + 1)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
    assert cell.run()["threads"] == before + 1


def test_devices() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") in ("cpu", "cuda")
    with pytest.raises(UserError, match="device 'cuda:99' is not here"):
        resolve_device("cuda:99")


def test_a_race_for_one_cell_publishes_once(tmp_path: Path) -> None:
    """Another process publishes the cell while this one computes it."""

    def slow(config: HeadsConfig, context: Context) -> Table:
        run_cell(HEADS, config, out=tmp_path)
        return HEADS.run(config, context)

    late = run_cell(replace(HEADS, run=slow), {}, out=tmp_path)
    assert late.reused
    assert len(list_cells(tmp_path)) == 1
    assert not partial_path(late.path).exists()
    pd.testing.assert_frame_equal(late.table(), run_cell(HEADS, {}, out=tmp_path / "b").table())


def test_the_rng_is_the_seeds(tmp_path: Path) -> None:
    draws = []

    def run(config: HeadsConfig, context: Context) -> Table:
        draws.append((context.rng.integers(1 << 30), context.rng.integers(1 << 30), np.random.get_state()[1][0]))
        return Table(typed([{"effect": 1.0}], EFFECT))

    for seed in (0, 0, 1):
        run_cell(Experiment("r", None, HeadsConfig, run), {"seed": seed}, out=tmp_path)
    assert draws[0] == draws[1]
    assert draws[0][0] == draws[0][1]
    assert draws[0][0] != draws[2][0]


def test_run_json_is_plain_json(tmp_path: Path) -> None:
    text = (run_cell(HEADS, {}, out=tmp_path).path / "run.json").read_text()
    assert json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))


PARENT = """
import subprocess, sys
much = bytearray(b"1") * (600 << 20)
child = "from interp.results.origin import peak_memory; print(peak_memory())"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
"""


def test_peak_memory_is_not_that_of_the_process_that_started_it() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    assert 1e6 < int(done.stdout) < 300e6
