"""`reproduce_gpt2_small` on a stand-in: random weights with GPT-2 small's names and vocabulary, but narrow.

Every row is measured; numbers are those of the checkpoint's own forward pass, and edits done by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interp
from experiments.reproduce_gpt2_small import EXPERIMENT, _row, facts, ioi
from experiments.reproduce_gpt2_small.facts import FACTS, Fact
from experiments.reproduce_gpt2_small.measured import Got, ranks, share_of
from interp.cells import Loaders, run_cell
from interp.cli import main
from interp.stats import resampling
from tests.tasks.task_stand_ins import gpt2

pytestmark = pytest.mark.slow
WIDTH, N = 24, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as GPT-2 small's would lie on a disk: 12 layers of 12 heads, 50,257 tokens, its tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    path = tmp_path_factory.mktemp("stand-in")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = GPT2LMHeadModel(GPT2Config(n_embd=WIDTH, n_positions=128))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
    module.save_pretrained(path)
    gpt2().tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return interp.load_model(folder)


@pytest.fixture(scope="module")
def table(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The table of the whole experiment, by quantity and place."""
    out = tmp_path_factory.mktemp("out")
    cell = run_cell(EXPERIMENT, EXPERIMENT.make_config({"model": str(folder), "n": N}), out=out, loaders=Loaders())
    return cell.table().set_index(["topic", "quantity", "place"])


def test_every_statement_is_measured(table: Any) -> None:
    assert len(table) == len(FACTS)
    assert table["value"].notna().all()
    assert table["source"].notna().all()
    few = table["n"] < 5
    assert table.loc[~few, "ci_low"].notna().all()
    assert table.loc[few, "reason"].notna().all()
    # random weights reproduce nothing: what claims exactness must be seen to differ
    exact = table["tolerance"].notna()
    assert exact.sum() == 22
    assert not table.loc[exact, "agrees"].any()


def test_numbers_of_one_prompt_are_the_checkpoint_s_own(table: Any, model: Any) -> None:
    def logits(text: str) -> torch.Tensor:
        ids = [model.tokenizer.bos_token_id, *model.tokenizer(text)["input_ids"]]
        with torch.no_grad():
            return model.module(torch.tensor([ids])).logits[0].double()

    def token(word: str) -> int:
        (one,) = model.tokenizer(word)["input_ids"]
        return int(one)

    for i, (text, right, wrong) in enumerate(facts.EIGHT_PROMPTS):
        last = logits(text)[-1]
        own = float(last[token(right)] - last[token(wrong)])
        assert table.loc[("eight prompts", "logit difference", f"prompt {i}"), "value"] == pytest.approx(own, abs=1e-4)
    clean, corrupt = (table.loc[("eight prompts", "mean logit difference", s), "value"] for s in ("clean", "corrupt"))
    assert clean == pytest.approx(-corrupt, abs=1e-4)
    last = logits(facts.ONE_PROMPT[0])[-1]
    centred = table.loc[("one prompt", "logit, mean over the vocabulary taken off", "Mary"), "value"]
    assert centred == pytest.approx(float(last[token(" Mary")] - last.mean()), abs=1e-4)
    ids = torch.tensor(model.tokenizer(facts.LOSS_TEXT)["input_ids"])
    loss = torch.nn.functional.cross_entropy(logits(facts.LOSS_TEXT)[:-1], ids)
    assert table.loc[("loss", "mean loss with BOS", facts.LOSS_TEXT), "value"] == pytest.approx(float(loss), abs=1e-4)


def test_the_circuit_keeps_its_heads_at_their_tokens_only(model: Any) -> None:
    """One prompt, each head by itself: at every position that is not its class's, z is set to the mean by hand."""
    task = interp.load_task("ioi", model, n=4, seed=1, corruption="abc")
    means = model.means(task.means_on, ["z"], by="template")
    got = ioi.circuit_logits(model, task, means)
    kept = {h: facts.IOI_PLACES[kind] for kind, heads in facts.IOI_HEADS.items() for h in heads}
    for row in range(4):
        one = task.clean.rows([row])
        length = int(one.lengths[0])
        edits = []
        for layer in range(12):
            for head in range(12):
                place = kept.get((layer, head))
                own = -1 if place is None else int(one.real_index(place)[0])
                where = [p for p in range(length) if p != own]
                edits.append(interp.mean(f"L{layer}.z", means, head=head, pos=where))
        by_hand = model.run(one, edits=edits).logits[0, :length]
        assert torch.allclose(got[row, :length], by_hand, atol=1e-4)
    assert not torch.allclose(got, model.run(task.clean).logits, atol=1e-2)


