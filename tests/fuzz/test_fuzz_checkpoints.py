"""Hugging Face folders, spoilt: a model whose logits are finite comes out, or a UserError."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_input import few, parses_or_says, spoilt
from hypothesis import given
from hypothesis import strategies as st

from interp.models.load import load_model
from tests.tiny import hf

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    module: Any = hf("llama")
    module.save_pretrained(path)
    return path


@few
@given(st.data())
def test_spoilt_files(folder: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    copy = Path(shutil.copytree(folder, tmp_path_factory.mktemp("spoilt") / "m"))
    name = data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    (copy / name).write_bytes(data.draw(spoilt((copy / name).read_bytes())))
    loaded = parses_or_says(lambda: load_model(copy))
    if loaded is not None:
        assert loaded.run([[1, 2, 3]]).logits.shape[:2] == (1, 3)
        assert all(bool(torch.isfinite(p).all()) for p in loaded.module.parameters())
    shutil.rmtree(copy.parent)
