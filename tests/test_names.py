"""Names in settings, checked before anything heavy is imported; and the help page that shows what may be set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from interp import names
from interp.cells import EXPERIMENTS, Config
from interp.cli import main
from interp.cli.describing import kind_of, meaning_of
from interp.context import MethodName, MetricOrAuto, ModelTaskConfig, SiteNames, TaskName
from interp.metrics import METRICS
from interp.names import check_names
from interp.registry import NameOf, UserError

CHEAP = {
    "run NOSUCH": "unknown experiment 'NOSUCH'",
    "run ablation --set sitez=z": "unknown setting of ablation 'sitez'; did you mean sites",
    "run ablation --preset nosuch": "unknown preset of ablation 'nosuch'",
    "run ablation --model toy-ioy": "no model 'toy-ioy'; tried the embedded models (did you mean toy-ioi?",
    "run ablation --model ./nowhere": "a local folder (nowhere does not exist)",
    "run ablation --task ioy": "unknown task 'ioy'; did you mean ioi?",
    "run ablation --task nowhere.csv": "no such file: nowhere.csv",
    "run ablation --set metric=logitdiff": "unknown metric 'logitdiff'; did you mean logit_diff",
    "run ablation --set sites=zz": "unknown site 'zz'; did you mean z?",
    "run ablation --set sites=[q,blocks.0.z]": "not a site address: 'blocks.0.z'",
    "run attribution_patching --set sites=zz": "unknown site 'zz'",
    "run circuit_discovery --set method=acdd": "unknown method 'acdd'; did you mean acdc?",
    "run circuit_discovery --set metric=autp": "unknown metric 'autp'; did you mean auto?",
    "run ground_truth --set methods=[nosuch]": "unknown method 'nosuch'",
    "run numerics --set recipe=nosuch": "unknown recipe 'nosuch'",
    "run head_census --set task=nosuch": "unknown task 'nosuch'",
}
RUN_ALL = """
import json, sys
from interp.cli import main
for command in json.load(sys.stdin):
    print("###", main(command.split()), "torch" in sys.modules or "transformers" in sys.modules, file=sys.stderr)
"""


def in_one_process(commands: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The commands one after the other; after each a line with its exit code, and whether torch was imported."""
    return subprocess.run(
        [sys.executable, "-c", RUN_ALL], input=json.dumps(commands), capture_output=True, text=True, cwd=folder
    )


def test_a_wrong_name_costs_no_import_of_torch(tmp_path: Path) -> None:
    done = in_one_process([*CHEAP], tmp_path)
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["### 2 False"] * len(CHEAP)
    for line, (command, says) in zip(lines[::2], CHEAP.items(), strict=True):
        assert says in line, command
    assert list(tmp_path.iterdir()) == []


class Named(ModelTaskConfig):
    model: Literal["m"] = "m"  # type: ignore[assignment]
    sites: SiteNames | None = None
    metrics: tuple[MetricOrAuto, ...] = ()
    methods: list[MethodName] = Field(["eap"])
    other: TaskName | None = None


def test_what_exists_passes(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("x")
    for settings in (
        {}, {"task": str(table)}, {"sites": ["L1.z", "L-1.resid_mid"]}, {"sites": "logits"}, {"other": "induction"},
        {"metrics": ["auto", "kl"]}, {"methods": ["acdc", "masks", "exact"]},
    ):  # fmt: skip
        check_names(Named(**settings))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sites": ["z", "L1.zz"]}, "unknown site 'zz'"),
        ({"metrics": ["kl", "kll"]}, "unknown metric 'kll'; did you mean kl?"),
        ({"methods": ["eap", "epa"]}, "unknown method 'epa'"),
        ({"other": "a/b"}, "no such file: a/b"),
        ({"other": ""}, "unknown task ''"),
    ],
)
def test_what_does_not_exist_is_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match="^" + says.replace("?", r"\?")):
        check_names(Named.model_validate(settings))


