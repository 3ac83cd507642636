"""TransformerLens-like dictionaries: the trained induction models, and an independent forward written out here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import lens_dictionary
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from interp.hooks.edits import mean
from interp.hooks.prompts import Prompts
from interp.models.load import load_model
from interp.models.model import Model
from interp.registry import UserError

SIZES: dict[str, Any] = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_head": 5, "d_vocab": 11, "n_ctx": 7}
TOKENS = torch.tensor([[1, 4, 9, 2, 10], [3, 3, 0, 7, 5]])


@pytest.fixture(scope="module")
def induction_folder(shared: Path) -> Path:
    return shared / "models" / "induction-2l"


def induction_inputs(n: int, seed: int) -> tuple[Prompts, Tensor]:
    """8 of 26 letters, the first 7 distinct, the last repeating position 1 to 5; and what follows the earlier one."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(26, generator=g)[:8] for _ in range(n)])
    earlier = torch.randint(1, 6, (n,), generator=g)
    rows = torch.arange(n)
    tokens[:, 7] = tokens[rows, earlier]
    return Prompts.of(tokens), tokens[rows, earlier + 1]


def accuracy(model: Model, prompts: Prompts, right: Tensor, **options: Any) -> float:
    return float((model.run(prompts, **options).logits[:, -1].argmax(-1) == right).double().mean())


def test_the_trained_induction_model_does_what_its_notes_say(induction_folder: Path) -> None:
    model = load_model(induction_folder / "l_2_2_model.safetensors")
    assert isinstance(model, Model)
    g = model.geometry
    assert (g.layers, g.heads, g.mlp, g.pre_norm, g.d_vocab) == (2, 1, False, False, 26)
    prompts, right = induction_inputs(4000, seed=0)
    assert accuracy(model, prompts, right) == 1.0
    means = model.means(prompts, ["z"], by="position")
    first = accuracy(model, prompts, right, edits=[mean("L0.z", means, head=0)])
    second = accuracy(model, prompts, right, edits=[mean("L1.z", means, head=0)])
    assert first == pytest.approx(0.000, abs=0.002)
    assert second == pytest.approx(0.014, abs=0.006)


def test_the_heads_attend_where_the_notes_say(induction_folder: Path) -> None:
    model = load_model(induction_folder, weights="l_2_2_model.safetensors")
    prompts, _ = induction_inputs(200, seed=1)
    run = model.run(prompts, capture=["pattern"])
    previous = run["L0.pattern"][:, 0].diagonal(-1, 1, 2)
    assert float(previous[:, 1:].mean()) > 0.9
    earlier = (prompts.tokens[:, :7] == prompts.tokens[:, 7:]).int().argmax(1)
    assert float(run["L1.pattern"][torch.arange(200), 0, 7, earlier + 1].mean()) > 0.9


def test_its_noisier_twin(induction_folder: Path) -> None:
    model = load_model(induction_folder / "finetuned_model_0.safetensors")
    prompts, right = induction_inputs(4000, seed=0)
    assert accuracy(model, prompts, right) == pytest.approx(0.98, abs=0.015)
    with pytest.raises(UserError, match=r"holds 2 weight files.*finetuned_model_0.safetensors, l_2_2_model"):
        load_model(induction_folder)


def written_out(w: dict[str, Tensor], tokens: Tensor, *, mlp: bool, ln: bool, shortformer: bool = False) -> Tensor:
    """The forward pass of such a dictionary, by its definition."""
    pos = w["pos_embed.W_pos"][: tokens.shape[1]]
    x = w["embed.W_E"][tokens] + (0 if shortformer else pos)

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, (x.shape[-1],), w[f"{name}.w"], w[f"{name}.b"], 1e-5) if ln else x

    for n in range(2):
        b = {k.removeprefix(f"blocks.{n}.attn."): t for k, t in w.items()}
        y = norm(x, f"blocks.{n}.ln1")
        reader = y + pos if shortformer else y
        q = torch.einsum("bpm,hmd->bhpd", reader, b["W_Q"]) + b["b_Q"][:, None]
        k = torch.einsum("bpm,hmd->bhpd", reader, b["W_K"]) + b["b_K"][:, None]
        v = torch.einsum("bpm,hmd->bhpd", y, b["W_V"]) + b["b_V"][:, None]
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        seen = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
        z = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        x = x + torch.einsum("bhpd,hdm->bpm", z, b["W_O"]) + b["b_O"]
        if mlp:
            pre = norm(x, f"blocks.{n}.ln2") @ w[f"blocks.{n}.mlp.W_in"] + w[f"blocks.{n}.mlp.b_in"]
            x = x + gelu(pre) @ w[f"blocks.{n}.mlp.W_out"] + w[f"blocks.{n}.mlp.b_out"]
    return norm(x, "ln_final") @ w["unembed.W_U"] + w["unembed.b_U"]


