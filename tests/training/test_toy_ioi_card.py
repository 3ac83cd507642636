"""The shipped `toy-ioi`, measured afresh from its files: a new held-out sample, and none of the training code's
own evaluation (only `held_out`, which says what was kept from training). Every bar of the card is met again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import interp.models
from interp.tasks import lexicon, templates
from interp.training.grammar import held_out

ZOO = Path(interp.models.__file__).parent / "zoo" / "toy-ioi"
SEED = 20_260_101
N = 300


class Shipped:
    """The folder as transformers loads it."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer, GPT2LMHeadModel

        self.model = GPT2LMHeadModel.from_pretrained(ZOO).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(ZOO)

    def id(self, word: str) -> int:
        (found,) = self.tokenizer.encode(" " + word)
        return int(found)

    @torch.no_grad()
    def last(self, text: str) -> Tensor:
        logits: Tensor = self.model(torch.tensor([self.tokenizer.encode(text)])).logits[0, -1]
        return logits

    @torch.no_grad()
    def every(self, ids: list[int]) -> Tensor:
        logits: Tensor = self.model(torch.tensor([ids])).logits[0]
        return logits


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return Shipped()


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ZOO / "card.json").read_text())
    return found


def figure(card: dict[str, Any], name: str) -> float:
    return float(next(f["value"] for f in card["figures"] if f["name"] == name))


def kept(group: tuple[templates.Template, ...]) -> list[templates.Template]:
    return [t for t in group if t.held_out]


def test_card_is_whole(card: dict[str, Any]) -> None:
    assert card["command"].startswith("interp train toy-ioi")
    origin = card["origin"]
    assert origin["seconds"] > 0
    assert origin["threads"] >= 1
    assert origin["steps"] == origin["settings"]["steps"]
    for f in card["figures"]:
        assert f["chance"] is not None, f["name"]
        assert f["best_constant"] is not None, f["name"]
        assert f["met"], f["name"]
    targets = {f["name"]: f["target"] for f in card["figures"]}
    assert targets["ioi accuracy"] == 0.99
    assert targets["subject-verb accuracy"] == targets["induction accuracy"] == 0.95
    assert targets["greater-than P(>YY) − P(≤YY)"] == 0.8


def test_weights_file() -> None:
    path = ZOO / "model.safetensors"
    assert path.stat().st_size < 4_000_000
    with safe_open(path, "pt") as tensors:
        assert {tensors.get_tensor(k).dtype for k in tensors.keys()} == {torch.float32}  # noqa: SIM118
    assert not [p.name for p in ZOO.iterdir() if p.suffix in {".bin", ".pt", ".pkl"}]


def test_ioi(shipped: Shipped, card: dict[str, Any]) -> None:
    rng = random.Random(SEED)
    right, drops = 0, []
    for i in range(N):
        while True:
            io, s = rng.sample(lexicon.NAMES, 2)
            if held_out(io, s):
                break
        roles = templates.IOI_ROLES[templates.ORDERS[i % 2]]
        words = {"PLACE": rng.choice(lexicon.PLACES), "OBJECT": rng.choice(lexicon.OBJECTS), roles["IO"]: io}
        template = rng.choice(kept(templates.IOI))
        clean = shipped.last(template.fill({**words, roles["S1"]: s, roles["S2"]: s}).text)
        corrupt = shipped.last(template.fill({**words, roles["S1"]: s, roles["S2"]: io}).text)
        a, b = shipped.id(io), shipped.id(s)
        right += int(clean.argmax()) == a
        drops.append(float(clean[a] - clean[b] - corrupt[a] + corrupt[b]))
    assert right / N >= 0.99
    assert sum(drops) / N >= 2
    assert sum(drops) / N == pytest.approx(figure(card, "ioi logit difference, clean − corrupt (S2 → IO)"), rel=0.1)


def test_subject_verb(shipped: Shipped) -> None:
    rng = random.Random(SEED)
    right = 0
    for i in range(N):
        while True:
            noun, attractor = rng.choice(lexicon.NOUNS), rng.choice(lexicon.ATTRACTORS)
            if held_out(noun.singular, attractor.singular):
                break
        words = {"SUBJECT": noun[i % 2], "ATTRACTOR": attractor[1 - i % 2], "PREP": rng.choice(lexicon.PREPOSITIONS)}
        top = int(shipped.last(rng.choice(kept(templates.SUBJECT_VERB)).fill(words).text).argmax())
        right += top in {shipped.id(verb[i % 2]) for verb in lexicon.VERBS}
    assert right / N >= 0.95


def test_induction(shipped: Shipped) -> None:
    rng = random.Random(SEED)
    right = total = 0
    for _ in range(N):
        segment = [rng.randrange(3, len(shipped.tokenizer)) for _ in range(rng.randint(4, 32))]
        guesses = shipped.every(segment * 2).argmax(-1).tolist()[len(segment) : -1]
        right += sum(g == t for g, t in zip(guesses, segment[1:], strict=True))
        total += len(segment) - 1
    assert right / total >= 0.95


def test_greater_than(shipped: Shipped) -> None:
    """Every held-out (century, year): mass above YY, and the year after YY likelier than the year before."""
    rng = random.Random(SEED)
    ids = torch.tensor([shipped.id(year) for year in lexicon.YEARS])
    differences, steps = [], []
    for century in lexicon.CENTURIES:
        for year in range(2, 99):
            if not held_out(century, f"{year:02d}"):
                continue
            words = {"EVENT": rng.choice(lexicon.EVENTS), "XX": century, "YY": f"{year:02d}", "XX2": century}
            p = shipped.last(rng.choice(kept(templates.GREATER_THAN)).fill(words).text).softmax(-1)[ids]
            differences.append(float(p[year + 1 :].sum() - p[: year + 1].sum()))
            steps.append(bool(p[year + 1] > p[year - 1]))
    assert len(steps) > 50
    assert sum(differences) / len(differences) >= 0.8
    assert sum(steps) / len(steps) >= 0.95


def test_prompts_may_begin_with_bos(shipped: Shipped) -> None:
    text = "One day, Mary and John met in the park, where John showed a ring to"
    for prompt in (text, "<bos> " + text):
        assert int(shipped.last(prompt).argmax()) == shipped.id("Mary")


def test_whole_context_is_usable(shipped: Shipped) -> None:
    positions = shipped.model.config.n_positions
    segment = list(range(3, 3 + positions // 2))
    guesses = shipped.every(segment * 2).argmax(-1)[len(segment) : -1].tolist()
    assert sum(g == t for g, t in zip(guesses, segment[1:], strict=True)) >= 0.9 * (len(segment) - 1)
