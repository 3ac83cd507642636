"""Folders that must not load: each spoilt in one way, each refused in one clear line, nothing of theirs run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import add_tokenizer, edit_config, edit_weights, gpt2_folder

from interp.models.load import load_model
from interp.models.native_folder import save_native
from interp.registry import UserError
from tests.tiny import hf, native

FC = "transformer.h.0.mlp.c_fc.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "spoilt"))


def cut(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_code(folder: Path, name: str) -> None:
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w').write('it ran')\nclass C: pass\n")
    file = folder / name
    config = json.loads(file.read_text()) if file.is_file() else {}
    kinds = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    file.write_text(json.dumps({**config, "auto_map": dict.fromkeys(kinds, "own.C")}))


def nan(weights: dict[str, torch.Tensor]) -> None:
    weights[FC][0, 0] = float("nan")


def noise(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x05" + bytes(7) + b"hello")


def infinite(weights: dict[str, torch.Tensor]) -> None:
    weights["embed.weight"][3, 4] = float("inf")


def narrow(weights: dict[str, torch.Tensor]) -> None:
    weights[FC] = weights[FC][:, :7].clone()


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated data": (lambda p: cut(p, 30_000), "not whole: its header tells .* the file has 30000"),
    "truncated header": (lambda p: cut(p, 100), "cut off in its header"),
    "empty weights": (lambda p: cut(p, 0), "cut off in its header"),
    "header of noise": (noise, "header that is not"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "no \\*.safetensors weights"),
    "pickle only": (pickled, "only pytorch_model.bin: pickled .* not opened"),
    "config cut off": (lambda p: (p / "config.json").write_text('{"model_type": "gpt2",'), "does not parse as JSON"),
    "config is a list": (lambda p: (p / "config.json").write_text("[1]"), "must hold a JSON object, got list"),
    "config of nothing": (lambda p: (p / "config.json").write_text('{"a": 1}'), "describes no model: .* it has a"),
    "no config": (lambda p: (p / "config.json").unlink(), "has no config.json; it holds .*model.safetensors"),
    "unknown type": (lambda p: edit_config(p, model_type="gpt99"), "'gpt99', which transformers .* does not know"),
    "code in config": (lambda p: with_code(p, "config.json"), "code of its own .auto_map., which is never run"),
    "code in tokenizer": (lambda p: with_code(p, "tokenizer_config.json"), "tokenizer_config.json asks for code"),
    "another width": (lambda p: edit_config(p, n_embd=64), "of another shape .*is \\[.*needs \\["),
    "heads that do not divide": (lambda p: edit_config(p, n_head=5), "could not load"),
    "one layer more": (lambda p: edit_config(p, n_layer=3), "missing 12 .*transformer.h.2"),
    "one layer less": (lambda p: edit_config(p, n_layer=1), "unexpected .*transformer.h.1"),
    "a weight missing": (lambda p: edit_weights(p, lambda w: w.pop(FC)), f"missing 1 .{FC}"),
    "embedding missing": (lambda p: edit_weights(p, lambda w: w.pop("transformer.wte.weight")), "missing .*wte.weight"),
    "a weight too many": (lambda p: edit_weights(p, lambda w: w.update(extra=torch.ones(2))), "unexpected 1 .extra"),
    "a wrong shape": (lambda p: edit_weights(p, narrow), "\\[32, 7\\] where .* \\[32, 128\\]"),
    "NaN": (lambda p: edit_weights(p, nan), f"1 weights hold NaN or infinity: {FC}"),
    "untied, no lm_head": (lambda p: edit_config(p, tie_word_embeddings=False), "missing 1 .lm_head.weight"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_spoilt_folder_is_refused_in_one_line(folder: Path, fault: str) -> None:
    spoil, says = FAULTS[fault]
    spoil(folder)
    with pytest.raises(UserError, match=says) as raised:
        load_model(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)
    assert not (folder / "ran").exists()


def test_the_folder_itself_is_fine(folder: Path) -> None:
    assert load_model(folder).geometry.layers == 2


def test_a_tokenizer_that_does_not_load_can_be_left_out(folder: Path) -> None:
    add_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"its tokenizer could not be loaded .*tokenizer=False"):
        load_model(folder)
    assert load_model(folder, tokenizer=False).tokenizer is None


def test_a_file_that_is_no_safetensors(folder: Path) -> None:
    with pytest.raises(UserError, match=r"not a .safetensors file"):
        load_model(folder / "config.json")


def test_shards_load_and_a_lost_one_is_named(tmp_path: Path) -> None:
    module: Any = hf("gpt2")
    module.save_pretrained(tmp_path, max_shard_size="40KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    model = load_model(tmp_path)
    with torch.no_grad():
        assert torch.equal(model.run([[1, 2, 3]]).logits, module(torch.tensor([[1, 2, 3]])).logits)
    shards[-1].unlink()
    with pytest.raises(UserError, match=f"names shards that are not there: {shards[-1].name}"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    with pytest.raises(UserError, match="shards that are not there"):
        load_model(tmp_path)


def test_a_weight_file_of_another_name_loads_by_its_path(folder: Path) -> None:
    expected = load_model(folder).run([[1, 2, 3]]).logits
    (folder / "model.safetensors").rename(folder / "step-500.safetensors")
    assert torch.equal(load_model(folder).run([[1, 2, 3]]).logits, expected)
    shutil.copy(folder / "step-500.safetensors", folder / "step-900.safetensors")
    with pytest.raises(
        UserError, match=r"holds 2 weight files; choose one .*step-500.safetensors, step-900.safetensors"
    ):
        load_model(folder)
    chosen = load_model(folder / "step-900.safetensors")
    assert chosen.name == "spoilt-step-900"
    assert torch.equal(chosen.run([[1, 2, 3]]).logits, expected)
    assert torch.equal(load_model(folder, weights="step-500.safetensors").run([[1, 2, 3]]).logits, expected)


NATIVE_FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "unknown setting": (lambda p: edit_config(p, wings=2), "not a native configuration: wings: Extra"),
    "a setting missing": (lambda p: edit_config(p, heads=None), "not a native configuration: heads"),
    "a weight missing": (lambda p: edit_weights(p, lambda w: w.pop("final.bias")), "missing 1 .final.bias"),
    "a wrong shape": (lambda p: edit_config(p, n_ctx=8), "pos_embed.weight is \\[16, 32\\] where .* \\[8, 32\\]"),
    "NaN": (lambda p: edit_weights(p, infinite), "hold NaN or infinity: embed.weight"),
}  # fmt: skip


@pytest.mark.parametrize("fault", NATIVE_FAULTS)
def test_a_spoilt_native_folder_is_refused_in_one_line(tmp_path: Path, fault: str) -> None:
    save_native(native("pre"), tmp_path)
    spoil, says = NATIVE_FAULTS[fault]
    spoil(tmp_path)
    with pytest.raises(UserError, match=says) as raised:
        load_model(tmp_path)
    assert "\n" not in str(raised.value)
