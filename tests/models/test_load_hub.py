"""Hub names, through a hand-made cache folder and without network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from folders import add_tokenizer, gpt2_folder, network_watched

from interp.models.load import load_model
from interp.registry import UserError
from tests.tiny import tiny

MAIN, OLD = "a" * 40, "b" * 40
TOKENS = [[1, 2, 3, 4]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """acme/small with `main` (seed 0) and the tag `v1` (seed 1), as huggingface_hub lays its cache out."""
    from huggingface_hub import constants

    root = tmp_path / "hub"
    repo = root / "models--acme--small"
    gpt2_folder(repo / "snapshots" / MAIN)
    add_tokenizer(repo / "snapshots" / MAIN)
    gpt2_folder(repo / "snapshots" / OLD, seed=1)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(MAIN)
    (repo / "refs" / "v1").write_text(OLD)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return repo


def test_a_cached_name_loads_with_its_tokenizer_and_commit(cache: Path) -> None:
    with network_watched() as tries:
        model = load_model("acme/small")
    assert (model.name, model.revision, tries) == ("acme/small", MAIN, [])
    assert model.tokenizer is not None
    assert torch.equal(model.run(TOKENS).logits, tiny("gpt2").run(TOKENS).logits)


@pytest.mark.parametrize("revision", ["v1", OLD])
def test_a_revision_is_another_model(cache: Path, revision: str) -> None:
    model = load_model("acme/small", revision=revision)
    assert model.revision == OLD
    assert torch.equal(model.run(TOKENS).logits, tiny("gpt2", seed=1).run(TOKENS).logits)


def test_what_is_not_cached_says_so(cache: Path) -> None:
    with network_watched() as tries, pytest.raises(UserError) as raised:
        load_model("acme/large")
    said = str(raised.value)
    assert "'acme/large'" in said
    assert "local folder" in said
    assert "LocalEntryNotFoundError" in said or "Offline" in said
    assert "\n" not in said
    assert tries == []
    with pytest.raises(UserError, match="at revision v2"):
        load_model("acme/small", revision="v2")


def test_a_cached_snapshot_without_safetensors_is_refused(cache: Path) -> None:
    snapshot = cache / "snapshots" / MAIN
    shutil.move(snapshot / "model.safetensors", snapshot / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only pytorch_model.bin"):
        load_model("acme/small")


def test_without_a_network_the_error_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with network_watched() as tries, pytest.raises(UserError, match="no model 'acme/none'"):
        load_model("acme/none")
    assert tries  # it was the network that was tried
