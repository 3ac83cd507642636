"""The codec: exactly one BOS or none, answers without it, unknown words, no tokenizer."""

from __future__ import annotations

import pytest
from task_stand_ins import StandIn, bare, geometry, gpt2, gpt2_tokenizer, toy, word_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers

from interp.registry import UserError
from interp.tasks.tokens import Codec


def sentencepiece_like() -> StandIn:
    """A tokenizer that puts its own word mark before every text, as Llama's does."""
    pieces = ["<unk>", "<s>", "▁", "▁a", "▁Mary", "Mary", "▁and", "52", "a", "5", "2"]
    merges: list[tuple[str, str]] = []
    vocab = {p: i for i, p in enumerate(pieces)}
    for word in ("▁a", "▁Mary", "Mary", "▁and", "52"):
        left = word[0]
        for ch in word[1:]:
            vocab.setdefault(ch, len(vocab))
            vocab.setdefault(left, len(vocab))
            vocab.setdefault(left + ch, len(vocab))
            if (left, ch) not in merges:
                merges.append((left, ch))
            left += ch
    tok = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Replace("▁", " ")
    tok.add_special_tokens(["<unk>", "<s>"])
    return StandIn(tok, geometry(tok.get_vocab_size()))


@pytest.mark.parametrize("own_bos", [False, True])
def test_exactly_one_bos_or_none_as_asked(own_bos: bool) -> None:
    codec = Codec.of(toy(own_bos))
    assert codec.adds_bos is own_bos
    plain = codec.encode("When Mary and John went")
    assert codec.bos_id == 1
    assert plain.count(1) == 0
    assert len(plain) == 5
    assert codec.encode("When Mary and John went", bos=True) == [1, *plain]
    assert codec.encode("<bos> When Mary and John went", bos=True) == [1, *plain]
    assert codec.answer(" Mary") == [plain[1]]
    assert codec.with_bos([1, 5, 6], True) == [1, 5, 6]
    assert codec.with_bos([5, 6], True) == [1, 5, 6]
    assert codec.with_bos([5, 6], False) == [5, 6]


def test_transformers_tokenizer_and_its_backend_agree() -> None:
    wrapped, plain = Codec.of(gpt2()), Codec(gpt2_tokenizer(), 50257)
    for codec in (wrapped, plain):
        assert codec.bos_id == 50256
        assert codec.encode(" Mary John", bos=True) == [50256, 5335, 1757]
        assert codec.encode(" Mary John") == [5335, 1757]
        assert codec.answer(" Mary") == [5335]
        assert codec.single(" Mary") == 5335
        assert codec.single(" Mary John") is None
        assert codec.decode([5335]) == " Mary"
        assert codec.adds_bos is False
        with pytest.raises(UserError, match="bos=True"):
            codec.encode("<|endoftext|>Mary")


def test_answers_of_a_tokenizer_with_word_marks() -> None:
    codec = Codec.of(sentencepiece_like())
    token = codec.tokenizer.token_to_id
    assert codec.encode("Mary and") == [token("▁Mary"), token("▁and")]
    assert codec.answer(" Mary") == [token("▁Mary")]
    assert codec.answer("52") == [token("52")]
    assert codec.bos_id == token("<s>")


def test_unknown_words_raise_and_are_named() -> None:
    codec = Codec.of(toy())
    with pytest.raises(UserError, match="vocabulary: 'Zebulon'"):
        codec.encode("When Mary and Zebulon went")
    with pytest.raises(UserError, match="vocabulary"):
        codec.answer(" Zebulon")
    assert codec.single(" Zebulon") is None


def test_a_word_level_tokenizer_without_an_unknown_token() -> None:
    tok = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="<none>"))
    with pytest.raises(UserError, match="cannot be encoded"):
        Codec(tok, 2).encode("c")
    other = Tokenizer(models.WordLevel({"x": 0, "<bos>": 1}, unk_token="<none>"))
    assert Codec(other, 2).encode("x", bos=True) == [1, 0]


def test_no_tokenizer_text_raises_and_ids_work() -> None:
    codec = Codec.of(bare())
    with pytest.raises(UserError, match="no tokenizer"):
        codec.encode("hello")
    with pytest.raises(UserError, match="no tokenizer"):
        codec.answer(" Mary")
    assert codec.with_bos([3, 4], False) == [3, 4]
    with pytest.raises(UserError, match="BOS"):
        codec.with_bos([3, 4], True)
    assert codec.decode([3, 4]) == "[3 4]"


def test_no_bos_token() -> None:
    tok = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    with pytest.raises(UserError, match="no BOS token"):
        Codec(tok, 3).encode("a", bos=True)


def test_tokens_beyond_the_model_s_vocabulary_raise() -> None:
    with pytest.raises(UserError, match="outside the model's vocabulary of 4"):
        Codec(word_tokenizer(["x", "y", "z"]), 4).encode("x y z")


def test_locate() -> None:
    codec = Codec.of(gpt2())
    text = "The war lasted from the year 1732 to"
    at = text.index("1732")
    ids, index = codec.locate(text, {"XX": (at, at + 2), "YY": (at + 2, at + 4), "war": (4, 7)})
    assert codec.decode([ids[index["XX"]]]) == " 17"
    assert codec.decode([ids[index["YY"]]]) == "32"
    assert index["war"] == 1
    text = text.replace("1732", "1700")  # one token of its own in GPT-2
    with pytest.raises(UserError, match="is not one token"):
        codec.locate(text, {"XX": (at, at + 2)})
    toy_ids, toy_index = Codec.of(toy()).locate("When Mary went", {"A": (5, 9)})
    assert toy_index == {"A": 1}
    assert len(toy_ids) == 3
