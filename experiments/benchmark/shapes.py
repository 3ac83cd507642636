"""Models and prompts that are timed: random weights of a real shape, or the embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.models.model import Model
    from interp.tasks.values import Task

SHAPES = ("toy-ioi", "gpt2-small", "llama-100m", "tiny")
PROMPTS, WIDTH = 8, 15


@dataclass(frozen=True, eq=False)
class Case:
    """A model, its own Hugging Face module, and prompts whose pairs first differ at one position."""

    name: str
    model: Model
    module: Any
    task: Task
    first: int


def make_module(shape: str, seed: int = 0) -> Any:
    """The Hugging Face module of a shape, in eval mode; random weights from `seed` where none are shipped."""
    import torch
    import transformers as tf

    eager = {"attn_implementation": "eager"}
    torch.manual_seed(seed)
    if shape == "toy-ioi":
        from interp.models import zoo

        return tf.AutoModelForCausalLM.from_pretrained(zoo.folders()[shape], **eager).eval()
    if shape in ("gpt2-small", "tiny"):
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 64, "n_positions": 32}
        made = tf.GPT2LMHeadModel(tf.GPT2Config(**(sizes if shape == "tiny" else {}), **eager))
        return made.eval()
    config = tf.LlamaConfig(
        vocab_size=32_000, hidden_size=640, intermediate_size=1728, num_hidden_layers=12, num_attention_heads=10,
        num_key_value_heads=5, max_position_embeddings=256, **eager,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config).eval()


def random_pairs(model: Model, first: int, prompts: int = PROMPTS, width: int = WIDTH, seed: int = 0) -> Task:
    """Random tokens; clean and corrupt agree before `first`, differ there, and everywhere after where it is 0."""
    import torch

    from interp.hooks.prompts import Prompts
    from interp.tasks.values import Answers, Task

    generator = torch.Generator().manual_seed(seed)
    vocab = model.geometry.d_vocab
    clean = torch.randint(1, vocab, (prompts, width), generator=generator)
    corrupt = clean.clone()
    if first:
        corrupt[:, first] = (clean[:, first] + 1) % vocab
    else:
        corrupt = (clean + torch.randint(1, vocab, clean.shape, generator=generator)) % vocab
    right, wrong = (torch.randint(1, vocab, (prompts,), generator=generator).tolist() for _ in range(2))

    def answers(tokens: list[int]) -> Answers:
        return Answers.of([[[t]] for t in tokens])

    return Task.of("random pairs", Prompts.of(clean), Prompts.of(corrupt), answers(right), answers(wrong))


def make_case(shape: str, first: int) -> Case:
    """A case by name."""
    from interp.models.load import load_model

    module = make_module(shape)
    model: Any = load_model(module)
    return Case(shape, model, module, random_pairs(model, first), first)
