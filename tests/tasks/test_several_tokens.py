"""Answers of several tokens against Hugging Face, one prompt and one answer at a time, without padding."""

from __future__ import annotations

import pytest
import torch
from task_stand_ins import StandIn, geometry, toy_words, word_tokenizer

from interp.metrics import get_metric
from interp.tasks import task_from_table

ROWS = [
    {
        "clean": "When Mary and John went to the school", "corrupt": "When Mary and Paul went to the school",
        "right": [" Mary gave", " Mary"], "wrong": [" John gave"],
    },
    {"clean": "Then, Mary and John", "corrupt": "Then, Mary and Paul", "right": " Mary", "wrong": [" John gave a"]},
]  # fmt: skip


@pytest.mark.parametrize("side", ["clean", "corrupt"])
@pytest.mark.parametrize("bos", [False, True])
def test_summed_log_probabilities_equal_one_forward_per_answer(side: str, bos: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    tok = word_tokenizer(list(toy_words()))
    config = GPT2Config(
        vocab_size=tok.get_vocab_size(), n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1
    )
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.15 * torch.randn(p.shape, generator=generator))
    task = task_from_table(ROWS, StandIn(tok, geometry(config.vocab_size, 64)), bos=bos)
    prompts = task.prompts(side)  # type: ignore[arg-type]

    def score(prompt: str, answer: str) -> float:
        before, ids = ([1] if bos else []) + tok.encode(prompt).ids, tok.encode(answer).ids
        logp = model(torch.tensor([before + ids])).logits[0].log_softmax(-1)
        return sum(logp[len(before) - 1 + j, t].item() for j, t in enumerate(ids))

    with torch.no_grad():
        logits = model(prompts.tokens, attention_mask=prompts.mask).logits
        value = get_metric("logit_diff")(logits, task, side)  # type: ignore[arg-type]
        for i, row in enumerate(ROWS):
            right, wrong = ([a] if isinstance(a, str) else a for a in (row["right"], row["wrong"]))
            scores = [[score(str(row[side]), a) for a in answers] for answers in (right, wrong)]
            want = sum(scores[0]) / len(scores[0]) - sum(scores[1]) / len(scores[1])
            assert value[i].item() == pytest.approx(want, abs=1e-4)
