"""Circuits planted by hand in native models (no norms), and hidden.

`planted-induction` (2 layers × 4 heads, attention only reads what it is told): head 0.1 copies the previous
token, head 1.2 matches it against the current one and copies what stands there to the output.

`planted-gates` (2 layers × 4 heads with MLPs): heads 0.0, 0.1, 0.3 bring three bits to the last token, MLP 0
computes b1 AND b2, MLP 1 XORs that with b3 into the output.

All other heads and MLPs are distractors: they read everything and write to directions that nothing true reads.
The residual stream is turned by a random rotation, so no direction shows. True edges are those named above and
no others; an ablation of a false edge changes the output by rounding errors only. Weights are float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.known.outputs import CHANGE, OVERLAP
from interp.circuits.known.registry import Known, register_known
from interp.circuits.values import Circuit
from interp.graph import Graph
from interp.hooks.prompts import Prompts
from interp.interventions.sources import Recipe
from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.models.native import Native, NativeBlock, NativeConfig
from interp.tasks.values import Answers, Task

SHARP = 60.0
"""Attention score of a match; what does not match scores 0, so its weight is e^-60."""
HEADS = 4


@dataclass
class Plan:
    """The residual stream as named subspaces, and a model whose weights are written in them."""

    config: NativeConfig
    spaces: dict[str, slice] = field(default_factory=dict)
    used: int = 0

    def space(self, name: str, size: int) -> None:
        """Reserve directions."""
        self.spaces[name] = slice(self.used, self.used + size)
        self.used += size

    def module(self) -> Native:
        """An empty model in float64."""
        native = Native(self.config).double().eval()
        with torch.no_grad():
            for p in native.parameters():
                p.zero_()
        return native.requires_grad_(False)


def blocks(module: Native) -> list[NativeBlock]:
    """The layers, typed."""
    return [layer for layer in module.layers if isinstance(layer, NativeBlock)]


def write(weight: Tensor, rows: slice, columns: slice, block: Float[Tensor, "row column"]) -> None:
    """Put a block into a Linear's weight `[out, in]`."""
    weight[rows, columns] = block.double()


def head_rows(config: NativeConfig, head: int, size: int | None = None) -> slice:
    """A head's rows of a projection."""
    start = head * config.head_width
    return slice(start, start + (config.head_width if size is None else size))


def rotate(module: Native, generator: torch.Generator) -> None:
    """Turn the residual stream: every reader and writer at once."""
    d = module.config.d_model
    q, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    with torch.no_grad():
        module.embed.weight.copy_(module.embed.weight @ q)
        module.pos_embed.weight.copy_(module.pos_embed.weight @ q)
        module.unembed.weight.copy_(module.unembed.weight @ q)
        for layer in blocks(module):
            attn = layer.attn
            for reader in (attn.q, attn.k, attn.v):
                reader.weight.copy_(reader.weight @ q)
            attn.o.weight.copy_(q.T @ attn.o.weight)
            attn.o.bias.copy_(q.T @ attn.o.bias)
            if module.config.d_mlp:
                layer.mlp.fc.weight.copy_(layer.mlp.fc.weight @ q)
                layer.mlp.proj.weight.copy_(q.T @ layer.mlp.proj.weight)
                layer.mlp.proj.bias.copy_(q.T @ layer.mlp.proj.bias)


def distract_head(module: Native, layer: int, head: int, junk: slice, generator: torch.Generator) -> None:
    """Random reads of the whole stream, a write to the junk directions."""
    c, attn = module.config, blocks(module)[layer].attn
    rows = head_rows(c, head)
    for reader in (attn.q, attn.k, attn.v):
        reader.weight[rows] = 0.5 * torch.randn(c.head_width, c.d_model, generator=generator, dtype=torch.float64)
    size = junk.stop - junk.start
    attn.o.weight[junk, rows] = torch.randn(size, c.head_width, generator=generator, dtype=torch.float64)


def distract_mlp(module: Native, layer: int, neurons: slice, junk: slice, generator: torch.Generator) -> None:
    """Neurons that read the whole stream at random and write to the junk directions."""
    c, mlp, count = module.config, blocks(module)[layer].mlp, neurons.stop - neurons.start
    size = junk.stop - junk.start
    mlp.fc.weight[neurons] = 0.5 * torch.randn(count, c.d_model, generator=generator, dtype=torch.float64)
    mlp.proj.weight[junk, neurons] = torch.randn(size, count, generator=generator, dtype=torch.float64)


