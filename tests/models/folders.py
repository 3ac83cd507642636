"""Model folders for the tests of loading: tiny checkpoints saved to disk, spoilt in one way each."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny import hf

WORDS = ["<unk>", "the", "king", "of", "France", "is", "bald"]


def gpt2_folder(path: Path, **over: Any) -> Path:
    """A folder with the tiny GPT-2 as save_pretrained writes it, without a tokenizer."""
    module: Any = hf("gpt2", **over)
    module.save_pretrained(path)
    return path


def add_tokenizer(path: Path) -> None:
    """A word-level tokenizer of seven words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(path)


def edit_config(path: Path, **changes: Any) -> None:
    """Change keys of a folder's config.json; None removes one."""
    file = path / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def edit_weights(path: Path, change: Any) -> None:
    """Rewrite model.safetensors after `change` has altered its dictionary."""
    file = path / "model.safetensors"
    tensors: dict[str, Tensor] = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@contextmanager
def network_watched() -> Iterator[list[str]]:
    """Every attempt to look a host up or to connect, also those whose failure is swallowed."""
    tries: list[str] = []

    def refuse(*args: Any, **_: Any) -> None:
        tries.append(str(args[-1] if args else ""))
        raise OSError("no network in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(socket, "create_connection", refuse)
        patch.setattr(socket.socket, "connect", refuse)
        yield tries


def lens_dictionary(
    layers: int, heads: int, d: int, dh: int, vocab: int, ctx: int, mlp: int, ln: bool
) -> dict[str, Tensor]:
    """Random weights in TransformerLens' layout."""
    g = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=g)

    out = {"embed.W_E": draw(vocab, d), "pos_embed.W_pos": draw(ctx, d), "unembed.W_U": draw(d, vocab)}
    out["unembed.b_U"] = draw(vocab)
    for n in range(layers):
        for c in "QKV":
            out[f"blocks.{n}.attn.W_{c}"] = draw(heads, d, dh)
            out[f"blocks.{n}.attn.b_{c}"] = draw(heads, dh)
        out[f"blocks.{n}.attn.W_O"], out[f"blocks.{n}.attn.b_O"] = draw(heads, dh, d), draw(d)
        if mlp:
            out[f"blocks.{n}.mlp.W_in"], out[f"blocks.{n}.mlp.b_in"] = draw(d, mlp), draw(mlp)
            out[f"blocks.{n}.mlp.W_out"], out[f"blocks.{n}.mlp.b_out"] = draw(mlp, d), draw(d)
        for name in () if not ln else ("ln1", "ln2") if mlp else ("ln1",):
            out[f"blocks.{n}.{name}.w"], out[f"blocks.{n}.{name}.b"] = 1 + draw(d), draw(d)
    if ln:
        out["ln_final.w"], out["ln_final.b"] = 1 + draw(d), draw(d)
    return out
