"""Random cases for replay: a model, a task, interventions and a metric, drawn by hypothesis.

What is drawn: family, padding and lengths, the column where clean and corrupt first differ, single answers or
answers of several tokens, the metric, and for each intervention several edits of any kind at any sites, layers
and selections. Tensors come from a drawn seed.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from interp.hooks import edits
from interp.hooks.context import EditContext
from interp.hooks.edits import Edit
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES, sites_of
from interp.hooks.values import Means, Run
from interp.interventions.reading import Reader
from interp.metrics import get_metric
from interp.models.model import Model
from interp.models.tiny import resized
from interp.tasks.answers import Answers
from interp.tasks.values import Task
from tests.tiny import HF_KINDS, KINDS, VOCAB, tiny

LAYERS = 3
METRICS = {"logit_diff": "answers", "logit": "answers", "kl": "vocab", "prob_diff": "vocab", "cross_entropy": "all"}
LABELS = ("A", "B")
EDIT_KINDS = (
    "zero", "scale", "add", "project_out", "mean", "mean by position", "mean by label", "mean by template", "patch",
    "patch a basis", "self", "resample", "freeze", "hold", "function", "function that mixes rows",
)  # fmt: skip


@functools.cache
def model_of(kind: str) -> Model:
    """A tiny model of three layers."""
    return tiny(kind, **(resized(kind, layers=LAYERS) if kind in HF_KINDS else {"layers": LAYERS}))


@functools.cache
def in_double(kind: str) -> Model:
    """The same model in float64."""
    own = model_of(kind)
    module: Any = copy.deepcopy(own.module).double()
    if kind in HF_KINDS and module._can_set_experts_implementation():
        module.set_experts_implementation("eager")
    return Model(module, own.family, module.config, name=own.name)


@dataclass(frozen=True, eq=False, repr=False)
class Case:
    """One drawn case."""

    kind: str
    model: Model
    reader: Reader
    interventions: tuple[tuple[Edit, ...], ...]
    scale: float
    """The promise's: max(|m_clean − m_corrupt|, standard deviation over prompts)."""

    def __repr__(self) -> str:
        p = self.reader.prompts
        made = "; ".join(", ".join(map(str, e)) for e in self.interventions)
        about = f"{self.model.name}, {self.reader.metric.name}, {self.reader.side}"
        return f"Case({about}, mask {p.mask.int().tolist()}: {made})"

    def plain(self) -> Tensor:
        """One whole forward pass per intervention."""
        return torch.stack([self.reader.of_logits(logits) for logits in self.logits()])

    def logits(self) -> Iterator[Tensor]:
        """All logits of each intervention's plain pass."""
        return (self.model.run(self.reader.prompts, edits=e).logits for e in self.interventions)

    def in_double(self) -> Case:
        """The same weights and the same edits, computed in float64."""
        model = in_double(self.kind)
        return replace(self, model=model, reader=replace(self.reader, net=model.net))


class Source:
    """Everything edits read: runs of both sides and means, made when asked for."""

    def __init__(self, model: Model, task: Task, side: str, seed: int) -> None:
        self.model, self.task, self.side = model, task, side
        self.generator = torch.Generator().manual_seed(seed)
        self.base = task.prompts(side)  # type: ignore[arg-type]
        self.other = task.prompts("clean" if side == "corrupt" else "corrupt")

    def run(self, which: str, address: str) -> Run:
        """A run of the base prompts or of the other side's, with one site captured."""
        return self.model.run(self.base if which == "base" else self.other, capture=[address])

    def means(self, address: str, by: str) -> Means:
        return self.model.means(self.other, [address], by=by)

    @functools.cached_property
    def donors(self) -> Tensor:
        """The next row of the same length, round and round."""
        full = self.base.mask.sum(1).tolist()
        n = len(full)
        return torch.tensor([next(j % n for j in range(i + 1, i + n + 1) if full[j % n] == full[i]) for i in range(n)])

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)


