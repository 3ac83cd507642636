"""The recipe of attn-2l, its data, and the weights that ship with the package."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interp.models import zoo
from interp.models.load import load_model
from interp.models.native import Native
from interp.registry import UserError
from interp.training import attn_2l
from interp.training.loop import train
from interp.training.recipes import load_recipe
from interp.training.text import END_ID, held_out_text, read_corpus

SENTENCES = ("The cat sat on the mat and looked at the dog. ", "A dog ran to the river, and the cat slept! ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of nonsense English; the shortest is held out."""
    path = tmp_path / "texts"
    path.mkdir()
    for name, times in (("a.txt", 400), ("b.txt", 300), ("c.txt", 200)):
        words = " ".join(f"word{i % 37} thing{i % 53}" for i in range(times))
        (path / name).write_text((SENTENCES[0] + SENTENCES[1] + words) * 10)
    return path


def test_corpus_holds_the_shortest_file_out(folder: Path) -> None:
    corpus = read_corpus(folder, 300)
    assert (corpus.names, corpus.held_out_name) == (("a.txt", "b.txt"), "c.txt")
    assert held_out_text(folder) == ("c.txt", (folder / "c.txt").read_text())
    assert corpus.tokenizer.decode(corpus.held_out.tolist()) == (folder / "c.txt").read_text()
    assert END_ID not in corpus.train.tolist()
    again = read_corpus(folder, 300)
    assert torch.equal(corpus.train, again.train)
    (folder / "c.txt").write_text("other " * 3000)
    assert read_corpus(folder, 300).digest != corpus.digest
    assert torch.equal(read_corpus(folder, 300).train, corpus.train)


def test_bad_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        load_recipe("attn-2l", tmp_path / "nowhere")
    (tmp_path / "one.txt").write_text("alone")
    with pytest.raises(UserError, match=r"1 \.txt file; a folder with at least 2"):
        load_recipe("attn-2l", tmp_path)
    with pytest.raises(UserError, match="--text FOLDER"):
        load_recipe("attn-2l")
    with pytest.raises(UserError, match="takes no --text"):
        load_recipe("toy-ioi", tmp_path)


def test_fused_forward_equals_the_native_one() -> None:
    module = attn_2l.model(torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 1024, (2, 20), generator=torch.Generator().manual_seed(1))
    assert isinstance(module, Native)
    torch.testing.assert_close(module(tokens).logits, Native.forward(module, tokens), rtol=1e-5, atol=1e-5)


def test_batches_follow_the_curriculum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attn_2l, "VOCABULARY", 300)
    corpus = read_corpus(folder, 300)
    stream = attn_2l.batches(corpus, 10, 0.25)
    first, then = stream(0, 3)[0].tokens, stream(0, 10)[0].tokens
    assert first.shape == (attn_2l.FIRST_ROWS, attn_2l.FIRST_LENGTH)
    assert then.shape == (attn_2l.ROWS, attn_2l.N_CTX)

    def period(row: torch.Tensor) -> int | None:
        body = row[1:] if row[0] == END_ID else row
        return next((p for p in range(6, 41) if torch.equal(body[p:], body[:-p])), None)

    assert all(period(row) for row in first)
    repeating = [i for i, row in enumerate(then) if period(row)]
    assert set(range(27, 36)) <= set(repeating)
    assert torch.equal(first, stream(0, 3)[0].tokens)
    assert not torch.equal(first, stream(1, 3)[0].tokens)
    assert not torch.equal(first, stream(0, 4)[0].tokens)


def test_restart_spares_the_first_head_and_the_other_layers() -> None:
    module = attn_2l.model(torch.Generator().manual_seed(0))
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    attn_2l.restart(module, attn_2l.FIRST_STEPS - 1)
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())
    with torch.no_grad():
        module.layers[1].attn.q.bias.fill_(1.0)
    attn_2l.restart(module, attn_2l.FIRST_STEPS)
    changed = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {f"layers.1.attn.{n}.weight" for n in "qkvo"} | {"layers.1.attn.q.bias"}
    attn = module.layers[1].attn
    assert torch.equal(attn.v.weight[:16], before["layers.1.attn.v.weight"][:16])
    assert torch.equal(attn.o.weight[:, :16], before["layers.1.attn.o.weight"][:, :16])
    assert attn.q.bias.tolist() == [1.0] * 16 + [0.0] * 112


def test_a_short_run_leaves_a_folder_that_loads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("VOCABULARY", 300), ("FIRST_STEPS", 2), ("FIRST_ROWS", 4), ("ROWS", 4), ("SNAPSHOTS", (0, 2))):
        monkeypatch.setattr(attn_2l, name, value)
    recipe = load_recipe("attn-2l", folder)
    recipe = replace(recipe, settings=replace(recipe.settings, steps=3, warmup=1, checkpoint_every=2))
    out = train(recipe, out=tmp_path / "model")
    model = load_model(out)
    assert model.geometry.d_vocab == 300
    assert {p.name for p in out.glob("step-*")} == {"step-000000.safetensors", "step-000002.safetensors"}
    early = load_model(out, weights="step-000002.safetensors", dtype="float32")
    assert early.weights_hash() != model.weights_hash()
    card = json.loads((out / "card.json").read_text())
    assert {f["name"] for f in card["figures"]} >= {
        "held-out loss",
        "best induction score",
        "birth of the induction head",
    }
    other = load_recipe("attn-2l-text", folder)
    other = replace(other, settings=replace(other.settings, steps=1, warmup=1))
    shutil.copy(train(other, out=tmp_path / "text") / "text-only.safetensors", out)
    card = json.loads((train(recipe, out=tmp_path / "model") / "card.json").read_text())
    beside = {f["name"]: f for f in card["figures"] if f["name"].startswith("text-only run")}
    assert len(beside) == 3
    own = {f["name"]: f for f in json.loads((tmp_path / "text" / "card.json").read_text())["figures"]}
    for name in ("held-out loss", "best previous-token score", "best induction score"):
        # the kept weights are fp16
        assert beside[f"text-only run: {name}"]["value"] == pytest.approx(own[name]["value"], rel=1e-3)
    assert "--text FOLDER" in card["command"]
    assert str(folder) not in (out / "card.json").read_text()
    (folder / "a.txt").write_text("changed " * 5000)
    with pytest.raises(UserError, match="another run"):
        train(replace(load_recipe("attn-2l", folder), settings=recipe.settings), out=tmp_path / "model")


def test_the_shipped_weights() -> None:
    """Size, checkpoints, the claims of the card re-measured: an induction head that was not there at first."""
    folder = zoo.folders()["attn-2l"]
    assert sum(p.stat().st_size for p in folder.iterdir()) < 12e6
    kept = sorted(p.name for p in folder.glob("step-*.safetensors"))
    assert len(kept) >= 8
    model, first = load_model("attn-2l"), load_model("attn-2l", weights=kept[0], dtype="float32")
    from interp.training.text_figures import best_scores

    assert float(best_scores(model, 5)["induction"].max()) >= 0.4
    assert float(best_scores(model, 5)["previous"][0].max()) >= 0.4
    assert float(best_scores(first, 5)["induction"].max()) < 0.1
    text = "It is a truth universally acknowledged"
    assert "".join(model.to_text(model.prompts(text).tokens[0])) == text
    card = json.loads((folder / "card.json").read_text())
    figures = {f["name"]: f for f in card["figures"]}
    assert figures["held-out loss"]["value"] < figures["held-out loss"]["best_constant"] - 1
