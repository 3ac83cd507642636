"""What is published for GPT-2 small, as data: each fact with its unit and source.

`published` is null where the source names a head without a number; `among` then says that it is one of the k
largest of all heads (k smallest where `least`), where the source says so. `tolerance` is set where the source's own
prompts and arithmetic can be repeated exactly, so that the two numbers must agree; elsewhere prompts of our own
stand in for theirs and the two are only to be read beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Head = tuple[int, int]

IOI_PAPER = "arXiv 2211.00593"
IOI_CODE = "redwoodresearch/Easy-Transformer, easy_transformer/ioi_circuit_extraction.py; ArthurConmy/ACDC, acdc/ioi"
ARENA = "ARENA 3.0, 1.4.1 Indirect Object Identification, expected output"
DLA_DEMO = "TransformerLens, demos/Direct_Logit_Attribution_Demo.ipynb"
LENS_TESTS = "TransformerLens, tests/acceptance/test_hooked_transformer.py"
INDUCTION = "ARENA 3.0, 1.2 and 1.4.1: induction heads of GPT-2 small"
YEARS_PAPER = "arXiv 2305.00586"
YEARS_CODE = "ArthurConmy/ACDC, acdc/greaterthan/utils.py"

IOI_HEADS: Mapping[str, tuple[Head, ...]] = {
    "name mover": ((9, 9), (10, 0), (9, 6)),
    "backup name mover": ((10, 10), (10, 6), (10, 2), (10, 1), (11, 2), (9, 7), (9, 0), (11, 9)),
    "negative name mover": ((10, 7), (11, 10)),
    "S-inhibition": ((7, 3), (7, 9), (8, 6), (8, 10)),
    "induction": ((5, 5), (5, 8), (5, 9), (6, 9)),
    "duplicate token": ((0, 1), (0, 10), (3, 0)),
    "previous token": ((2, 2), (4, 11)),
}
"""The IOI circuit's heads by class."""

IOI_PLACES: Mapping[str, str] = {
    "name mover": "END", "backup name mover": "END", "negative name mover": "END", "S-inhibition": "END",
    "induction": "S2", "duplicate token": "S2", "previous token": "S1+1",
}  # fmt: skip
"""The token at which each class belongs to the circuit."""

IOI_QUANTITY: Mapping[str, str] = {
    "name mover": "direct effect", "backup name mover": "direct effect", "negative name mover": "direct effect",
    "S-inhibition": "effect through name movers' queries", "induction": "induction score",
    "duplicate token": "duplicate-token score", "previous token": "previous-token score",
}  # fmt: skip
"""What we measure of each class."""

YEARS_HEADS: tuple[Head, ...] = ((0, 1), (0, 3), (0, 5), (5, 5), (6, 1), (6, 9), (7, 10), (8, 11), (9, 1))
YEARS_MLPS: tuple[int, ...] = (0, 1, 2, 3, 8, 9, 10, 11)
INDUCTION_HEADS: tuple[Head, ...] = ((5, 1), (5, 5), (6, 9), (7, 2), (7, 10))

EIGHT_PROMPTS: tuple[tuple[str, str, str], ...] = tuple(
    (f"{text},{again} gave {gift} to", other, again)
    for text, pair, gift in (
        ("When John and Mary went to the shops", (" Mary", " John"), "the bag"),
        ("When Tom and James went to the park", (" Tom", " James"), "the ball"),
        ("When Dan and Sid went to the shops", (" Dan", " Sid"), "an apple"),
        ("After Martin and Amy went to the park", (" Martin", " Amy"), "a drink"),
    )
    for other, again in (pair, pair[::-1])
)
"""(prompt, right, wrong); prompts 2i and 2i+1 are each other's corrupt version."""
EIGHT_DIFFERENCES = (3.337, 3.202, 2.709, 3.797, 1.720, 5.281, 2.601, 5.767)

ONE_PROMPT = ("After John and Mary went to the store, John gave a bottle of milk to", " Mary", " John")
DLA_PROMPT = ("When John and Mary went to the shops, John gave the bag to", " Mary", " John")
DLA_HEADS: Mapping[Head, float] = {
    (9, 9): 1.9583, (9, 6): 1.6281, (10, 7): -1.4267, (11, 1): -0.9117, (11, 10): -0.9042, (10, 0): 0.6370,
    (10, 10): 0.4524, (8, 10): 0.4264,
}  # fmt: skip
LOSS_TEXT = "Hello world!"


