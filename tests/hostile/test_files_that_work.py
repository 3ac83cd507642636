"""Unusual files that must work: no tokenizer, every encoding, spaces and other scripts in every name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from spoilt_input import TOKENS, interp

from interp.circuits.files import SUFFIXES, load_circuit, save_circuit
from interp.circuits.values import Circuit
from interp.graph import Graph
from interp.models.load import load_model
from tests.tiny import hf

NAME = "мой проект 語 é ü's"
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose own name has spaces and other scripts, with a model without a tokenizer in it."""
    folder = tmp_path / NAME
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("INTERP_RESULTS", raising=False)
    module: Any = hf("gpt2")
    module.save_pretrained(folder / "модель два")
    return folder


def cells(out: Path) -> list[Path]:
    return sorted(p.parent for p in out.glob("*/*/run.json"))


def test_every_encoding_gives_the_same_numbers(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for encoding in ENCODINGS:
        path = Path(f"пары {encoding}.csv")
        path.write_bytes(TOKENS.encode(encoding))
        out = Path("результаты", encoding)
        told = interp(capsys, "run", "ablation", "--model", "модель два", "--task", path, "--out", out)
        assert told.code == 0, told.err
        (cell,) = cells(out)
        tables.append(pd.read_parquet(cell / "table.parquet").drop(columns=["task"]))
        assert json.loads((cell / "run.json").read_text())["task"] == str(path)
    assert all(tables[0].equals(t) for t in tables[1:])
    assert tables[0]["effect"].abs().max() > 0


def test_every_command_on_such_names(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("пары.csv").write_text(TOKENS)
    out = Path("мои результаты")
    Path("мой свип.yaml").write_text(
        "name: sweep\nout: 'мои результаты'\ncells:\n  - experiment: ablation\n"
        "    set: {model: модель два, task: ./пары.csv}\n    grid: {seed: [0, 1]}\n",
        encoding="utf-8",
    )
    for words in (("plan",), ("run", "--workers", "1"), ("status",)):
        told = interp(capsys, "sweep", words[0], "мой свип.yaml", *words[1:])
        assert told.code == 0, told
    made = cells(out)
    assert len(made) == 2
    for words in (
        ("results", "list", "--out", out),
        ("results", "show", made[0]),
        ("results", "compare", made[0], made[1]),
        ("results", "export", made[0], "--to", "таблица 1.csv"),
        ("run", "--from", made[0], "--out", "ещё раз"),
        ("report", made[0], "--out", "страницы 語"),
    ):
        told = interp(capsys, *words)
        assert told.code == 0, told
    assert Path("таблица 1.csv").stat().st_size > 100
    assert list(Path("страницы 語").rglob("*.html"))
    (again,) = cells(Path("ещё раз"))
    assert (again / "table.parquet").read_bytes() == (made[0] / "table.parquet").read_bytes()


def test_a_circuit_file_of_such_a_name(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model("модель два")
    circuit = Circuit.full(Graph(model.geometry))
    for suffix in SUFFIXES:
        path = save_circuit(circuit, Path(f"контур 語{suffix}"))
        assert load_circuit(path, model.geometry).mask.equal(circuit.mask)


def test_words_of_other_scripts_reach_the_terminal(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the terminal's encoding has no such letters."""
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    words = ("run", "ablation", "--model", "нет такой модели")
    done = subprocess.run([sys.executable, "-m", "interp", *words], capture_output=True, env=env)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"error: no model")
