"""Families without a row through TransformerLens' bridge; and the bridge as a second oracle for those with one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import edit_config, gpt2_folder, network_watched

from interp.hooks.prompts import Prompts
from interp.models import tiny as tiny_checkpoints
from interp.models.bridge import BridgeModel
from interp.models.families import family_of
from interp.models.load import load_model
from interp.registry import UserError
from tests.tiny import VOCAB, hf, tiny

TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
ROWLESS = [name for name in tiny_checkpoints.ROWLESS if family_of(name) is None]
"""Families that the bridge knows; those that have a row by now are left out."""


@pytest.fixture(scope="module")
def rowless(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    if not ROWLESS:
        pytest.skip(f"each of {', '.join(tiny_checkpoints.ROWLESS)} has a family row by now")
    path = tmp_path_factory.mktemp("models") / ROWLESS[0]
    tiny_checkpoints.rowless(ROWLESS[0]).save_pretrained(path)  # type: ignore[operator]
    return ROWLESS[0], path


@pytest.fixture(scope="module")
def model(rowless: tuple[str, Path]) -> BridgeModel:
    loaded = load_model(rowless[1])
    assert isinstance(loaded, BridgeModel)
    return loaded


def test_a_family_without_a_row_loads_and_says_what_it_cannot_do(
    rowless: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="interp"), network_watched() as tries:
        model = load_model(str(rowless[1]))
    assert isinstance(model, BridgeModel)
    assert "plain forward" in model.limits
    assert [r for r in caplog.records if rowless[0] in r.message and "no family row" in r.message]
    assert tries == []


LEAKS = {"openai-gpt": ("left", "right"), "rwkv": ("left",)}
"""Families whose own code, or the bridge, lets padding change the numbers of a prompt."""


@pytest.mark.parametrize("model_type", ROWLESS)
def test_logits_are_the_modules_own(model_type: str, tmp_path: Path) -> None:
    """Plain and padded on either side; where padding would leak it is refused."""
    module = tiny_checkpoints.rowless(model_type)
    module.save_pretrained(tmp_path)  # type: ignore[operator]
    model = load_model(tmp_path)
    assert isinstance(model, BridgeModel)
    ids = torch.cat([TOKENS, TOKENS.flip(0)], 1)  # longer than every window, and than what was compared at loading
    with torch.no_grad():
        expected, alone = module(ids).logits, module(ids[:1, :4]).logits[0]
    assert torch.allclose(model.run(ids).logits, expected, atol=1e-5)
    for side in ("left", "right"):
        both = Prompts.of([ids[1].tolist(), ids[0, :4].tolist()], pad_side=side)
        if side in LEAKS.get(model_type, ()):
            with pytest.raises(UserError, match=f"padded on the {side} other logits than alone; run prompts of one"):
                model.run(both)
        else:
            assert torch.allclose(model.run(both).logits[1][both.mask[1]], alone, atol=1e-5)


def test_captures_are_the_modules_hidden_states(model: BridgeModel, rowless: tuple[str, Path]) -> None:
    run = model.run(TOKENS, capture="blocks.0.hook_out")
    with torch.no_grad():
        hidden = tiny_checkpoints.rowless(rowless[0])(TOKENS, output_hidden_states=True).hidden_states
    assert torch.allclose(run.acts["blocks.0.hook_out"], hidden[1], atol=1e-5)


def test_functions_change_the_pass_and_are_gone_afterwards(model: BridgeModel) -> None:
    before = model.run(TOKENS).logits
    with model.hooks(("blocks.1.hook_in", lambda x, hook: torch.zeros_like(x))):
        changed = model.run(TOKENS, capture=["blocks.1.hook_in"])
    assert float(changed.acts["blocks.1.hook_in"].abs().max()) == 0.0
    assert torch.allclose(changed.logits, changed.logits[:1, :1].expand_as(changed.logits), atol=1e-5)
    assert not torch.allclose(changed.logits, before, atol=1e-2)

    def broken(x: torch.Tensor, hook: Any) -> torch.Tensor:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), model.hooks(("blocks.1.hook_in", broken)):
        model.run(TOKENS)
    assert torch.equal(model.run(TOKENS).logits, before)


def test_names_that_do_not_exist_or_would_never_fire_are_refused(model: BridgeModel) -> None:
    with pytest.raises(UserError, match=r"unknown hook.*did you mean blocks.0.hook_out"):
        model.run(TOKENS, capture=["blocks.0.hook_outt"])
    with pytest.raises(UserError, match="unknown hook"), model.hooks(("L0.z", lambda x, hook: x)):
        pass
    gated = [n for n in model.bridge.hook_dict if n.endswith(("attn.hook_result", "hook_mlp_in", "hook_q_input"))]
    for name in gated:
        with pytest.raises(UserError, match="unknown hook"):
            model.run(TOKENS, capture=[name])


def test_every_hook_name_it_lists_fires(model: BridgeModel) -> None:
    names = model.hook_names()
    assert {"blocks.0.hook_in", "blocks.1.hook_out", "blocks.0.attn.hook_out", "blocks.1.mlp.hook_out"} <= set(names)
    assert set(model.run(TOKENS, capture=names).acts) == set(names)


def test_a_bridge_whose_logits_are_not_the_checkpoints_is_refused(
    rowless: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_lens.model_bridge import sources

    real = sources.build_bridge_from_module

    def halved(module: Any, *args: Any, **options: Any) -> Any:
        bridge = real(module, *args, **options)
        with torch.no_grad():
            next(iter(bridge.original_model.parameters())).mul_(0.5)
        return bridge

    monkeypatch.setattr(sources, "build_bridge_from_module", halved)
    with pytest.raises(UserError, match=r"gives other logits than the checkpoint itself \(off by"):
        load_model(rowless[1])


def test_what_it_lacks_is_refused_with_the_reason(model: BridgeModel) -> None:
    from interp.hooks.edits import zero

    with pytest.raises(UserError, match="takes no edits or gradients"):
        model.run(TOKENS, edits=[zero("L0.z")])
    with pytest.raises(UserError, match="has no geometry"):
        _ = model.geometry
    with pytest.raises(UserError, match="forward only"), model.hooks(("blocks.0.hook_out", print, "backward")):  # type: ignore[arg-type]
        pass
    with pytest.raises(UserError, match="outside the vocabulary"):
        model.run([[VOCAB]])
    with pytest.raises(UserError, match="no tokenizer"):
        model.run("the king")


def test_a_module_without_a_row_is_never_handed_over() -> None:
    if not ROWLESS:
        pytest.skip("every candidate has a family row by now")
    module = tiny_checkpoints.rowless(ROWLESS[0])
    before = {n: type(m) for n, m in module.named_modules()}
    with pytest.raises(UserError, match=r"no family row for model_type.*register_family"):
        load_model(module)
    assert {n: type(m) for n, m in module.named_modules()} == before


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
def test_on_a_family_with_a_row_it_is_a_second_oracle(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hf(kind).save_pretrained(tmp_path)  # type: ignore[operator]
    model = load_model(tmp_path, bridge=True)
    assert isinstance(model, BridgeModel)
    own = tiny(kind)
    assert torch.allclose(model.run(TOKENS).logits, own.run(TOKENS).logits, atol=1e-5)
    assert model.weights_hash() == own.weights_hash()
    assert not caplog.records


def test_an_architecture_that_nobody_knows_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    path = gpt2_folder(tmp_path / "odd")
    edit_config(path, model_type="xlnet", architectures=["XLNetLMHeadModel"])
    with pytest.raises(UserError, match=r"'xlnet' has no family row.*XLNetLMHeadModel.*register_family"):
        load_model(path)
