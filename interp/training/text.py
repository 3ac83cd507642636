"""Natural text for small language models: a folder of .txt files, one held out, a byte-level BPE of its own.

The shortest file is held out whole: neither the tokenizer nor the model sees any of it. The tokenizer is trained
on the others alone, on their text in the order of the file names (so the same files give the same tokens).

Source: byte-level BPE as in GPT-2 (Radford et al. 2019). The text itself is never written anywhere.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from interp.registry import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
END_ID = 0
LEAST_TOKENS = 2_000


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens of the training files, joined, and of the file held out."""

    tokenizer: Tokenizer
    train: Int[Tensor, " token"]
    held_out: Int[Tensor, " held_out_token"]
    names: tuple[str, ...]
    held_out_name: str
    digest: str
    """sha256 of all files, names and contents."""


def read_corpus(folder: Path | str, vocabulary: int) -> Corpus:
    """Read the folder's .txt files and train a tokenizer of `vocabulary` tokens on all but the shortest.

    Raises UserError where there are fewer than two files, or too little text in either part.
    """
    texts, held = _read(folder)
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}\0{text}\0".encode())
    tokenizer = train_tokenizer([t for n, t in texts.items() if n != held], vocabulary)
    train = torch.cat([torch.tensor(tokenizer.encode(t).ids) for n, t in texts.items() if n != held])
    held_out = torch.tensor(tokenizer.encode(texts[held]).ids)
    if min(len(train), len(held_out)) < LEAST_TOKENS:
        raise UserError(
            f"text {folder}: {len(train)} tokens to train on and {len(held_out)} held out ({held}); "
            f"each part needs at least {LEAST_TOKENS}"
        )
    return Corpus(tokenizer, train, held_out, tuple(n for n in texts if n != held), held, digest.hexdigest())


def held_out_text(folder: Path | str) -> tuple[str, str]:
    """Name and text of the file that a model trained on this folder has not seen."""
    texts, held = _read(folder)
    return held, texts[held]


def _read(folder: Path | str) -> tuple[dict[str, str], str]:
    """Every .txt file by name, in order, and the name of the one held out."""
    path = Path(folder)
    files = sorted(path.glob("*.txt")) if path.is_dir() else []
    if len(files) < 2:
        what = f"{len(files)} .txt file{'s' if len(files) != 1 else ''}" if path.is_dir() else "no such folder"
        raise UserError(f"text {folder}: {what}; a folder with at least 2 .txt files is needed (one is held out)")
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    return texts, min(texts, key=lambda name: (len(texts[name]), name))


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE of `vocabulary` tokens; token 0 is `<|endoftext|>`, which no text becomes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    if made.get_vocab_size() != vocabulary:
        raise UserError(f"the text gives {made.get_vocab_size()} tokens, {vocabulary} were asked for: too little text")
    return made  # type: ignore[no-any-return]


def save_tokenizer(tokenizer: Tokenizer, folder: Path, n_ctx: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, loadable offline by `AutoTokenizer.from_pretrained`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT,
        "add_bos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": n_ctx,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
