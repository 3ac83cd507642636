"""A newcomer's package, exactly as the README shows it, in an interpreter of its own.

It brings an experiment, a task, a metric, an edit and a family by entry points; nothing of ours is touched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import readme_parts

from interp.listing import source_of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed in `site`."""
    folder = tmp_path_factory.mktemp("newcomer")
    readme_parts.package().install(folder / "site")
    return folder


def python(place: Path, *words: str) -> str:
    path = os.pathsep.join([str(place / "site"), str(readme_parts.ROOT)])
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=place, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "name", "about"),
    [
        ("experiments", "head_gain", "Head gain: what turning a head's output up or down does to a metric."),
        ("tasks", "copy_pair", "`a b a`: the token after the second `a` is asked for."),
        ("metrics", "margin", "Log-probability of the likeliest right answer − of the likeliest wrong one."),
        ("edits", "clamp", "Cap every value at `most`."),
        ("families", "my_starcoder2", ""),
    ],
)
def test_it_is_listed(place: Path, kind: str, name: str, about: str) -> None:
    rows = dict(line.partition(" ")[::2] for line in python(place, "-m", "interp", "list", kind).splitlines())
    assert name in rows
    assert about in rows[name]


@pytest.mark.slow
def test_its_experiment_runs_on_its_task_and_metric(place: Path) -> None:
    words = ("run", "head_gain", "--task", "copy_pair", "--preset", "smoke", "--set", "metric=margin")
    python(place, "-m", "interp", *words, "--out", "planned")
    python(place, "-m", "interp", *words, "--plain", "--out", "plain")
    one, other = (next((place / out / "head_gain").iterdir()) for out in ("planned", "plain"))
    run = json.loads((one / "run.json").read_text())
    assert (run["experiment"], run["task"], run["reproducible"]) == ("head_gain", "copy_pair", True)
    a, b = (pd.read_parquet(cell / "table.parquet") for cell in (one, other))
    assert a["n"].tolist() == [8] * 12
    assert a["unit"].unique().tolist() == ["nats"]
    assert a["effect"].abs().max() > 0.1
    assert (a["effect"] - b["effect"]).abs().max() < 1e-4


USE = """
import torch
import interp
from interp.hooks.edits import EDITS
from interp.metrics import METRICS
from transformers import AutoConfig, AutoModelForCausalLM

model = interp.load_model("toy-ioi")
task = interp.load_task("copy_pair", model, n=12, seed=3)
assert task.n == 12 and task.clean.tokens.shape == (12, 3)
assert (task.clean.tokens[:, 0] == task.clean.tokens[:, 2]).all()
run = model.run(task.clean, capture="L1.mlp_post", edits=[EDITS["clamp"]("L1.mlp_post", 0.1)])
assert float(run["L1.mlp_post"].max()) == torch.tensor(0.1)
logp = run.logits[:, -1].log_softmax(-1)
rows = torch.arange(12)
by_hand = logp[rows, task.right.first[:, 0]] - logp[rows, task.wrong.first[:, 0]]
assert torch.allclose(METRICS["margin"](run.logits, task), by_hand)

config = AutoConfig.for_model(
    "starcoder2", vocab_size=50, max_position_embeddings=16, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, sliding_window=5,
    residual_dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0,
)
torch.manual_seed(0)
module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
wrapped = interp.load_model(module)
assert wrapped.family.name == "my_starcoder2"
tokens = torch.randint(0, 50, (3, 9))
assert torch.allclose(wrapped.run(tokens).logits, module(tokens).logits, atol=1e-5)
module.save_pretrained("starcoder")
"""


@pytest.mark.slow
def test_its_parts_do_what_they_say(place: Path) -> None:
    python(place, "-c", USE)
    told = python(place, "-m", "interp", "run", "site_audit", "--model", "starcoder", "--preset", "smoke")
    (cell,) = (place / "results" / "site_audit").iterdir()
    frame = pd.read_parquet(cell / "table.parquet")
    assert frame["family"].unique().tolist() == ["my_starcoder2"], told
    assert len(frame) > 100
    assert frame["passed"].dropna().all()


def test_sources_in_a_namespace_package_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of a package whose inner folder has no __init__.py is listed like any other."""
    inner = tmp_path / "outer_package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer_package" / "__init__.py").touch()
    (inner / "leaf.py").write_text('"""A leaf."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_of("outer_package.inner.leaf") == inner / "leaf.py"
    assert source_of("outer_package.inner") is None
    assert "outer_package" not in sys.modules