@dataclass(frozen=True)
class Fact:
    """One published statement."""

    topic: str
    quantity: str
    place: str
    """A head such as L9H9 with its class, a prompt's number, or what is knocked out; empty where there is none."""
    published: float | None
    unit: str
    source: str
    tolerance: float | None = None
    among: int | None = None
    least: bool = False


def head_name(head: Head) -> str:
    """L9H9."""
    return f"L{head[0]}H{head[1]}"


def _ioi() -> list[Fact]:
    behaviour = (
        ("logit difference", "", 3.56, "logits"),
        ("share of prompts with IO above S", "", 0.993, "fraction"),
        ("probability of IO", "", 0.49, "probability"),
    )
    circuit = (
        ("whole model − circuit", "26 heads at their tokens", 0.46, "logits"),
        ("circuit as a share of the whole model", "26 heads at their tokens", 0.87, "fraction"),
        ("drop of the logit difference", "without the name movers", 0.05, "fraction"),
        ("attention from END to IO", "name movers, mean", 0.59, "probability"),
    )
    return [
        Fact(topic, quantity, place, value, unit, IOI_PAPER)
        for topic, named in (("IOI", behaviour), ("IOI circuit", circuit))
        for quantity, place, value, unit in named
    ]


def _ioi_heads() -> list[Fact]:
    sure = {"name mover": 3, "negative name mover": 2}
    return [
        Fact(
            "IOI heads", IOI_QUANTITY[kind], f"{head_name(head)} {kind}", None,
            "fraction of attention" if "score" in IOI_QUANTITY[kind] else "logits", IOI_CODE,
            among=sure.get(kind), least=kind == "negative name mover",
        )
        for kind, heads in IOI_HEADS.items()
        for head in heads
    ]  # fmt: skip


def _prompts() -> list[Fact]:
    eight = [
        Fact("eight prompts", "logit difference", f"prompt {i}", value, "logits", ARENA, tolerance=5e-3)
        for i, value in enumerate(EIGHT_DIFFERENCES)
    ]
    return [
        *eight,
        Fact("eight prompts", "mean logit difference", "clean", 3.5519, "logits", ARENA, tolerance=5e-3),
        Fact("eight prompts", "mean logit difference", "corrupt", -3.5519, "logits", ARENA, tolerance=5e-3),
        Fact("one prompt", "probability", "Mary", 0.7007, "probability", ARENA, tolerance=5e-3),
        Fact("one prompt", "logit, mean over the vocabulary taken off", "Mary", 18.09, "logits", ARENA, tolerance=2e-2),
        Fact("one prompt", "logit, mean over the vocabulary taken off", "John", 15.35, "logits", ARENA, tolerance=2e-2),
        *(
            Fact("direct logit attribution", "Mary − John", head_name(h), value, "logits", DLA_DEMO, tolerance=5e-3)
            for h, value in DLA_HEADS.items()
        ),
        Fact("loss", "mean loss with BOS", LOSS_TEXT, 5.331855773925781, "nats/token", LENS_TESTS, tolerance=1e-4),
    ]


def _heads() -> list[Fact]:
    copy = (((9, 9), 1.0), ((10, 0), 0.945), ((9, 6), 0.945))
    return [
        *(Fact("copying", "copy score", head_name(h), v, "fraction", ARENA) for h, v in copy),
        Fact("copying", "copy score", "mean of all heads", 0.1011, "fraction", ARENA),
        *(Fact("copying", "negative copy score", head_name(h), 1.0, "fraction", ARENA) for h in ((10, 7), (11, 10))),
        *(
            Fact("copying", "copy score, at least", head_name(h), 0.95, "fraction", IOI_PAPER)
            for h in IOI_HEADS["name mover"]
        ),
        *(
            Fact("induction", "induction score", head_name(h), None, "fraction of attention", INDUCTION, among=5)
            for h in INDUCTION_HEADS
        ),
    ]


def _years() -> list[Fact]:
    return [
        Fact("greater-than", "probability difference", "", 0.817, "probability", YEARS_PAPER),
        *(
            Fact("greater-than", "effect of the corrupt value", head_name(h), None, "probability", YEARS_CODE)
            for h in YEARS_HEADS
        ),
        *(
            Fact("greater-than", "effect of the corrupt value", f"L{layer} MLP", None, "probability", YEARS_CODE)
            for layer in YEARS_MLPS
        ),
    ]


FACTS: tuple[Fact, ...] = (*_ioi(), *_ioi_heads(), *_prompts(), *_heads(), *_years())
"""Everything that is measured here, topic by topic."""
TOPICS: tuple[str, ...] = tuple(dict.fromkeys(f.topic for f in FACTS))
