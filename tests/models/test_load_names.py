"""Where names lead, what comes back, and that loading leaves no trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import WORDS, add_tokenizer, edit_weights, gpt2_folder, network_watched

from interp.models import zoo
from interp.models.load import load_model
from interp.models.native_folder import save_native
from interp.models.tiny import save
from interp.registry import UserError
from tests.tiny import HF_KINDS, hf, native, tiny

TOKENS = [[1, 2, 3, 4, 5, 6]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("models") / "small")


def test_a_folder_gives_the_modules_own_logits_bit_for_bit(folder: Path) -> None:
    own: Any = hf("gpt2")
    with network_watched() as tries:
        model = load_model(str(folder))
    with torch.no_grad():
        expected = own(torch.tensor(TOKENS)).logits
    assert torch.equal(model.run(TOKENS).logits, expected)
    assert (model.name, model.revision, tries) == ("small", "", [])


def test_loaded_weights_are_frozen_and_in_eval_mode(folder: Path) -> None:
    model = load_model(folder)
    assert not model.module.training
    assert not any(p.requires_grad for p in model.module.parameters())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float64", torch.float64), ("bfloat16", torch.bfloat16), ("float16", torch.float16), (None, torch.float32)],
)
def test_dtype_is_as_asked_or_as_stored(folder: Path, name: str | None, dtype: torch.dtype) -> None:
    model = load_model(folder, dtype=name)
    assert {p.dtype for p in model.module.parameters()} == {dtype}
    assert model.run(TOKENS).logits.dtype == dtype


@pytest.mark.parametrize("kind", HF_KINDS)
def test_float64_runs_and_says_what_float32_says(kind: str, tmp_path: Path) -> None:
    save(kind, tmp_path / "saved")
    double, single = (load_model(tmp_path / "saved", dtype=dtype).run(TOKENS).logits for dtype in ("float64", None))
    assert double.dtype == torch.float64
    torch.testing.assert_close(double, single.double(), atol=1e-5, rtol=1e-5)


def test_a_native_folder_round_trips(tmp_path: Path) -> None:
    save_native(native("rotary"), tmp_path / "mine")
    with network_watched() as tries:
        model = load_model(tmp_path / "mine", dtype="float64")
    expected = tiny("native:rotary").run(TOKENS).logits
    assert torch.allclose(model.run(TOKENS).logits, expected.double(), atol=1e-5)
    assert model.dtype == torch.float64
    assert torch.equal(load_model(tmp_path / "mine").run(TOKENS).logits, expected)
    assert tries == []


def test_an_embedded_name_is_listed_without_torch_and_loads_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_native(native("pre"), tmp_path / "toy-x")
    monkeypatch.setattr(zoo, "folders", lambda: {"toy-x": tmp_path / "toy-x"})
    with network_watched() as tries:
        model = load_model("toy-x")
    assert (model.name, tries) == ("toy-x", [])
    code = "import sys, interp.models.zoo as z; z.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", zoo.names())
def test_every_embedded_model_loads_and_has_a_tokenizer_and_a_card(name: str) -> None:
    with network_watched() as tries:
        model = load_model(name)
    assert model.name == name
    assert model.tokenizer is not None
    assert (zoo.folders()[name] / "card.json").is_file()
    assert torch.isfinite(model.run(TOKENS).logits).all()
    assert tries == []


def test_the_folder_s_tokenizer_is_used_where_there_is_one(folder: Path, tmp_path: Path) -> None:
    path = gpt2_folder(tmp_path / "words")
    add_tokenizer(path)
    with network_watched() as tries:
        model = load_model(path)
    assert model.prompts("the king of France").tokens.tolist() == [
        [WORDS.index(w) for w in ["the", "king", "of", "France"]]
    ]
    assert tries == []
    assert load_model(path, tokenizer=False).tokenizer is None
    assert load_model(folder, tokenizer=path).to_text([2, 6]) == ["king", "bald"]


def test_without_a_tokenizer_token_ids_work_and_text_raises(folder: Path) -> None:
    model = load_model(folder)
    assert model.run(TOKENS).logits.shape == (1, 6, 50)
    with pytest.raises(UserError, match="no tokenizer"):
        model.run("the king")
    with pytest.raises(UserError, match="holds no tokenizer"):
        load_model(folder, tokenizer=folder)


def test_a_name_that_is_nowhere_says_what_was_tried_and_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(zoo, "folders", lambda: {"toy-ioi": Path("x")})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as raised:
        load_model("toy-iio")
    said = str(raised.value)
    for part in ("'toy-iio'", "did you mean toy-ioi", "there are: toy-ioi", "toy-iio does not exist", "the hub"):
        assert part in said, part
    assert "\n" not in said
    with pytest.raises(UserError, match="not the hub"):
        load_model("./no/such/folder")
    with pytest.raises(UserError, match="empty"):
        load_model(" ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "float8"}, "unknown dtype 'float8'.*float32, bfloat16"),
        ({"device": "warp"}, "device 'warp' cannot be used here"),
        ({"revision": "main"}, "revision='main' is for hub names"),
        ({"device": "cpu", "device_map": "auto"}, "not both"),
        ({"weights": "other.safetensors"}, "unknown weight file.*other.safetensors.*model.safetensors"),
    ],
)
def test_options_that_do_not_fit(folder: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_model(folder, **options)


def test_loading_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    from transformers.utils import logging

    spoilt = gpt2_folder(tmp_path / "spoilt")
    edit_weights(spoilt, lambda w: w.pop("transformer.h.0.mlp.c_fc.weight"))
    level, bars, drawn = logging.get_verbosity(), logging.is_progress_bar_enabled(), torch.get_rng_state()
    load_model(folder)
    with pytest.raises(UserError):
        load_model(spoilt)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (level, bars)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_loading_is_quiet(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(folder)
    assert capfd.readouterr() == ("", "")


def test_a_module_is_taken_as_it_is() -> None:
    from transformers import AutoModelForCausalLM

    module: Any = AutoModelForCausalLM.from_config(hf("llama").config, attn_implementation="sdpa").train()
    fired = []
    module.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: fired.append(1))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    classes = {name: type(m) for name, m in module.named_modules()}
    model = load_model(module)
    model.run(TOKENS)
    assert model.module is module
    assert fired == [1]
    assert module.training
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    assert module.config._attn_implementation == "sdpa"
    assert {name: type(m) for name, m in module.named_modules()} == classes
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_a_native_module_is_taken_too() -> None:
    module = native("pre")
    assert torch.equal(load_model(module).run(TOKENS).logits, tiny("native:pre").run(TOKENS).logits)


def test_what_is_no_model_raises() -> None:
    with pytest.raises(UserError, match=r"takes a name.*got Linear"):
        load_model(torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match="taken as it is: leave out dtype"):
        load_model(hf("gpt2"), dtype="float64")
    with pytest.raises(UserError, match=r"has no module 'transformer.h'"):
        load_model(hf("gpt2").transformer)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run by us: needs two devices")
def test_device_map_spreads_a_model_over_two_devices(folder: Path) -> None:
    spread = {"transformer.wte": 0, "transformer.wpe": 0, "transformer.h.0": 0, "transformer.h.1": 1}
    model = load_model(folder, device_map={**spread, "transformer.ln_f": 1, "lm_head": 1})
    assert len({p.device for p in model.module.parameters()}) == 2
    assert torch.allclose(model.run(TOKENS).logits.cpu(), load_model(folder).run(TOKENS).logits, atol=1e-4)


def test_device_map_is_passed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    seen = []
    real = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *a, **k: (seen.append(k.get("device_map")), real(*a, **k))[1]
    )
    model = load_model(folder, device_map={"": "cpu"})
    assert seen == [{"": "cpu"}]
    assert torch.equal(model.run(TOKENS).logits, tiny("gpt2").run(TOKENS).logits)
