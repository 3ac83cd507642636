"""The word-level vocabulary of `toy-ioi`: the lexicon, the templates' own words, and punctuation.

One token a word; a year is two tokens, century and two digits ("1732" is "17" "32"), as GPT-2 cuts it. Spaces
only separate: " Mary" and "Mary" are the same token. `<bos>` exists and is never added by the tokenizer itself;
the grammar begins half of its rows with it. `save_tokenizer` writes the two files that `transformers` loads.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from interp.tasks import lexicon, templates

PAD, BOS, UNK = "<pad>", "<bos>", "<unk>"
SPECIAL = (PAD, BOS, UNK)
PUNCTUATION = (".", ",")
WORD = r"\d{2}|[A-Za-z]+|[^\sA-Za-z\d]"
"""What counts as one token: two digits, a run of letters, or a sign."""


def split(text: str) -> list[str]:
    """The words of a text, as the saved tokenizer cuts them.

    >>> split("The war began in 1732, and")
    ['The', 'war', 'began', 'in', '17', '32', ',', 'and']
    """
    return re.findall(WORD, text)


def _template_words() -> list[str]:
    every = (*templates.IOI, *templates.GREATER_THAN, *templates.SUBJECT_VERB)
    return [word for template in every for word in split(template.words)]


@lru_cache(maxsize=1)
def vocabulary() -> dict[str, int]:
    """Token -> id; special tokens first, then names, then the rest of the lexicon, years, template words."""
    forms = [word for pair in (*lexicon.NOUNS, *lexicon.ATTRACTORS, *lexicon.VERBS) for word in pair]
    words = [
        *SPECIAL, *PUNCTUATION, *lexicon.NAMES, *lexicon.PLACES, *lexicon.OBJECTS, *forms,
        *lexicon.PREPOSITIONS, *lexicon.EVENTS, *lexicon.YEARS, *lexicon.CENTURIES, *_template_words(),
    ]  # fmt: skip
    return {word: i for i, word in enumerate(dict.fromkeys(words))}


def encode(text: str) -> list[int]:
    """Token ids of a text, without special tokens; an unknown word is `<unk>`."""
    known = vocabulary()
    return [known.get(word, known[UNK]) for word in split(text)]


def save_tokenizer(folder: Path, n_ctx: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, loadable offline by `AutoTokenizer.from_pretrained`."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNK))
    # invert: the pattern says what to keep, so whatever it misses (spaces) is dropped
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS, "eos_token": BOS, "unk_token": UNK, "pad_token": PAD,
        "add_bos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": n_ctx,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