def as_model(module: Native, name: str) -> Model:
    """The module as a model of the native family."""
    return Model(module, FAMILIES["native"], module.config, name=name)


@register_known("planted-induction")
def induction(n: int = 32, seed: int = 0, length: int = 8, letters: int = 12) -> Known:
    """Previous-token head and induction head in two layers, with distractor heads and MLPs."""
    vocab, junk = letters + 1, 8
    sizes = {"token": vocab, "place": length + 1, "previous": vocab, "out": vocab, "junk": junk}
    config = NativeConfig(
        layers=2, heads=HEADS, d_model=sum(sizes.values()), d_vocab=vocab, n_ctx=length + 1, d_head=vocab,
        d_mlp=16, act="relu", norm="none",
    )  # fmt: skip
    plan = Plan(config)
    for name, size in sizes.items():
        plan.space(name, size)
    module, generator = plan.module(), torch.Generator().manual_seed(seed)
    s, eye = plan.spaces, torch.eye(vocab)
    sharp = SHARP * config.head_width**0.5
    write(module.embed.weight, slice(0, vocab), s["token"], eye)
    write(module.pos_embed.weight, slice(0, length + 1), s["place"], torch.eye(length + 1))
    before, copies = blocks(module)[0].attn, blocks(module)[1].attn
    # queries at place i look for keys at place i − 1
    shift = torch.zeros(length + 1, length + 1)
    shift[torch.arange(length), torch.arange(1, length + 1)] = sharp
    write(before.q.weight, head_rows(config, 1, length + 1), s["place"], shift)
    write(before.k.weight, head_rows(config, 1, length + 1), s["place"], torch.eye(length + 1))
    write(before.v.weight, head_rows(config, 1), s["token"], eye)
    write(before.o.weight, s["previous"], head_rows(config, 1), eye)
    write(copies.q.weight, head_rows(config, 2), s["token"], sharp * eye)
    write(copies.k.weight, head_rows(config, 2), s["previous"], eye)
    write(copies.v.weight, head_rows(config, 2), s["token"], eye)
    write(copies.o.weight, s["out"], head_rows(config, 2), 5 * eye)
    write(module.unembed.weight, slice(0, vocab), s["out"], eye)
    for layer, own in ((0, 1), (1, 2)):
        for head in range(HEADS):
            if head != own:
                distract_head(module, layer, head, s["junk"], generator)
        distract_mlp(module, layer, slice(0, config.d_mlp), s["junk"], generator)
    rotate(module, generator)
    model = as_model(module, "planted-induction")
    truth = Circuit.of(
        Graph(model.geometry),
        ["input->a0.h1<q>", "input->a0.h1<k>", "input->a0.h1<v>", "input->a1.h2<q>", "a0.h1->a1.h2<k>",
         "input->a1.h2<v>", "a1.h2->logits"],
    )  # fmt: skip
    task = repeats("planted-induction", n, length, letters, generator, bos=letters)
    return Known("planted-induction", model, task, truth, Recipe("zero"), CHANGE, OVERLAP, "built by hand")


def repeats(name: str, n: int, length: int, letters: int, generator: torch.Generator, bos: int | None) -> Task:
    """Distinct letters, then one that stood at place 1 … length − 3; its successor is right.

    Corrupt prompts are the same letters with another one repeated, whose successor is the wrong answer.
    """
    clean: list[list[int]] = []
    corrupt: list[list[int]] = []
    right: list[list[list[int]]] = []
    wrong: list[list[list[int]]] = []
    start = [] if bos is None else [bos]
    for _ in range(n):
        letters_here = torch.randperm(letters, generator=generator)[: length - 1].tolist()
        spots = (torch.randperm(length - 3, generator=generator)[:2] + 1).tolist()
        for rows, answers, spot in ((clean, right, spots[0]), (corrupt, wrong, spots[1])):
            rows.append([*start, *letters_here, letters_here[spot]])
            answers.append([[letters_here[spot + 1]]])
    return Task.of(
        name, Prompts.of(clean), Prompts.of(corrupt), Answers.of(right), Answers.of(wrong), counterfactual=True,
        meta={"first_read": length - 1 + len(start), "read": "answer"},
    )  # fmt: skip