def test_agreement_is_by_tolerance_or_rank() -> None:
    near = Fact("t", "q", "p", 1.0, "logits", "s", tolerance=0.01)
    assert _row(near, Got(1.009), None)["agrees"] is True
    assert _row(near, Got(0.98), None)["agrees"] is False
    ranked = Fact("t", "q", "p", None, "logits", "s", among=3)
    assert _row(ranked, Got(5.0, rank=2), None)["agrees"] is True
    assert _row(ranked, Got(5.0, rank=3), None)["agrees"] is False
    assert _row(Fact("t", "q", "p", 1.0, "logits", "s"), Got(1.0), None)["agrees"] is None
    assert _row(near, None, "no such head") == {
        "topic": "t", "quantity": "q", "place": "p", "source": "s", "published": 1.0, "tolerance": 0.01,
        "among": None, "unit": "logits", "reason": "no such head",
    }  # fmt: skip


def test_ranks_and_shares() -> None:
    assert ranks(np.array([0.5, 2.0, -1.0])) == [1, 0, 2]
    assert ranks(np.array([0.5, 2.0, -1.0]), least=True) == [1, 2, 0]
    how = resampling(6, np.random.default_rng(0))
    kept = share_of(np.full(6, 3.0), np.full(6, 4.0), how)
    assert (kept.value, kept.low, kept.high) == (0.75, 0.75, 0.75)
    assert share_of(np.full(6, 3.0), np.full(6, 4.0), how, drop=True).value == 0.25


def test_a_model_without_these_heads_says_so(tmp_path: Path) -> None:
    config = EXPERIMENT.make_config({"topics": ["IOI", "induction", "eight prompts"]}, "smoke")
    frame = run_cell(EXPERIMENT, config, out=tmp_path).table().set_index("topic")
    assert frame.loc["IOI", "value"].notna().all()
    assert frame.loc["induction", "reason"].str.contains("toy-ioi has 3 layers of 4 heads: there is no L5H1").all()


def test_it_prints_measured_beside_published(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "reproduce_gpt2_small", "--model", str(folder), "--set", "topics=[loss]", "--out", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "published" in said.splitlines()[1]
    assert "5.332" in said
    assert "1 of 1 rows, all of them" in said


def test_facts_are_those_of_the_sources(shared: Path) -> None:
    """Every number about GPT-2 small in the file of facts stands in `FACTS` too, and the heads are the same."""
    given = json.loads((shared / "data" / "published_gpt2_small.json").read_text())
    stated = [f.published for f in FACTS if f.published is not None]
    paper, eight, dla = given["ioi_paper"], given["tl_8_prompts"], given["dla_single_prompt"]
    numbers = [
        *(v for k, v in paper.items() if k != "source"), *eight["logit_diffs"], eight["mean"],
        eight["corrupted_mean"], *(v for v in dla.values() if isinstance(v, float)),
        *(v for k, v in given["single_prompt"].items() if k not in ("prompt", "bos")),
        given["loss_hello_world"]["gpt2-small"], *given["arena_copy_scores"].values(),
        given["greater_than"]["prob_diff_reported"],
    ]  # fmt: skip
    assert [n for n in numbers if n not in stated] == []
    circuit = {k: tuple(map(tuple, v)) for k, v in given["ioi_circuit"].items() if k != "source"}
    assert {*circuit.values()} == {*facts.IOI_HEADS.values()}
    assert tuple(map(tuple, given["induction_heads_gpt2_small"])) == facts.INDUCTION_HEADS
    assert tuple(map(tuple, given["greater_than"]["heads"])) == facts.YEARS_HEADS
    assert tuple(given["greater_than"]["mlps"]) == facts.YEARS_MLPS
    assert given["single_prompt"]["prompt"] == facts.ONE_PROMPT[0]
    assert dla["prompt"] == facts.DLA_PROMPT[0]
