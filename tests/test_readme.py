"""The README is true: its paths exist, its commands are understood, its snippets run, its tables have commands."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import readme_parts

from interp.cells import Config, Experiment
from interp.cli import main, main_for
from interp.listing import KINDS, listing
from interp.metrics import METRICS
from interp.models import zoo
from interp.tasks.load import get_task

COMMANDS = readme_parts.commands()
RUNS = [c for c in COMMANDS if (c[:2] == ["interp", "run"] or c[:2] == ["python", "-m"]) and "--help" not in c]
SWEEPS = [c for c in COMMANDS if c[:2] == ["interp", "sweep"]]
HELP = [c for c in COMMANDS if "--help" in c]
OTHERS = [c for c in COMMANDS if c not in RUNS and c not in SWEEPS and c not in HELP]


def test_every_path_exists() -> None:
    where = readme_parts.paths("Where do I add…")
    assert {"experiments/", "interp/tasks/", "interp/hooks/sites.py", "interp/models/rows/"} <= {*where}
    assert [p for p in readme_parts.paths() if not (readme_parts.ROOT / p).exists()] == []


def test_the_commands_are_found() -> None:
    assert len(RUNS) > 8
    assert {c[1] for c in OTHERS} == {"list", "results", "train", "report"}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Experiment, Config, Mapping[str, Any]]]:
    """What `run_cell` would have been asked for, in place of running it; the folder holds the files named."""
    calls: list[tuple[Experiment, Config, Mapping[str, Any]]] = []

    def record(experiment: Experiment, config: Config, **settings: Any) -> object:
        calls.append((experiment, config, settings))
        return SimpleNamespace()

    monkeypatch.setattr("interp.cli.running.run_cell", record)
    monkeypatch.setattr("interp.cli.running.print_cell", lambda cell: None)
    # the hub's GPT-2 small is not here, and FOLDER is anybody's
    monkeypatch.setattr("interp.names.find", lambda name, revision: None)
    monkeypatch.chdir(tmp_path)
    Path("pairs.csv").write_text("clean,corrupt,right,wrong\n")
    Path("A").mkdir()
    recorded = {"experiment": "ablation", "version": 1, "config": {"n": 5}}
    Path("A", "run.json").write_text(json.dumps(recorded))
    return calls


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_is_given(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words[1:]) == 0
    assert "--set NAME=VALUE" in capsys.readouterr().out


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_runs_are_understood(words: list[str], asked: list[tuple[Experiment, Any, Mapping[str, Any]]]) -> None:
    if words[0] == "interp":
        assert main(words[1:]) == 0
    else:
        assert main_for(words[2].removeprefix("experiments."), words[3:]) == 0
    ((experiment, config, _),) = asked
    assert experiment.name in {row.name for row in listing("experiments")}
    model, task, metric = (getattr(config, name, None) for name in ("model", "task", "metric"))
    # GPT-2 small is not here: the README says that this one was not run
    assert model is None or model in zoo.names() or experiment.name == "reproduce_gpt2_small"
    assert task is None or Path(task).is_file() or get_task(task)
    assert metric in (None, "auto") or metric in METRICS


def test_sweep_files_are_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped file plans; what the other commands do with it is `tests/sweep/`'s business."""
    named = {(c[2], c[3]) for c in SWEEPS if not c[3].startswith("-")}
    assert {verb for verb, _ in named} == {"plan", "run", "status", "logs", "cancel", "collect", "report"}
    (file,) = {path for _, path in named}
    shutil.copy(readme_parts.ROOT / file, tmp_path / "all.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "plan", "all.yaml"]) == 0


@pytest.mark.slow
def test_other_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists and results for real, on two small cells; training is stubbed out."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for letter, seed in (("A", 0), ("B", 1)):
        assert main(["run", "ablation", "--preset", "smoke", "--seed", str(seed)]) == 0
        names[letter] = str(max((tmp_path / "results" / "ablation").iterdir(), key=lambda p: p.stat().st_mtime_ns))
    trained = []

    def train(recipe: Any, **settings: Any) -> None:
        trained.append((recipe if isinstance(recipe, str) else recipe.name, settings["out"]))

    monkeypatch.setattr("interp.training.loop.train", train)
    monkeypatch.setattr("interp.training.command.summary", lambda folder: "")
    for words in OTHERS:
        assert main([names.get(w, w) for w in words[1:]]) == 0, words
    assert trained == [("toy-ioi", Path("my-toy"))]
    assert re.search(r"^\|.* effect .*\|$", capsys.readouterr().out, re.M), "a Markdown table"


@pytest.mark.slow
def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in readme_parts.snippets():
        exec(compile(code, "README.md", "exec"), names)
    assert len(names["effects"].table()) == 12
    assert names["cell"].table()["n"].tolist() == [16] * 12
    assert [p.name for p in sorted((tmp_path / "results").iterdir())] == ["ablation", "patch"]


def test_kinds_that_the_readme_lists() -> None:
    (line,) = re.findall(r"interp list experiments +# also (.*)", readme_parts.TEXT)
    assert {*line.split(", ")} <= {*KINDS}


def test_flags_are_the_command_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    table = readme_parts.TEXT.split("| flag | meaning |")[1].split("\n\n")[0]
    described = {*re.findall(r"--[a-z]+", table)} - {"--cells"}
    assert main(["run", "--help"]) == 0
    offered = {*re.findall(r"--[a-z]+", capsys.readouterr().out)}
    assert offered - described == {"--help", "--cells"}
    assert described <= offered


def plainly(command: str | list[str]) -> tuple[str, ...]:
    """A command without the settings that change no number."""
    words = command.split() if isinstance(command, str) else command
    text = re.sub(r"\s--(?:threads|out|device|pack)\s\S+", "", " ".join(words))
    return tuple(text.replace("'", "").split())


def test_every_table_in_results_has_its_command() -> None:
    known = {plainly(c) for c in RUNS}
    for run in sorted((readme_parts.ROOT / "results").glob("*/*/run.json")):
        command = json.loads(run.read_text())["command"]
        assert plainly(command) in known, f"{run.parent.name} was made by {command!r}, which the README does not show"


def test_a_copy_of_the_example_package_is_whole() -> None:
    files = readme_parts.package().files
    assert {*files} == {"my_interp/__init__.py", "my_interp/parts.py", "my_interp/head_gain.py"}
    assert shutil.which("interp") is None or "EXPERIMENT" in files["my_interp/head_gain.py"]
