"""Debugging a plain PyTorch module: keep its attention, edit a head, swap in another attention, compare accuracy.

A small pre-LayerNorm model written in plain PyTorch (`nn.MultiheadAttention`, two linear layers, ReLU) learns to
repeat the token seen `back` positions before. It is then wrapped, unaltered, with `interp.wrap`:

    plain           the module as it is (`baseline` of every row); run.json notes its largest distance from the
                    wrapped run without edits
    zero head       every head's z set to 0, one at a time
    window          attention that sees only so many tokens, by `windowed`
    alibi           scores lowered with distance, by `alibi`
    even            a user's function: attention spread evenly over what is visible

One row per variant: accuracy over prompts (share of right argmax after the first `back` tokens), the baseline and
the effect, with intervals. The attention weights of the first prompts are kept in `artifacts/patterns.safetensors`
for any drawing tool, circuitsvis among them.

    interp run module_debugging

Limits: an example of the way, not of a model that matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from interp.models.wrap import WrappedModel


class ModuleDebugging(Config):
    """Settings of `module_debugging`."""

    back: int = Field(3, ge=1, description="how far back the token to repeat stands")
    vocabulary: int = Field(16, ge=2, description="tokens")
    length: int = Field(16, ge=4, description="tokens of a row")
    width: int = Field(32, ge=8, description="residual width")
    heads: int = Field(4, ge=1, description="heads of each of two layers")
    steps: int = Field(300, ge=1, description="training steps")
    windows: tuple[int, ...] = Field((2, 3, 4, 8), description="widths of windowed attention")
    alibi: tuple[float, ...] = Field((1.0, 4.0), description="strengths of ALiBi")
    n: int = Field(64, ge=5, description="prompts")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of weights and prompts")


def build(config: ModuleDebugging) -> nn.Module:
    """The plain PyTorch model: nothing of this package in it."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
            self.attention = nn.MultiheadAttention(config.width, config.heads, batch_first=True)
            self.up, self.down = nn.Linear(config.width, 2 * config.width), nn.Linear(2 * config.width, config.width)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = self.norm1(x)
            x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
            return x + self.down(torch.relu(self.up(self.norm2(x))))  # type: ignore[no-any-return]

    class Repeater(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(config.vocabulary, config.width)
            self.places = nn.Embedding(config.length, config.width)
            self.layers = nn.ModuleList([Layer(), Layer()])
            self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary)

        def forward(self, x: Tensor) -> Tensor:
            h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
            ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            for layer in self.layers:
                h = layer(h, ahead)
            return self.head(self.norm(h))  # type: ignore[no-any-return]

    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed)
        return Repeater()


def wrapped(module: nn.Module, config: ModuleDebugging) -> WrappedModel:
    """The module with sites: one row says where its layers keep their parts."""
    import torch

    from interp.models.wrap import layer_row, wrap

    row = layer_row(
        "repeater", attn="attention", qkv=("attention",), packing="in_proj", out="attention.out_proj",
        ln1="norm1", ln2="norm2", mlp_in="up", act=torch.relu, mlp_out="down",
    )  # fmt: skip
    return wrap(
        module, layers="layers", row=row, embed="tokens", pos_embed="places", final="norm", unembed="head",
        causal=True, n_ctx=config.length,
    )  # fmt: skip


def run(config: ModuleDebugging, context: Context) -> Table:
    """Train, wrap, edit, swap, compare."""
    import torch

    import interp
    from interp.hooks.attention import alibi, windowed
    from interp.registry import UserError

    if config.back >= config.length:
        raise UserError(f"back={config.back} does not fit rows of {config.length} tokens")
    if config.width % config.heads:
        raise UserError(f"heads={config.heads} do not divide the width {config.width}")
    module = build(config).to(context.device)
    _train(module, config, context)
    model = wrapped(module, config)
    tokens = _rows(config, config.n, 10**6).to(context.device)
    plain = model.run(tokens, capture="pattern")
    variants: dict[str, Any] = {}
    for layer in range(2):
        for head in range(config.heads):
            edited = model.run(tokens, edits=[interp.zero(f"L{layer}.z", head=head)])
            variants[f"zero a{layer}.h{head}"] = edited.logits
    swaps: dict[str, Any] = {f"window {w}": windowed(w) for w in config.windows}
    swaps |= {f"alibi × {s:g}": alibi(config.heads, s) for s in config.alibi}
    swaps["even"] = lambda scores, ctx: torch.zeros_like(scores)
    for name, fn in swaps.items():
        with model.hooks(("scores", fn)):
            variants[name] = model.run(tokens).logits
    difference = model.difference(tokens)
    return _table(config, context, plain, variants, difference)


def _rows(config: ModuleDebugging, n: int, seed: int) -> Tensor:
    import torch

    rng = torch.Generator().manual_seed(config.seed + seed)
    return torch.randint(0, config.vocabulary, (n, config.length), generator=rng)


def _train(module: nn.Module, config: ModuleDebugging, context: Context) -> None:
    import torch
    from torch import nn

    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3)
    module.train()
    for step in context.progress(range(config.steps), "training"):
        tokens = _rows(config, 64, step).to(context.device)
        with torch.enable_grad():
            logits = module(tokens)[:, config.back :]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, : -config.back].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
    module.eval()


def _table(config: ModuleDebugging, context: Context, plain: Any, variants: dict[str, Any], difference: float) -> Table:
    import numpy as np

    from interp.results.frames import effect_rows
    from interp.results.schemas import EFFECT

    tokens = plain.prompts.tokens

    def accuracy(logits: Tensor) -> Any:
        right = logits[:, config.back :].argmax(-1) == tokens[:, : -config.back]
        return right.double().mean(1).cpu().numpy()

    keys, values = [{"method": "none", "components": "plain"}], [accuracy(plain.logits)]
    for name, logits in variants.items():
        key: dict[str, Any] = {"method": "zero" if name.startswith("zero") else "attention", "components": name}
        if name.startswith("zero"):
            layer, head = (int(x[1:]) for x in name.split()[1].split("."))
            key |= {"site": "z", "layer": layer, "head": head}
        else:
            key |= {"site": "scores"}
        keys.append(key)
        values.append(accuracy(logits))
    frame = effect_rows(
        keys, np.stack(values), values[0], context.resampling(config.n), unit="share of right tokens",
        metric="accuracy", model="repeater", task=f"token {config.back} back", seed=config.seed,
    )  # fmt: skip
    patterns = {f"L{i}.pattern": plain[f"L{i}.pattern"][:4].cpu().contiguous() for i in range(2)}
    return Table(
        frame, EFFECT, artifacts={"patterns.safetensors": patterns},
        notes={
            "largest difference from the plain module": difference,
            "as a share of the largest output": difference / float(plain.logits.abs().max()),
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "module_debugging", 1, ModuleDebugging, run, {"smoke": {"steps": 5, "n": 6, "windows": [2], "alibi": [1.0]}}
)

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("module_debugging"))
