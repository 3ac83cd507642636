"""Thirty and more things that a newcomer gets wrong: what is said must name what was given, expected, or is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from spoilt_input import interp as shell
from spoilt_input import refused

import interp
from interp.models.model import Model
from interp.registry import UserError
from interp.tasks.values import Task
from tests.unchecked import unchecked

FILES = {
    "notes.txt": "hello",
    "cols.csv": "prompt,corrupted,answer,wrong\na,b,c,d\n",
    "words.csv": "clean,corrupt,right,wrong\nThe cat sat,The dog sat,mat,rug\n",
    "indent.yaml": "cells:\n  - experiment: ablation\n   set: {n: 3}\n",
    "name.yaml": "cells:\n  - experiment: ablatoin\n",
    "setting.yaml": "cells:\n  - experiment: ablation\n    grid: {seeds: [0, 1]}\n",
}

COMMANDS = {
    "run ablation --model toy-ioy": "no model 'toy-ioy'; tried the embedded models (did you mean toy-ioi?",
    "run ablation --model ./nowhere/model": "a local folder (nowhere/model does not exist)",
    "run ablation --model notes.txt": "give a model folder or a safetensors file",
    "run ablation --task ioy": "did you mean ioi? There are: greater_than, induction",
    "run ablation --task nowhere.csv": "no such file: nowhere.csv",
    "run ablation --task notes.txt": "notes.txt is a file, but a table's name ends in one of .csv",
    "run ablation --task cols.csv": "--set task_options.clean=NAME",
    "run ablation --task words.csv": "not in the tokenizer's vocabulary: 'sat'",
    "run ablation --set metric=logitdiff": "did you mean logit_diff",
    "run ablation --set sites=zz": "did you mean z? There are: attn_out",
    "run ablation --set sites=L9.z": "layer 9 of z lies outside the model's 3 layers",
    "run ablation --set ablation=meen": "'zero', 'mean', 'resample' or 'corrupt', got 'meen'",
    "run ablation --set model_options.trust=true": "unknown setting of model_options 'trust'",
    "run activation_patching --set by=heads": "did you mean head? There are: layer, head, position",
    "run activation_patching --set sites=mlp_out --set by=head": "site mlp_out has no heads to sweep by",
    "run path_patching --set receivers=a1.h0": "a list is expected, such as [a1.h0]",
    "run path_patching --set receivers=[a1.h0]": "heads read through <q>, <k> or <v> (a1.h0<q>)",
    "run path_patching --set receivers=[a9.h0<q>]": "it has a0.h0<q> to m2, and logits",
    "run path_patching --set senders=[L0.h1]": "expected input, logits, m<layer> or a<layer>.h<head>",
    "run ablation sites=z": "settings of an experiment are given by --set KEY=VALUE",
    "run ablation --sites z": "settings of an experiment are given by --set KEY=VALUE",
    "run ablation --set sites": "expected KEY=VALUE",
    "run ablation --set sites=[z": "the value is no YAML",
    "run ablation --seed 99999999999999999999": "setting seed of ablation: Input should be less than 9223372036854",
    "run ablation --threads 99999999999": "--threads must be at most 1048576, got 99999999999",
    "run ablation --n 100000000000": "at most 1000000 are made",
    "run ablation --device gpu": "unknown device 'gpu'",
    "run ablation --dtype fp16": "'float32', 'float64', 'bfloat16' or 'float16', got 'fp16'",
    "run patching": "did you mean path_patching",
    "run ablation --set task_options.corupt=abc": "did you mean corruption?",
    "run ablation --set split=trian": "all, train, heldout, got 'trian'",
    "sweep run indent.yaml": "indent.yaml, line 3",
    "sweep run name.yaml": "name.yaml, line 2: unknown experiment 'ablatoin'; did you mean ablation?",
    "sweep plan setting.yaml": "setting.yaml, line 3: unknown setting of ablation 'seeds'; did you mean seed",
    "sweep run nowhere.yaml": "nowhere.yaml: No such file",
    "results show abc": "unknown cell under results: 'abc'",
    "list model": "did you mean models",
    "help": "`interp --help` lists them",
    "list": "`interp list --help` tells what it is",
    "results compare a": "`interp results compare --help` tells what it is",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERP_RESULTS", raising=False)
    for name, text in FILES.items():
        Path(name).write_text(text)
    assert COMMANDS[command] in refused(shell(capsys, *command.split()))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(FILES)


@pytest.fixture(scope="module")
def model() -> Model:
    return interp.load_model("toy-ioi")  # type: ignore[return-value]


@pytest.fixture(scope="module")
def task(model: Model) -> Task:
    return interp.load_task("ioi", model, n=4)


CALLS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "another word for head": (lambda m, t: interp.zero("L0.z", heads=1), "did you mean head or kv_head? There are"),
    "a head too far": (lambda m, t: m.run(t.clean, edits=interp.zero("L0.z", head=12)), "outside the model's 4 heads"),
    "a position too far": (lambda m, t: m.run(t.clean, edits=interp.zero("L0.z", pos=99)), "which has 18 tokens"),
    "an address of others": (lambda m, t: m.run(t.clean, capture="blocks.0.attn.hook_z"), "such as L1.z or ln_final"),
    "an address as edit": (lambda m, t: m.run(t.clean, edits=["L0.z"]), "not an edit: 'L0.z'; use one of add"),
    "a metric's name": (lambda m, t: m.run(t.clean, metric="logit_diff"), "a function of the logits"),
    "nothing captured": (lambda m, t: m.run(t.clean)["L0.z"], "ask for it by capture=['L0.z']"),
    "words it does not know": (lambda m, t: m.run("hello world"), "not in the vocabulary of toy-ioi: 'hello', 'world'"),
    "a short vector": (
        lambda m, t: m.run(t.clean, edits=interp.add("L1.resid_mid", torch.ones(3))),
        "a vector of shape (3,) does not fit values of shape (4, 19, 96)",
    ),
    "no means": (lambda m, t: interp.mean("L1.z", None), "expected what model.means(…) gives, got NoneType"),
    "a task's name": (lambda m, t: interp.patch(m, "ioi", sites="z", by="head"), "as interp.load_task gives it"),
    "a model's name": (lambda m, t: interp.patch("toy-ioi", t, sites="z", by="head"), "as interp.load_model gives it"),
    "a name for a model": (lambda m, t: interp.load_task("ioi", "toy-ioi"), "takes a loaded model"),
    "a hook without function": (lambda m, t: m.hooks("L0.z").__enter__(), "a hook is (address, function)"),
    "a hook that is no function": (lambda m, t: m.hooks(("L0.z", 3)).__enter__(), "a hook is (address, function)"),
    "no settings": (lambda m, t: interp.run_cell("ablation", None), "are a mapping, such as {'n': 16}"),
    "fewer than no tokens": (lambda m, t: m.generate(t.clean, -1), "at least 1, got -1"),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls(model: Model, task: Task, call: str) -> None:
    does, says = CALLS[call]
    with unchecked(), pytest.raises(UserError) as caught:
        does(model, task)
    assert says in str(caught.value)
