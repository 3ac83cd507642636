"""The sources' own prompts, with BOS: eight pairs, one prompt, direct logit attribution, loss on two words.

Published logits are those of a model whose unembedding was centred, that is, logits less their mean over the
vocabulary; logit differences, probabilities and the loss do not depend on that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.reproduce_gpt2_small import facts
from experiments.reproduce_gpt2_small.measured import Measured, mean_of, need_heads

if TYPE_CHECKING:
    from interp.models.model import Model
    from interp.tasks.values import Task


def pairs(model: Model, rows: list[tuple[str, str, str]], others: list[str], name: str) -> Task:
    """A task of (prompt, right, wrong) rows with BOS, and their corrupt prompts."""
    import interp

    table = [
        {"clean": text, "corrupt": other, "right": right, "wrong": wrong}
        for (text, right, wrong), other in zip(rows, others, strict=True)
    ]
    return interp.task_from_table(table, model, bos=True, name=name)


def eight(model: Model) -> Measured:
    """Logit differences of the eight prompts, and their means on both sides."""
    from interp.metrics import get_metric

    rows = list(facts.EIGHT_PROMPTS)
    task = pairs(model, rows, [rows[i ^ 1][0] for i in range(len(rows))], "eight prompts")
    metric = get_metric("logit_diff")
    clean, corrupt = (metric(model.run(task.prompts(s)).logits, task, s) for s in ("clean", "corrupt"))  # type: ignore[arg-type]
    found = {("logit difference", f"prompt {i}"): mean_of(clean[i : i + 1]) for i in range(len(rows))}
    found["mean logit difference", "clean"] = mean_of(clean)
    found["mean logit difference", "corrupt"] = mean_of(corrupt)
    return found


def one(model: Model) -> Measured:
    """Probability and centred logits of one prompt's two names."""
    task = _single(model, facts.ONE_PROMPT)
    run = model.run(task.clean)
    last = run.logits[0, int(run.prompts.answer_columns[0])].double()
    mary, john = (int(a.tokens[0, 0, 0]) for a in (task.right, task.wrong))
    centred = last - last.mean()
    name = "logit, mean over the vocabulary taken off"
    return {
        ("probability", "Mary"): mean_of(last.softmax(-1)[mary : mary + 1]),
        (name, "Mary"): mean_of(centred[mary : mary + 1]),
        (name, "John"): mean_of(centred[john : john + 1]),
    }


def attribution(model: Model) -> Measured:
    """What eight heads write into the logit difference of one prompt."""
    import interp

    need_heads(model, facts.DLA_HEADS)
    terms = interp.direct_logit_attribution(model, _single(model, facts.DLA_PROMPT))
    return {("Mary − John", facts.head_name(h)): mean_of(terms[f"L{h[0]}.H{h[1]}"]) for h in facts.DLA_HEADS}


def loss(model: Model) -> Measured:
    """Mean loss of two words after BOS."""
    prompts = model.prompts(facts.LOSS_TEXT, bos=True)
    run = model.run(prompts)
    logged = run.logits[0, :-1].double().log_softmax(-1)
    value = -logged.gather(1, prompts.tokens[0, 1:, None])[:, 0].mean()
    return {("mean loss with BOS", facts.LOSS_TEXT): mean_of(value[None])}


def _single(model: Model, row: tuple[str, str, str]) -> Any:
    return pairs(model, [row], [row[0]], "one prompt")