@register_known("planted-gates")
def gates(n: int = 32, seed: int = 0) -> Known:
    """(b1 AND b2) XOR b3 by two MLPs, the bits brought by three heads, with distractors beside everything."""
    length, junk, neurons = 5, 8, 24
    sizes = {"bit": 1, "place": length, "b1": 1, "b2": 1, "b3": 1, "and": 1, "out": 1, "junk": junk}
    config = NativeConfig(
        layers=2, heads=HEADS, d_model=sum(sizes.values()), d_vocab=4, n_ctx=length, d_head=length, d_mlp=neurons,
        act="relu", norm="none", unembed_bias=True,
    )  # fmt: skip
    plan = Plan(config)
    for name, size in sizes.items():
        plan.space(name, size)
    module, generator = plan.module(), torch.Generator().manual_seed(seed)
    s, sharp = plan.spaces, SHARP * config.head_width**0.5
    # tokens: 0 and 1 are bits, 2 starts, 3 asks
    module.embed.weight[1, s["bit"]] = 1.0
    write(module.pos_embed.weight, slice(0, length), s["place"], torch.eye(length))
    carriers = {0: ("b1", 1), 1: ("b2", 2), 3: ("b3", 3)}
    attn = blocks(module)[0].attn
    for head, (bit, place) in carriers.items():
        start = head * config.head_width
        look = torch.zeros(1, length)
        look[0, length - 1] = sharp
        at = torch.zeros(1, length)
        at[0, place] = 1.0
        write(attn.q.weight, slice(start, start + 1), s["place"], look)
        write(attn.k.weight, slice(start, start + 1), s["place"], at)
        write(attn.v.weight, slice(start, start + 1), s["bit"], torch.ones(1, 1))
        write(attn.o.weight, s[bit], slice(start, start + 1), torch.ones(1, 1))
    _gate(module, 0, [s["b1"], s["b2"]], s["and"], [-1.0], [[1.0]])
    # x XOR y = relu(x + y) − 2 relu(x + y − 1)
    _gate(module, 1, [s["and"], s["b3"]], s["out"], [0.0, -1.0], [[1.0, -2.0]])
    module.unembed.weight[1, s["out"]] = 4.0
    module.unembed.weight[0, s["out"]] = -4.0
    module.unembed.bias[0] = 4.0
    for layer in range(2):
        for head in range(HEADS):
            if layer == 1 or head not in carriers:
                distract_head(module, layer, head, s["junk"], generator)
        distract_mlp(module, layer, slice(2, neurons), s["junk"], generator)
    rotate(module, generator)
    model = as_model(module, "planted-gates")
    into = [f"input->a0.h{h}<{part}>" for h in carriers for part in "qkv"]
    rest = ["a0.h0->m0", "a0.h1->m0", "m0->m1", "a0.h3->m1", "m1->logits"]
    truth = Circuit.of(Graph(model.geometry), [*into, *rest])
    return Known("planted-gates", model, _bits(n, generator), truth, Recipe("zero"), CHANGE, OVERLAP, "built by hand")


def _gate(
    module: Native, layer: int, reads: list[slice], to: slice, biases: list[float], weights: list[list[float]]
) -> None:
    """The first neurons of an MLP: relu(sum of what is read + bias), weighted into one direction."""
    mlp = blocks(module)[layer].mlp
    for i, bias in enumerate(biases):
        for read in reads:
            mlp.fc.weight[i, read] = 1.0
        mlp.fc.bias[i] = bias
        mlp.proj.weight[to, i] = torch.tensor(weights, dtype=torch.float64)[:, i]


def _bits(n: int, generator: torch.Generator) -> Task:
    """Three bits, all eight combinations in turn; corrupt prompts flip one bit such that the answer flips."""
    clean: list[list[int]] = []
    corrupt: list[list[int]] = []
    right: list[list[list[int]]] = []
    wrong: list[list[list[int]]] = []
    for i in range(n):
        bits = [(i >> k) & 1 for k in range(3)]
        answer = (bits[0] & bits[1]) ^ bits[2]
        flips = [k for k in range(3) if _answer([b ^ (j == k) for j, b in enumerate(bits)]) != answer]
        chosen = flips[int(torch.randint(len(flips), (1,), generator=generator))]
        other = [b ^ (j == chosen) for j, b in enumerate(bits)]
        for rows, values in ((clean, bits), (corrupt, other)):
            rows.append([2, *values, 3])
        right.append([[answer]])
        wrong.append([[1 - answer]])
    return Task.of(
        "planted-gates", Prompts.of(clean), Prompts.of(corrupt), Answers.of(right), Answers.of(wrong),
        counterfactual=True, meta={"first_read": 4, "read": "answer"},
    )  # fmt: skip


def _answer(bits: list[int]) -> int:
    return (bits[0] & bits[1]) ^ bits[2]
