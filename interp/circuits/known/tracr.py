"""RASP programs compiled into transformers by Tracr, as native models (bidirectional, no norms, float64).

    tracr-reverse  tracr-x-proportion  tracr-count  tracr-histogram  tracr-sort  tracr-sort-unique
    tracr-shuffle-dyck

True edges are read off the weights: u → v is true where what u can write overlaps what v reads,
W_write(u) · W_read(v) ≠ 0. A query reads through W_Q W_Kᵀ, a key through its transpose, a value through
W_V W_O. Edges on no path to the output are left out. Needs PyPI `tracr-pypi` (extra `interp[compiled]`).

Source: 2301.05062. A true edge may still be silent: redundant, or constant on the data.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.known.outputs import CHANGE, OVERLAP
from interp.circuits.known.planted import blocks
from interp.circuits.known.registry import Known, register_known
from interp.circuits.values import Circuit, edge_mask
from interp.graph import Graph, Node, Slot
from interp.hooks.prompts import Prompts
from interp.interventions.sources import Recipe
from interp.models.families import FAMILIES
from interp.models.model import Model
from interp.models.native import Native, NativeConfig
from interp.models.weights import head_weights
from interp.registry import UserError
from interp.tasks.values import Answers, Task

BOS = "BOS"
LENGTH = 5
OVERLAPS = 1e-9
Word = str | int
Draw = Callable[[random.Random, list[Word]], list[Word]]


def _compiler() -> tuple[Any, Any, Any]:
    try:
        from tracr.compiler import compiling, lib  # type: ignore[import-untyped]
        from tracr.rasp import rasp  # type: ignore[import-untyped]
    except ImportError as e:
        raise UserError(
            f"compiled programs need Tracr, which is not installed ({e.name}): pip install 'interp[compiled]'"
        ) from None
    return compiling, lib, rasp


def _known(name: str, make: Callable[[Any, Any], Any], vocab: list[Word], draw: Draw, n: int, seed: int) -> Known:
    compiling, lib, rasp = _compiler()
    program = make(lib, rasp)
    compiled = compiling.compile_rasp_to_model(program, set(vocab), LENGTH, compiler_bos=BOS)
    labels = compiled.residual_labels
    outputs = [i for i, label in enumerate(labels) if label == program.label or label.startswith(f"{program.label}:")]
    module = native(compiled, outputs)
    model = Model(module, FAMILIES["native"], module.config, name=name)
    truth = true_edges(model)
    encode = compiled.input_encoder.encode
    rng = random.Random(seed)
    rows = [encode([BOS, *draw(rng, vocab)]) for _ in range(n)]
    prompts = Prompts.of(rows)
    nothing = Answers.of([[[0]]] * n)
    task = Task.of(name, prompts, prompts, nothing, nothing, meta={"first_read": 1})
    return Known(name, model, task, truth, Recipe("zero"), CHANGE, OVERLAP, "read off the compiled weights")


def native(compiled: Any, outputs: list[int]) -> Native:
    """The compiled weights in a native model."""
    import numpy as np

    params, c = compiled.params, compiled.model_config
    tokens, places = (params[k]["embeddings"] for k in ("token_embed", "pos_embed"))
    config = NativeConfig(
        layers=c.num_layers, heads=c.num_heads, d_model=tokens.shape[1], d_vocab=tokens.shape[0],
        n_ctx=places.shape[0], d_head=c.key_size, d_mlp=c.mlp_hidden_size, d_out=len(outputs), act="relu",
        causal=bool(c.causal), norm="none",
    )  # fmt: skip
    module = Native(config).double().eval().requires_grad_(False)

    def put(linear: torch.nn.Linear, name: str) -> None:
        linear.weight.copy_(torch.from_numpy(np.array(params[name]["w"], dtype=np.float64)).T)
        linear.bias.copy_(torch.from_numpy(np.array(params[name]["b"], dtype=np.float64)))

    with torch.no_grad():
        module.embed.weight.copy_(torch.from_numpy(np.array(tokens, dtype=np.float64)))
        module.pos_embed.weight.copy_(torch.from_numpy(np.array(places, dtype=np.float64)))
        module.unembed.weight.zero_()
        module.unembed.weight[torch.arange(len(outputs)), torch.tensor(outputs)] = 1.0
        for i, layer in enumerate(blocks(module)):
            for part, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "linear")):
                put(getattr(layer.attn, part), f"transformer/layer_{i}/attn/{name}")
            put(layer.mlp.fc, f"transformer/layer_{i}/mlp/linear_1")
            put(layer.mlp.proj, f"transformer/layer_{i}/mlp/linear_2")
    return module


def true_edges(model: Model) -> Circuit:
    """Edges whose source can write what the slot reads, on a path from the input to the output."""
    graph = Graph(model.geometry)
    writes = [_write(model, n) for n in graph.sources]
    reads = [_read(model, s) for s in graph.slots]
    mask = edge_mask(graph)
    for u, v in mask.nonzero().tolist():
        mask[u, v] = bool((writes[u] @ reads[v]).abs().max() > OVERLAPS)
    return Circuit(graph, mask).pruned()


def _module(model: Model) -> Native:
    assert isinstance(model.module, Native)
    return model.module


def _write(model: Model, node: Node) -> Float[Tensor, "direction d_model"]:
    net = model.net
    if node.kind == "input":
        module = _module(model)
        return torch.cat([module.embed.weight, module.pos_embed.weight])
    if node.kind == "head":
        w = head_weights(net, node.layer)
        return w.W_V[node.head] @ w.W_O[node.head]
    return blocks(_module(model))[node.layer].mlp.proj.weight.T


def _read(model: Model, slot: Slot) -> Float[Tensor, "d_model direction"]:
    node = slot.node
    if node.kind == "logits":
        return _module(model).unembed.weight.T
    if node.kind == "mlp":
        return blocks(_module(model))[node.layer].mlp.fc.weight.T
    w = head_weights(model.net, node.layer)
    if slot.part == "v":
        return w.W_V[node.head] @ w.W_O[node.head]
    score = w.W_Q[node.head] @ w.W_K[node.head].T
    return score if slot.part == "q" else score.T


def _any_words(rng: random.Random, vocab: list[Word]) -> list[Word]:
    return [rng.choice(vocab) for _ in range(rng.randint(2, LENGTH))]


def _distinct_words(rng: random.Random, vocab: list[Word]) -> list[Word]:
    return rng.sample(vocab, rng.randint(2, LENGTH))


def _brackets(rng: random.Random, vocab: list[Word]) -> list[Word]:
    """Half of them balanced: random, or one of the balanced strings of one or two pairs."""
    if rng.random() < 0.5:
        return _any_words(rng, vocab)
    return list(rng.choice(["()", "{}", "()()", "(){}", "{}()", "({})", "{()}", "{}{}", "(())", "({)}", "{(})"]))


@register_known("tracr-reverse")
def reverse(n: int = 32, seed: int = 0) -> Known:
    """The sequence from its end."""
    return _known(
        "tracr-reverse", lambda lib, rasp: lib.make_reverse(rasp.tokens), ["a", "b", "c", "d"], _any_words, n, seed
    )


@register_known("tracr-x-proportion")
def x_proportion(n: int = 32, seed: int = 0) -> Known:
    """At each place the share of x so far."""
    return _known(
        "tracr-x-proportion", lambda lib, rasp: lib.make_frac_prevs(rasp.tokens == "x"), ["w", "x", "y", "z"],
        _any_words, n, seed,
    )  # fmt: skip


@register_known("tracr-count")
def count(n: int = 32, seed: int = 0) -> Known:
    """How often a occurs."""
    return _known(
        "tracr-count", lambda lib, rasp: lib.make_count(rasp.tokens, "a"), ["a", "b", "c", "d"], _any_words, n, seed
    )


@register_known("tracr-histogram")
def histogram(n: int = 32, seed: int = 0) -> Known:
    """How often each token occurs."""
    return _known("tracr-histogram", lambda lib, rasp: lib.make_hist(), ["a", "b", "c", "d"], _any_words, n, seed)


@register_known("tracr-sort")
def sort(n: int = 32, seed: int = 0) -> Known:
    """The sequence in order; tokens may repeat."""
    return _known(
        "tracr-sort",
        lambda lib, rasp: lib.make_sort(rasp.tokens, rasp.tokens, max_seq_len=LENGTH, min_key=1), [1, 2, 3, 4, 5],
        _any_words, n, seed,
    )  # fmt: skip


@register_known("tracr-sort-unique")
def sort_unique(n: int = 32, seed: int = 0) -> Known:
    """The sequence in order; tokens are distinct."""
    return _known(
        "tracr-sort-unique", lambda lib, rasp: lib.make_sort_unique(rasp.tokens, rasp.tokens), [1, 2, 3, 4, 5],
        _distinct_words, n, seed,
    )  # fmt: skip


@register_known("tracr-shuffle-dyck")
def shuffle_dyck(n: int = 32, seed: int = 0) -> Known:
    """Whether two kinds of brackets are balanced, each on its own."""
    return _known(
        "tracr-shuffle-dyck", lambda lib, rasp: lib.make_shuffle_dyck(pairs=["()", "{}"]), ["(", ")", "{", "}"],
        _brackets, n, seed,
    )  # fmt: skip
