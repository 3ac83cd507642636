"""Hostile files given to a command: one line, exit code 2, and the results folder exactly as it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from spoilt_input import TOKENS, interp, refused, tree

from tests.tiny import hf

FC = "transformer.h.0.mlp.c_fc.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "whole"
    module: Any = hf("gpt2")
    module.save_pretrained(path)
    return path


@pytest.fixture
def world(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, pairs, and a results folder that holds a finished cell and the rows of an unfinished one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTERP_RESULTS", str(tmp_path / "results"))
    shutil.copytree(whole, tmp_path / "model")
    Path("pairs.csv").write_text(TOKENS)
    kept = Path("results", "ablation", ".partial-x")
    kept.mkdir(parents=True)
    (kept / "rows.jsonl").write_text('{"key": {}, "row": {}}\n')
    return tmp_path


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def as_pickle(folder: Path, name: str) -> None:
    """Real pickled weights, with a trap that would leave a trace if they were opened."""
    trap = f"cos\nsystem\n(S'touch {folder / 'opened'}'\ntR.".encode()
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(trap)


def with_code(folder: Path, **keys: Any) -> None:
    (folder / "own.py").write_text(f"open({str(folder / 'opened')!r}, 'w')\nclass C: pass\n")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))


def other_config(folder: Path, kind: str) -> None:
    module: Any = hf(kind)
    module.config.save_pretrained(folder)


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickled .bin": (lambda p: as_pickle(p, "pytorch_model.bin"), "only pytorch_model.bin: pickled"),
    "pickled .pt": (lambda p: as_pickle(p, "weights.pt"), "only weights.pt: pickled"),
    "pickled .pth": (lambda p: as_pickle(p, "weights.pth"), "only weights.pth: pickled"),
    "pickle under another name": (
        lambda p: (as_pickle(p, "x.bin"), (p / "x.bin").rename(p / "model.safetensors")),
        "not a safetensors file",
    ),
    "remote code": (lambda p: with_code(p, auto_map={"AutoModelForCausalLM": "own.C"}), "code of its own (auto_map)"),
    "remote code of an unknown type": (
        lambda p: with_code(p, auto_map={"AutoConfig": "own.C"}, model_type="strange"),
        "code of its own (auto_map)",
    ),
    "trust asked for by the file": (
        lambda p: with_code(p, auto_map={"AutoConfig": "own.C"}, trust_remote_code=True),
        "never run",
    ),
    "truncated": (cut, "not whole"),
    "wrong shape": (
        lambda p: weights(p, lambda w: w.update({FC: w[FC][:, :7].clone()})),
        "[32, 7] where the configuration needs [32, 128]",
    ),
    "NaN": (lambda p: weights(p, lambda w: w[FC].fill_(float("nan"))), f"NaN or infinity: {FC}"),
    "infinity": (lambda p: weights(p, lambda w: w[FC][0].fill_(float("inf"))), f"NaN or infinity: {FC}"),
    "config of Llama": (lambda p: other_config(p, "llama"), "the weights do not fit config.json"),
    "config of NeoX": (lambda p: other_config(p, "neox"), "the weights do not fit config.json"),
    "config undecodable": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe\xfa{}"), "does not parse as JSON"),
    "config of brackets": (lambda p: (p / "config.json").write_bytes(b"[" * 100_000), "does not parse as JSON"),
}


@pytest.mark.parametrize("fault", MODELS)
def test_models(world: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    spoil, says = MODELS[fault]
    spoil(world / "model")
    before = tree(world / "results")
    line = refused(interp(capsys, "run", "ablation", "--model", "model", "--task", "pairs.csv"))
    assert says in line
    assert str(world / "model") in line
    assert tree(world / "results") == before
    assert not (world / "model" / "opened").exists()


def test_remote_code_cannot_be_asked_for(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_code(world / "model", auto_map={"AutoModelForCausalLM": "own.C"})
    words = ("run", "ablation", "--model", "model", "--task", "pairs.csv", "--set")
    line = refused(interp(capsys, *words, "model_options.trust_remote_code=true"))
    assert "trust_remote_code" in line
    assert not (world / "model" / "opened").exists()


TABLES: dict[str, tuple[str, bytes, str]] = {
    "undecodable CSV": ("t.csv", b"clean,corrupt,right,wrong\n\xff\xfe\xfd,b,c,d\n", "neither UTF-8 nor UTF-16"),
    "undecodable, far down": ("t.csv", TOKENS.encode() * 2000 + b"\x80abc,d,e,f\n", "neither UTF-8 nor UTF-16"),
    "undecodable JSON lines": ("t.jsonl", b'{"clean": "\xff"}\n', "neither UTF-8 nor UTF-16"),
    "Latin-1": ("t.csv", "clean,corrupt,right,wrong\ncafé,thé,a,b\n".encode("latin-1"), "neither UTF-8 nor UTF-16"),
    "cut UTF-16": ("t.csv", TOKENS.encode("utf-16")[:-1], "neither UTF-8 nor UTF-16"),
    "a picture": ("t.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "neither UTF-8 nor UTF-16"),
    "digits without end": (
        "t.csv", b'clean,corrupt,right,wrong\n"[1, 2]","[3, 2]",' + b"9" * 5000 + b",4\n", "1 of 1 rows are bad",
    ),
    "brackets without end": ("t.json", b"[" * 100_000, "not a JSON array"),
    "brackets without end, in a line": ("t.jsonl", b'{"clean": ' + b"[" * 100_000 + b"\n", "is not JSON"),
    "thousands of bad rows": ("t.csv", b"clean,corrupt,right,wrong\n" + b"1,2,3,4\n[1],[2],3,4\n" * 999, "are bad"),
    "empty": ("t.csv", b"", "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("fault", TABLES)
def test_tables(world: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    name, content, says = TABLES[fault]
    Path(name).write_bytes(content)
    before = tree(world / "results")
    assert says in refused(interp(capsys, "run", "ablation", "--model", "model", "--task", "./" + name))
    assert tree(world / "results") == before


OTHERS: dict[str, tuple[tuple[str, ...], bytes, str]] = {
    "undecodable sweep": (("sweep", "plan", "x"), b"cells:\n - \xff\xfe\n", "x"),
    "sweep of brackets": (("sweep", "plan", "x"), b"[" * 100_000, "x"),
    "sweep of aliases": (
        ("sweep", "run", "x"),
        b"a: &b0 [1, 1]\n" + b"".join(b"c%d: &b%d [*b%d, *b%d]\n" % (i, i, i - 1, i - 1) for i in range(1, 40)),
        "more than 1000000 values",
    ),
    "sweep of a billion cells": (
        ("sweep", "plan", "x"),
        b"cells:\n- experiment: ablation\n  grid: {%s}\n"
        % b", ".join(b"%s: [%s]" % (k, b", ".join(b"%d" % i for i in range(64))) for k in (b"n", b"seed", b"task")),
        "line 3: 262144 combinations; at most 200000",
    ),
    "sweep with a date that is none": (("sweep", "plan", "x"), b"name: 2001-99-99\n", "no YAML"),
    "sweep that makes an object": (("sweep", "run", "x"), b"!!python/object/apply:os.system [touch opened]", "line 1"),
    "undecodable cells": (("run", "--cells", "x"), b"\xff\xfe\n", "--cells x"),
    "cells of another kind": (("run", "--cells", "x"), b'{"experiment": ["ablation"]}\n', "line 1"),
    "undecodable record": (("run", "--from", "x"), b"\xff\xfe\n", "--from x"),
    "record of another kind": (
        ("run", "--from", "x"), b'{"experiment": "ablation", "version": 1, "config": [1]}', "expected a cell's run",
    ),
    "circuit undecodable": (
        ("run", "circuit_evaluation", "--set", "circuit=x.json"), b"\xff\xfe\n", "x.json is no circuit file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", OTHERS)
def test_other_files(world: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    words, content, says = OTHERS[fault]
    Path("x").write_bytes(content)
    Path("x.json").write_bytes(content)
    before = tree(world / "results")
    assert says in refused(interp(capsys, *words))
    assert tree(world / "results") == before
    assert not Path("opened").exists()


SETTINGS = {
    "task_options=&a [*a]": "refer to itself",
    "task_options=2001-99-99": "no YAML",
    "n=!!int x": "no YAML",
    "task_options=" + "[" * 20_000: "no YAML",
    "model=" + "x/" * 3000: "no model",
    "model=~nobody-of-that-name/m": "no model",
    "task=" + "x" * 3000 + ".csv": "no such file",
    "task=a\0b.csv": "no YAML",
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s[:20])
def test_settings(world: Path, capsys: pytest.CaptureFixture[str], setting: str) -> None:
    before = tree(world / "results")
    assert SETTINGS[setting] in refused(interp(capsys, "run", "ablation", "--set", setting))
    assert tree(world / "results") == before