def save(path: Path, weights: dict[str, Tensor], **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**SIZES, **config}))
    save_file(weights, path / "model.safetensors")
    return path


def dictionary(mlp: int, ln: bool) -> dict[str, Tensor]:
    return lens_dictionary(2, 3, 12, 5, 11, 7, mlp, ln)


@pytest.mark.parametrize("mlp", [0, 20])
@pytest.mark.parametrize("ln", [False, True])
@pytest.mark.parametrize("shortformer", [False, True])
def test_logits_are_those_of_the_definition(tmp_path: Path, mlp: int, ln: bool, shortformer: bool) -> None:
    weights = dictionary(mlp, ln)
    model = load_model(save(
        tmp_path, weights, attn_only=not mlp, d_mlp=mlp or None, act_fn="gelu", normalization_type="LN" if ln else None,
        positional_embedding_type="shortformer" if shortformer else "standard",
    ))  # fmt: skip
    expected = written_out(weights, TOKENS, mlp=bool(mlp), ln=ln, shortformer=shortformer)
    assert torch.allclose(model.run(TOKENS).logits, expected, atol=1e-5)
    assert float(expected.std()) > 0.1


def test_absent_gains_and_biases_count_as_one_and_zero(tmp_path: Path) -> None:
    full = dictionary(0, True)
    gone = {n for n in full if n.startswith("ln_final") or ".ln1." in n or n.endswith(("b_Q", "b_O"))}
    assumed = {
        n: (torch.ones_like(t) if n.endswith(".w") else torch.zeros_like(t)) if n in gone else t
        for n, t in full.items()
    }
    kept = {n: t for n, t in full.items() if n not in gone}
    kept["blocks.0.attn.mask"] = torch.ones(7, 7)
    model = load_model(save(tmp_path, kept, attn_only=True, normalization_type="LNPre"))
    assert torch.allclose(model.run(TOKENS).logits, written_out(assumed, TOKENS, mlp=False, ln=True), atol=1e-5)


BASE: dict[str, Any] = {"attn_only": True, "normalization_type": None}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"normalization_type": "RMS"},
            "no normalization_type='RMS'; there are: None, LN, LNPre",
        ),
        ({"positional_embedding_type": "alibi"}, "no positional_embedding_type='alibi'"),
        ({"gated_mlp": True}, "no gated_mlp=True"),
        ({"attn_scale": 1.0}, "no attn_scale=1.0"),
        ({"attn_only": False, "act_fn": "solu_ln"}, "no act_fn='solu_ln'; there are: relu, gelu, silu"),
        ({"n_layers": 3}, r"missing 8 .blocks.2.attn.W_K"),
        ({"d_vocab": 12}, r"embed.W_E is \[11, 12\] where the configuration needs \[12, 12\]"),
        ({"n_heads": None}, "needs a whole number n_heads, got None"),
        ({"n_ctx": 0}, "n_ctx"),
    ],
)
def test_what_native_models_lack_is_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    weights = dictionary(0, False)
    with pytest.raises(UserError, match=says) as raised:
        load_model(save(tmp_path, weights, **{**BASE, **config}))
    assert "\n" not in str(raised.value)


def test_the_usual_scale_may_be_spelt_out(tmp_path: Path) -> None:
    weights = dictionary(0, False)
    model = load_model(save(tmp_path, weights, **BASE, attn_scale=5**0.5, use_attn_scale=True))
    assert torch.allclose(model.run(TOKENS).logits, written_out(weights, TOKENS, mlp=False, ln=False), atol=1e-5)


def test_a_bias_missing_in_one_layer_only_is_an_error(tmp_path: Path) -> None:
    weights = dictionary(0, False)
    weights.pop("blocks.1.attn.b_V")
    with pytest.raises(UserError, match=r"missing 1 .blocks.1.attn.b_V"):
        load_model(save(tmp_path, weights, **BASE))
