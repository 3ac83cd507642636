"""How a run shows itself: what it holds as a card, and attention patterns of one layer on the prompt's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from interp.hooks.prompts import Prompts
from interp.hooks.values import Run
from interp.registry import UserError

if TYPE_CHECKING:
    from interp.plots import Figure


def run_card(run: Run) -> str:
    """Shapes of the logits, of every capture and of every gradient."""
    from interp.plots.show import card

    p = run.prompts
    rows: list[dict[str, Any]] = [
        {"held": kind, "address": name, "shape": " × ".join(map(str, t.shape)), "dtype": str(t.dtype).split(".")[-1]}
        for kind, tensors in (("captured", run.acts), ("gradient", run.grads))
        for name, t in tensors.items()
    ]
    facts = {
        "prompts": len(p), "tokens": _lengths(p), "logits": " × ".join(map(str, run.logits.shape)),
        "metric, mean": None if run.metric is None else float(run.metric.double().mean()),
    }  # fmt: skip
    about = "" if rows else "Nothing was captured: run(…, capture=[…]) keeps activations."
    return card("Run", facts, rows or None, about=about, most=20)


def attention_figure(run: Run, layer: int, prompt: int, heads: Sequence[int] | None) -> Figure:
    """The patterns of a layer's heads on one prompt's real tokens; see `Run.attention`."""
    from interp.plots import attention

    layer = layer % run.layers if run.layers and -run.layers <= layer < run.layers else layer
    address = f"L{layer}.pattern"
    if address not in run.acts:
        held = ", ".join(a for a in run.acts if a.endswith(".pattern")) or "none"
        raise UserError(f"{address} was not captured: run(…, capture=['pattern']). Patterns of this run: {held}")
    count = len(run.prompts)
    if not -count <= prompt < count:
        raise UserError(f"prompt {prompt} of a run of {count}")
    pattern = run.acts[address][prompt]
    chosen = list(range(len(pattern))) if heads is None else list(heads)
    for head in chosen:
        if not 0 <= head < len(pattern):
            raise UserError(f"head {head} of a layer of {len(pattern)} heads")
    real = run.prompts.mask[prompt].nonzero()[:, 0]
    drawn = pattern[chosen][:, real][:, :, real]
    title = f"Attention patterns of layer {layer}, prompt {prompt % count}"
    return attention(drawn, token_texts(run, prompt), [f"L{layer}.H{h}" for h in chosen], title=title)


def token_texts(run: Run, prompt: int) -> list[str]:
    """The real tokens of one prompt as text; their ids where the model has no tokenizer."""
    ids = run.prompts.tokens[prompt][run.prompts.mask[prompt]]
    return [str(i) for i in ids.tolist()] if run.decode is None else list(run.decode(ids))


def _lengths(prompts: Prompts) -> str:
    least, most = int(prompts.lengths.min()), int(prompts.lengths.max())
    return str(least) if least == most else f"{least} to {most}"