def tokens_task(lengths: list[int], first: int, pad: str, seed: int, several: bool, early_answer: bool) -> Task:
    """Pairs that agree before `first`; labels A and B; two templates; with `early_answer` not read at the end."""
    g = torch.Generator().manual_seed(seed)
    clean = [torch.randint(1, VOCAB, (n,), generator=g).tolist() for n in lengths]
    corrupt = []
    for row in clean:
        shift = torch.randint(1, VOCAB - 1, (len(row),), generator=g).tolist()
        corrupt.append(
            [
                t if i < first else (t - 1 + s) % (VOCAB - 1) + 1
                for i, (t, s) in enumerate(zip(row, shift, strict=False))
            ]
        )
    labels = {
        "A": torch.tensor([min(1, n - 1) for n in lengths]),
        "B": torch.tensor([n // 2 for n in lengths]),
    }
    answer = torch.tensor([max(0, n - 2) for n in lengths]) if early_answer and not several else None
    template = torch.tensor([i % 2 for i in range(len(lengths))])

    def prompts(rows: list[list[int]]) -> Prompts:
        return Prompts.of(rows, pad_side=pad, labels=labels, answer=answer, template=template)

    ids = torch.randperm(VOCAB, generator=g).tolist()
    right = [[[ids[i]], [ids[i + 8]]] if i % 2 else [[ids[i]]] for i in range(len(lengths))]
    wrong = [[[ids[i + 20]]] for i in range(len(lengths))]
    if several:
        right[0] = [[ids[0], ids[30]]]
        wrong[-1] = [[ids[31], ids[32], ids[33]]]
    return Task.of("drawn", prompts(clean), prompts(corrupt), Answers.of(right), Answers.of(wrong))


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Case:
    """A case."""
    kind = draw(st.sampled_from(kinds))
    model = model_of(kind)
    seed = draw(st.integers(0, 2**16))
    short, long = draw(st.sampled_from([(5, 5), (3, 6), (6, 6), (4, 7), (2, 5)]))
    lengths = [short, long, short, long]
    pad = draw(st.sampled_from(["left", "right"]))
    first = draw(st.sampled_from([0, short // 2, short - 1]))
    # appended answer tokens continue the prompt: a bidirectional model would read them
    several = model.geometry.causal and draw(st.booleans()) and draw(st.booleans())
    task = tokens_task(lengths, first, pad, seed, several, draw(st.booleans()))
    metric = get_metric(draw(st.sampled_from(list(METRICS))))
    side = draw(st.sampled_from(["clean", "corrupt"]))
    sides = {s: model.run(task.prompts(s)).logits for s in ("clean", "corrupt")}  # type: ignore[arg-type]
    reference = metric.view(sides["clean"], task, "clean") if metric.needs_reference else None
    both = [metric(sides[s], task, s, reference) for s in ("clean", "corrupt")]  # type: ignore[arg-type]
    scale = max(float((both[0] - both[1]).abs().max()), *(float(m.std()) for m in both))
    source = Source(model, task, side, seed)
    drawn = tuple(
        tuple(draw(_edit(source)) for _ in range(draw(st.integers(1, 3)))) for _ in range(draw(st.integers(1, 5)))
    )
    late = draw(
        st.one_of(st.just(()), st.permutations((1, 2, 3)))
    )  # one token each, counted from the end: they start apart
    drawn += tuple((draw(_edit(source, -back)),) for back in late if back <= short)
    return Case(kind, model, Reader(model.net, task, metric, side, reference), drawn, scale)  # type: ignore[arg-type]


@st.composite
def _edit(draw: st.DrawFn, source: Source, only: int | None = None) -> Edit:
    g = source.model.geometry
    site = draw(st.sampled_from([s for s in sites_of(g) if s.name not in ("logits", "logits_pre_cap")]))
    layer = draw(st.integers(0, g.layers - 1)) if site.in_block else None
    address = f"L{layer}.{site.name}" if site.in_block else site.name
    parts: dict[str, Any] = {}
    for axis, word, size in (
        ("head", "head", g.heads),
        ("kv_head", "kv_head", g.kv_heads),
        ("d_mlp", "neuron", g.d_mlp),
    ):
        if axis in site.axes and draw(st.booleans()):
            parts[word] = draw(
                st.lists(st.integers(-size, size - 1), min_size=1, max_size=2, unique_by=lambda i, size=size: i % size)
            )
    shortest = int(source.base.lengths.min())
    place = st.one_of(st.integers(-shortest, shortest - 1), st.sampled_from(LABELS))
    if only is not None:
        parts["pos"] = [only]
    elif draw(st.sampled_from([True, True, False])):
        parts["pos"] = draw(st.lists(place, min_size=1, max_size=2))
    if "key" in site.axes and draw(st.booleans()):
        parts["key"] = draw(place)
    return draw(_change(source, address, parts))


@st.composite
def _change(draw: st.DrawFn, source: Source, address: str, parts: dict[str, Any]) -> Edit:
    site = SITES[address.split(".")[-1]]
    kinds = list(EDIT_KINDS)
    denominator = site.axes[-1] == "1"
    if denominator:  # a denominator stays away from 0
        kinds = ["scale", "mean", "mean by position", "patch", "self", "resample", "freeze"]
    if "head" not in site.axes and "kv_head" not in site.axes and "d_model" not in site.axes:
        kinds = [k for k in kinds if k not in ("project_out", "patch a basis")]
    if not all(isinstance(p, str) for p in parts.get("pos", [0])):
        kinds = [k for k in kinds if k != "mean by label"]
    if "key" in site.axes:  # keys are tokens: averaged by position only, and no basis spans them
        kinds = [k for k in kinds if k not in ("mean", "mean by label", "patch a basis", "project_out", "add")]
    if not site.in_block and site.name.startswith("ln_final"):
        kinds = [k for k in kinds if not k.startswith("function")] + ["function"]
    kind = draw(st.sampled_from(kinds))
    g = source.model.geometry
    sizes = [source.base.width if w == "key" else w for w in site.shape(g)]
    last = sizes[-1] if "neuron" not in parts else len(parts["neuron"])
    if kind == "zero":
        return edits.zero(address, **parts)
    if kind == "scale":
        return edits.scale(address, draw(st.sampled_from([0.5, 1.0, 1.5])), **parts)
    if kind == "add":
        return edits.add(address, source.noise(last), **parts)
    if kind == "project_out":
        return edits.project_out(address, source.noise(2, last), **parts)
    if kind.startswith("mean"):
        by = kind.removeprefix("mean").removeprefix(" by ") or "all"
        return edits.mean(address, source.means(address, by), **parts)
    if kind == "patch a basis":
        return edits.patch(address, source.run("other", address), basis=source.noise(last, 2), **parts)
    if kind in ("patch", "self"):
        return edits.patch(address, source.run("other" if kind == "patch" else "base", address), **parts)
    if kind == "resample":
        return edits.resample(address, source.run("base", address), seed=0, rows=source.donors, **parts)
    if kind == "freeze":
        return edits.freeze(address, **parts)
    if kind == "hold":
        return edits.hold(address, _part(source.run("other", address)[address], site.axes, parts), **parts)
    if kind == "function":
        return edits.function(address, _bent, row_wise=True, position_wise=True, **parts)
    return edits.function(address, _mixed, **parts)


def _part(x: Tensor, axes: tuple[str, ...], parts: dict[str, Any]) -> Tensor:
    for word in ("head", "kv_head", "neuron"):
        if word in parts:
            axis = axes.index("d_mlp" if word == "neuron" else word)
            x = x.index_select(axis, torch.tensor(parts[word]) % x.shape[axis])
    return x


def _bent(x: Tensor, ctx: EditContext) -> Tensor:
    return x * 0.5 + x.sin()


def _mixed(x: Tensor, ctx: EditContext) -> Tensor:
    return x.flip(0)


def edits_of(case: Case) -> Iterator[Edit]:
    """Every edit of a case."""
    for intervention in case.interventions:
        yield from intervention
