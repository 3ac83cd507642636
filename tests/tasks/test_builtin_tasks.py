"""The built-in tasks, under a word-level tokenizer and under GPT-2's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from task_stand_ins import StandIn, bare, geometry, gpt2, toy, toy_words, word_tokenizer

from interp.hooks.prompts import Prompts
from interp.registry import UserError
from interp.tasks import lexicon, load_task
from interp.tasks.held_out import held_out
from interp.tasks.load import TASKS, check_task, get_task, register_task
from interp.tasks.templates import IOI
from interp.tasks.tokens import Codec
from interp.tasks.values import Task

NAMES = ("greater_than", "induction", "ioi", "subject_verb")
MODELS: dict[str, Any] = {"toy": toy, "gpt2": gpt2}


def word(model: StandIn, prompts: Prompts, label: str) -> list[str]:
    """The token at a label, as a word."""
    ids = prompts.tokens.gather(1, prompts.column(label)[:, None])[:, 0].tolist()
    return [Codec.of(model).decode([i]).strip() for i in ids]


def answers(model: StandIn, ids: list[list[int]]) -> list[str]:
    return [Codec.of(model).decode(a).strip() for a in ids]


@pytest.mark.parametrize("which", MODELS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bos", [False, True])
def test_every_task_fits_its_model(which: str, name: str, bos: bool) -> None:
    model = MODELS[which]()
    task = load_task(name, model, n=12, bos=bos)
    check_task(task, model)
    assert task.n == len(task.clean) == len(task.corrupt) == 12
    assert task.single
    assert task.aligned
    assert task.meta["bos"] is bos
    start = task.clean.tokens[torch.arange(12), task.clean.starts]
    assert bool((start == Codec.of(model).bos_id).all()) is bos
    assert int((task.clean.tokens[task.clean.mask] == Codec.of(model).bos_id).sum()) == (12 if bos else 0)
    assert torch.equal(task.clean.labels["END"], task.clean.lengths - 1)
    assert torch.equal(task.clean.answer, task.clean.lengths - 1)
    for label, at in task.clean.labels.items():
        assert torch.equal(at, task.corrupt.labels[label])
        assert bool(((at >= 0) & (at < task.clean.lengths)).all())
    changed = (task.clean.tokens != task.corrupt.tokens).any(1)
    assert bool(changed.all())
    if task.clean.text is not None:
        encode = Codec.of(model).encode
        rows = [t[m].tolist() for t, m in zip(task.clean.tokens, task.clean.mask, strict=True)]
        assert rows == [encode(text, bos) for text in task.clean.text]


@pytest.mark.parametrize("name", NAMES)
def test_seeds(name: str) -> None:
    one, same, other = (load_task(name, toy(), n=8, seed=s) for s in (0, 0, 1))
    assert one.hash() == same.hash() != other.hash()
    assert load_task(name, toy()).n == 64
    assert load_task(name, toy(), n=4).n == 4


@pytest.mark.parametrize("which", MODELS)
def test_ioi_labels_and_answers(which: str) -> None:
    model = MODELS[which]()
    task = load_task("ioi", model, n=24)
    io, s1, s2 = (word(model, task.clean, x) for x in ("IO", "S1", "S2"))
    assert s1 == s2
    assert all(a != b for a, b in zip(io, s1, strict=True))
    assert set(io + s1) <= set(lexicon.NAMES)
    assert [answers(model, r) for r in task.right.lists()] == [[x] for x in io]
    assert [answers(model, r) for r in task.wrong.lists()] == [[x] for x in s1]
    assert torch.equal(task.clean.labels["S1+1"], task.clean.labels["S1"] + 1)
    first = task.clean.labels["IO"] < task.clean.labels["S1"]
    assert int(first.sum()) == 12  # ABBA and BABA in equal numbers
    assert set(word(model, task.clean, "END")) <= {"to"}
    assert len(set(task.clean.text or ())) == 24
    assert task.cluster is not None
    counts = Counter(task.cluster.tolist())
    assert counts == dict.fromkeys(range(len(IOI)), 2)


@pytest.mark.parametrize("corruption", ["s2_to_other", "s2_to_io", "swap_all", "abc"])
def test_ioi_corruptions(corruption: str) -> None:
    model = toy()
    task = load_task("ioi", model, n=16, corruption=corruption)
    clean, bad = (
        list(zip(*(word(model, p, x) for x in ("IO", "S1", "S2")), strict=True)) for p in (task.clean, task.corrupt)
    )
    for (io, s, s2), (c_io, c_s1, c_s2) in zip(clean, bad, strict=True):
        assert s == s2
        if corruption == "s2_to_other":
            assert (c_io, c_s1) == (io, s)
            assert c_s2 not in (io, s)
        elif corruption == "s2_to_io":
            assert (c_io, c_s1, c_s2) == (io, s, io)
        elif corruption == "swap_all":
            assert (c_io, c_s1, c_s2) == (s, io, io)
        else:
            assert len({io, s, c_io, c_s1, c_s2}) == 5
    assert task.counterfactual is (corruption in ("s2_to_io", "swap_all"))
    # nothing but names changes
    same = task.clean.tokens == task.corrupt.tokens
    places = {int(x) for label in ("IO", "S1", "S2") for x in task.clean.labels[label]}
    assert int((~same).sum(1).max()) <= 3
    assert {int(c) for c in (~same).any(0).nonzero().flatten()} <= places


def test_ioi_order_template_and_their_errors() -> None:
    task = load_task("ioi", toy(), n=6, order="BABA", template=2)
    assert bool((task.clean.labels["S1"] < task.clean.labels["IO"]).all())
    assert set(task.clean.template.tolist()) == {2}  # type: ignore[union-attr]
    assert not task.clean.padded
    for wrong, says in (
        ({"corruption": "abd"}, "did you mean abc"),
        ({"order": "AABB"}, "ABBA, BABA"),
        ({"template": 99}, "IOI template"),
        ({"split": "test"}, "train, heldout"),
        ({"n": 0}, "at least 1"),
    ):
        with pytest.raises(UserError, match=says):
            load_task("ioi", toy(), **wrong)  # type: ignore[arg-type]


def test_ioi_means_on_abc_prompts_of_the_same_templates() -> None:
    model = toy()
    task = load_task("ioi", model, n=8)
    means = task.means_on
    assert means is not None
    assert set(means.template.tolist()) == set(task.clean.template.tolist())  # type: ignore[union-attr]
    three = list(zip(*(word(model, means, x) for x in ("IO", "S1", "S2")), strict=True))
    assert all(len(set(t)) == 3 for t in three)
    assert len(means) == 16 * len(set(task.clean.template.tolist()))  # type: ignore[union-attr]
    width = {int(t): int(n) for t, n in zip(task.clean.template, task.clean.lengths, strict=True)}  # type: ignore[arg-type]
    assert all(int(n) == width[int(t)] for t, n in zip(means.template, means.lengths, strict=True))  # type: ignore[arg-type]
    assert task.subset(2).means_on is means


@pytest.mark.parametrize("which", MODELS)
def test_greater_than_answers(which: str) -> None:
    model = MODELS[which]()
    task = load_task("greater_than", model, n=20)
    years, first, second = (word(model, task.clean, x) for x in ("YY", "XX", "XX2"))
    assert first == second
    assert set(word(model, task.corrupt, "YY")) == {"01"}
    for year, right, wrong in zip(years, task.right.lists(), task.wrong.lists(), strict=True):
        assert answers(model, right) == [f"{y:02d}" for y in range(int(year) + 1, 100)]
        assert answers(model, wrong) == [f"{y:02d}" for y in range(int(year) + 1)]
    assert torch.equal(task.clean.labels["XX2"], task.clean.labels["END"])
    assert torch.equal(task.clean.labels["YY"], task.clean.labels["XX"] + 1)


def test_greater_than_leaves_out_years_that_gpt2_keeps_whole() -> None:
    model = gpt2()
    task = load_task("greater_than", model, n=300, seed=3)
    used = {a + b for a, b in zip(word(model, task.clean, "XX"), word(model, task.clean, "YY"), strict=True)}
    assert len(used) > 150
    assert used.isdisjoint(lexicon.WHOLE_YEARS)


@pytest.mark.parametrize("which", MODELS)
@pytest.mark.parametrize("attractor", ["opposite", "same", "any"])
def test_subject_verb(which: str, attractor: str) -> None:
    model = MODELS[which]()
    task = load_task("subject_verb", model, n=16, attractor=attractor)
    singular = {f.singular: f for f in (*lexicon.NOUNS, *lexicon.ATTRACTORS)}
    subjects, others, attractors = (
        word(model, p, x) for p, x in ((task.clean, "SUBJECT"), (task.corrupt, "SUBJECT"), (task.clean, "ATTRACTOR"))
    )
    numbers = [s in singular for s in subjects]
    assert sum(numbers) == 8
    for i, one in enumerate(numbers):
        assert one is (others[i] not in singular)
        pair = next(f for f in lexicon.NOUNS if subjects[i] in f)
        assert others[i] in pair
        if attractor != "any":
            assert (attractors[i] in singular) is (one == (attractor == "same"))
        assert answers(model, task.right.lists()[i]) == (["is", "was", "has"] if one else ["are", "were", "have"])
        assert answers(model, task.wrong.lists()[i]) == (["are", "were", "have"] if one else ["is", "was", "has"])
    assert task.counterfactual
    assert len(load_task("subject_verb", model, n=2, verbs=5).right.lists()[0]) == 5


@pytest.mark.parametrize("corruption", ["successor", "broken"])
@pytest.mark.parametrize("model", [bare(50), toy(), gpt2()], ids=["no tokenizer", "toy", "gpt2"])
def test_induction(model: StandIn, corruption: str) -> None:
    task = load_task("induction", model, n=20, period=6, corruption=corruption)
    rows, bad = task.clean.tokens.tolist(), task.corrupt.tokens.tolist()
    for i, (row, other) in enumerate(zip(rows, bad, strict=True)):
        assert len(row) == 11
        assert len(set(row[:6])) == 6
        assert row[6:] == row[:5]
        assert task.right.lists()[i] == [[row[5]]]
        differ = [j for j in range(11) if row[j] != other[j]]
        wrong = task.wrong.lists()[i][0][0]
        if corruption == "successor":
            assert differ == [5]
            assert wrong == other[5]
            assert wrong not in row
        else:
            assert differ == [4]
            assert other[:6].count(other[10]) == 0
            assert wrong in row[:4]
    assert {k: int(v[0]) for k, v in task.clean.labels.items()} == {"PREV": 4, "TARGET": 5, "SECOND": 6, "END": 10}
    assert task.counterfactual is (corruption == "successor")


def test_induction_never_draws_special_tokens_and_takes_a_range_of_periods() -> None:
    small = StandIn(word_tokenizer([f"w{i}" for i in range(12)]), geometry(20))
    task = load_task("induction", small, n=60, period=[3, 7])
    used = set(task.clean.tokens[task.clean.mask].tolist())
    assert used == set(range(3, 15))
    assert set(task.clean.lengths.tolist()) == {5, 7, 9, 11, 13}
    for i in range(60):
        t = (int(task.clean.lengths[i]) + 1) // 2
        assert int(task.clean.labels["SECOND"][i]) == t


def test_induction_bos_and_bad_input() -> None:
    task = load_task("induction", bare(12), n=60, bos=True, bos_id=0, period=5)
    assert (task.clean.tokens[:, 0] == 0).all()
    assert (task.clean.tokens[:, 1:] != 0).all()
    assert int(task.clean.labels["SECOND"][0]) == 6
    for options, says in (
        ({"period": 2}, "at least 3"),
        ({"period": [5, 4]}, "pair"),
        ({"period": 60}, "different tokens"),
        ({"period": 200}, "context holds 256"),
        ({"corruption": "none"}, "successor"),
        ({"bos": True}, "BOS"),
    ):
        with pytest.raises(UserError, match=says):
            load_task("induction", bare(50), n=4, **options)


@pytest.mark.parametrize("which", MODELS)
def test_held_out_and_training_splits_share_no_pair(which: str) -> None:
    model = MODELS[which]()

    def pairs(name: str, split: str) -> tuple[set, set]:
        task = load_task(name, model, n=60, split=split)
        a, b = {"ioi": ("IO", "S1"), "greater_than": ("XX", "YY"), "subject_verb": ("SUBJECT", "ATTRACTOR")}[name]
        words = zip(word(model, task.clean, a), word(model, task.clean, b), strict=True)
        return {frozenset(p) for p in words}, set(task.cluster.tolist())  # type: ignore[union-attr]

    for name in ("ioi", "greater_than", "subject_verb"):
        train, heldout = pairs(name, "train"), pairs(name, "heldout")
        assert train[0].isdisjoint(heldout[0]), name
        assert train[1].isdisjoint(heldout[1]), name
    assert all(held_out(*p) for p in pairs("ioi", "heldout")[0])
    assert not any(held_out(*p) for p in pairs("ioi", "train")[0])


def test_the_training_grammar_holds_out_the_same_pairs() -> None:
    grammar = pytest.importorskip("interp.training.grammar")
    pairs = [(a, b) for a in lexicon.NAMES for b in lexicon.NAMES]
    assert [held_out(a, b) for a, b in pairs] == [grammar.held_out(a, b) for a, b in pairs]
    assert 0.1 < sum(held_out(a, b) for a, b in pairs) / len(pairs) < 0.2


def test_a_small_vocabulary_filters_the_lexicon_or_says_what_is_missing() -> None:
    few = [w for w in toy_words() if w not in lexicon.NAMES[6:]]
    model = StandIn(word_tokenizer(few), geometry(1000))
    task = load_task("ioi", model, n=10)
    assert set(word(model, task.clean, "IO")) <= set(lexicon.NAMES[:6])
    none = StandIn(word_tokenizer([w for w in toy_words() if w not in lexicon.NAMES[4:]]), geometry(1000))
    with pytest.raises(UserError, match=f"only 4 of {len(lexicon.NAMES)} names .* 5 are needed"):
        load_task("ioi", none)
    wordless = StandIn(word_tokenizer([*lexicon.NAMES, *lexicon.PLACES, *lexicon.OBJECTS]), geometry(1000))
    with pytest.raises(UserError, match="no template of ioi fits"):
        load_task("ioi", wordless)
    for name in ("ioi", "greater_than", "subject_verb"):
        with pytest.raises(UserError, match="no tokenizer"):
            load_task(name, bare())


def test_prompts_longer_than_the_context_raise() -> None:
    short = StandIn(toy().tokenizer, geometry(toy().geometry.d_vocab, n_ctx=8))
    for name in ("ioi", "greater_than", "induction"):
        with pytest.raises(UserError, match="context"):
            load_task(name, short)


def test_names_options_and_registering() -> None:
    for name in NAMES:
        assert callable(get_task(name))
    with pytest.raises(UserError, match="did you mean ioi"):
        load_task("iio", toy())
    with pytest.raises(UserError, match="did you mean corruption"):
        load_task("ioi", toy(), corruptoin="abc")

    @register_task("two_for_a_test")
    def two(model: Any, *, n: int = 2, seed: int = 0, split: str = "all") -> Task:
        """A task."""
        return load_task("induction", model, n=2)

    try:
        assert load_task("two_for_a_test", bare(), n=2).n == 2
        with pytest.raises(UserError, match="made 2 prompts, 3 were asked for"):
            load_task("two_for_a_test", bare(), n=3)
    finally:
        TASKS._rows.pop("two_for_a_test")


def test_check_task_refuses_tokens_outside_the_vocabulary() -> None:
    task = load_task("induction", bare(50), n=4)
    with pytest.raises(UserError, match="the vocabulary is 10"):
        check_task(task, bare(10))
