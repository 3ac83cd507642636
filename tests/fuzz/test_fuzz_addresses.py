"""Addresses of sites, selections, names of models and their folders, spoilt: understood, or a UserError."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_input import JSON, SCALAR, TEXT, few, many, parses_or_says, spoilt
from hypothesis import example, given
from hypothesis import strategies as st

import interp
from interp.hooks.addresses import Address
from interp.models import hub
from interp.models.finding import find
from interp.models.folder import read_folder
from interp.models.load import load_model
from interp.models.model import Model
from interp.models.native_folder import save_native
from interp.registry import UserError
from tests.tiny import native, tiny

pytestmark = pytest.mark.long

TOKENS = [[1, 2, 3, 4]]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny("llama")


ADDRESS = st.one_of(
    st.from_regex(r"(L-?\d{1,3}\.)?(z|q|resid_mid|pattern|logits|ln_final|head_out|x)", fullmatch=True),
    st.text("L-0123.zqresid_mdpatn ", max_size=12),
    TEXT,
    st.just("L" + "9" * 5000 + ".z"),
    st.just("L٣.z"),
)


@many
@given(ADDRESS | SCALAR)
def test_addresses(address: Any) -> None:
    read = parses_or_says(lambda: Address.parse(address))
    assert read is None or Address.parse(str(read)) == read


PART = st.one_of(st.integers(-5, 5), st.lists(st.integers(-5, 5), max_size=3), SCALAR, st.sampled_from(["END", "S2"]))
PARTS = st.dictionaries(st.sampled_from(["head", "kv_head", "expert", "neuron", "pos", "key"]), PART, max_size=2)


@many
@given(ADDRESS, PARTS)
def test_edits_and_captures(model: Model, address: Any, parts: dict[str, Any]) -> None:
    run = parses_or_says(lambda: model.run(TOKENS, edits=[interp.zero(address, **parts)]))
    assert run is None or run.logits.shape == (1, 4, model.geometry.d_vocab)
    run = parses_or_says(lambda: model.run(TOKENS, capture=[address]))
    assert run is None or all(isinstance(t, torch.Tensor) for t in run.acts.values())


@many
@given(st.lists(st.lists(st.integers(-2, 70), max_size=6), max_size=3) | JSON)
def test_what_is_run(model: Model, tokens: Any) -> None:
    run = parses_or_says(lambda: model.run(tokens))
    assert run is None or bool(torch.isfinite(run.logits).any())


@many
@given(st.text(max_size=40))
@example("x" * 5000)
@example("a\0b")
@example("~nobody-of-that-name/model")
@example("../" * 2000)
def test_names_of_models(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "fetch", lambda n, r: (_ for _ in ()).throw(UserError(f"the hub has no {n!r}")))
        found = parses_or_says(lambda: find(name))
    assert found is None or found.path.is_dir()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native")
    save_native(native("pre"), path)
    return path


@few
@given(st.data())
def test_spoilt_files_of_a_native_model(folder: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    copy = Path(shutil.copytree(folder, tmp_path_factory.mktemp("spoilt") / "m"))
    name = data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    (copy / name).write_bytes(data.draw(spoilt((copy / name).read_bytes())))
    parses_or_says(lambda: read_folder(copy))
    loaded = parses_or_says(lambda: load_model(copy))
    assert loaded is None or bool(torch.isfinite(loaded.run(TOKENS).logits).all())
    shutil.rmtree(copy.parent)