def test_a_metric_of_this_process_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError):
        check_names(Named(metric="mine_alone"))
    monkeypatch.setitem(METRICS._rows, "mine_alone", METRICS["kl"])
    check_names(Named(metric="mine_alone"))


def test_the_model_is_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub may take its time; what is cheap is told first."""
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(names, "find", lambda name, revision: asked.append((name, revision)))
    with pytest.raises(UserError, match="unknown metric"):
        check_names(ModelTaskConfig(model="owner/name", metric="nosuch"))
    assert asked == []
    check_names(ModelTaskConfig(model="owner/name", model_options={"revision": "main"}))
    assert asked == [("owner/name", "main")]


@pytest.mark.parametrize("name", EXPERIMENTS.names())
def test_every_preset_of_every_experiment_has_names_that_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find", lambda name, revision: None)  # weights that are not here
    experiment = EXPERIMENTS[name]
    for preset in (None, *experiment.presets):
        check_names(experiment.make_config({}, preset))


class Kinds(Config):
    few: int = Field(3, ge=1, lt=9, description="how many")
    which: Literal["a", "b"] | None = Field(None, description="which of both")
    told: Literal["x", "y"] = Field("x", description="x or y, as told")
    needed: dict[str, float]
    metric: MetricOrAuto = Field("auto", description="what is measured")


def test_kinds_and_meanings() -> None:
    kinds = {name: kind_of(field) for name, field in Kinds.model_fields.items()}
    assert kinds == {
        "few": "integer ≥ 1 < 9", "which": "one of or null", "told": "one of", "needed": "mapping", "metric": "text",
    }  # fmt: skip
    meanings = {name: meaning_of(field) for name, field in Kinds.model_fields.items()}
    assert meanings["few"] == "how many"
    assert meanings["which"] == "which of both (a, b)"
    assert meanings["told"] == "x or y, as told"
    assert meanings["needed"] == ""
    assert meanings["metric"].startswith("what is measured (accuracy, ")
    assert meanings["metric"].endswith(", auto)")


def test_help_tells_settings_and_presets_without_torch(tmp_path: Path) -> None:
    # other tests may have registered experiments of their own in this process
    names = [n for n in EXPERIMENTS.names() if EXPERIMENTS[n].run.__module__.startswith("experiments.")]
    assert len(names) > 20
    commands = [f"run {name} --help" for name in names] + ["run --help", "run nosuch --help"]
    done = in_one_process(commands, tmp_path)
    codes = [line for line in done.stderr.splitlines() if line.startswith("###")]
    assert codes == ["### 0 False"] * (len(commands) - 1) + ["### 2 False"]
    pages = done.stdout.split("Usage: ")[1:]
    assert len(pages) == len(commands)  # the flags are shown even where there is no such experiment
    for name, page in zip(names, pages, strict=False):
        experiment = EXPERIMENTS[name]
        assert "--set KEY=VALUE" in page
        for setting, field in experiment.config.model_fields.items():
            assert f"\n{setting} " in page, (name, setting)
            assert field.description, f"{name}: setting {setting} has no description"
        for preset in experiment.presets:
            assert f"\n{preset}: " in page


def test_help_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.ablation", "--help"], capture_output=True, text=True, check=True
    )
    assert main(["run", "ablation", "--help"]) == 0
    mine = capsys.readouterr().out
    assert "Ablation: take each component away" in mine
    assert done.stdout.partition("Ablation: take")[2] == mine.partition("Ablation: take")[2]
    assert "mean_by" in mine
    assert "(named ones: attn-2l, toy-ioi)" in mine


def test_a_mark_says_which_kind() -> None:
    assert names.mark_of(Named.model_fields["metrics"]) == NameOf("metrics", ("auto",))
    assert names.mark_of(Named.model_fields["methods"]) == NameOf("methods")
    assert names.mark_of(Named.model_fields["sites"]) == NameOf("sites")
    assert names.mark_of(Named.model_fields["seed"]) is None
