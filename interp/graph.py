"""The circuit graph of a model: nodes that write to the residual stream, slots that read it, edges between.

Sources are the input, every head and every MLP. Slots are the q, k and v of every head (one k and one v per
kv head; per query head in the *ungrouped* graph that MIB files use), every MLP, and the logits. An edge goes
from a source to each slot that reads the stream after the source wrote to it; in a parallel block the heads
do not reach the MLP of their own layer.

Names follow the MIB circuit track: nodes `input`, `a1.h0`, `m1`, `logits`; edges `a0.h1->a1.h0<q>`.

    >>> from interp.hooks.geometry import Geometry
    >>> g = Graph(Geometry(layers=2, heads=4, kv_heads=4, d_model=8, d_head=2, d_mlp=8, d_vocab=5, n_ctx=4))
    >>> len(g.edges), str(g.edges[0])
    (110, 'input->a0.h0<q>')

Source: 2304.14997, 2310.10348, 2504.13151.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from interp.hooks.geometry import Geometry
from interp.registry import UserError, unknown

Kind = Literal["input", "head", "mlp", "logits"]
Part = Literal["q", "k", "v"]
_NODE = re.compile(r"input|logits|m(?P<mlp>[0-9]{1,9})|a(?P<layer>[0-9]{1,9})\.h(?P<head>[0-9]{1,9})")
_EDGE = re.compile(r"(?P<src>[^<>\s-]+)\s*->\s*(?P<dst>[^<>\s]+?)(?:<(?P<part>[qkv])>)?")


@dataclass(frozen=True, order=True)
class Node:
    """The input, a head, an MLP, or the logits."""

    kind: Kind
    layer: int = -1
    head: int = -1

    @staticmethod
    def parse(name: str) -> Node:
        """Read a node's name; UserError where it has another form."""
        found = _NODE.fullmatch(name)
        if not found:
            raise UserError(f"not a node: {name!r}; expected input, logits, m<layer> or a<layer>.h<head>")
        if found["mlp"]:
            return Node("mlp", int(found["mlp"]))
        if found["layer"]:
            return Node("head", int(found["layer"]), int(found["head"]))
        return Node("input" if name == "input" else "logits")

    def __str__(self) -> str:
        if self.kind == "head":
            return f"a{self.layer}.h{self.head}"
        return f"m{self.layer}" if self.kind == "mlp" else self.kind


@dataclass(frozen=True, order=True)
class Slot:
    """Where a node reads the residual: an MLP, the logits, or a head's q, k or v.

    For k and v of the grouped graph the node's head is the kv head.
    """

    node: Node
    part: Part | None = None

    @staticmethod
    def parse(name: str) -> Slot:
        """Read `m1`, `logits` or `a1.h0<q>`."""
        found = re.fullmatch(r"([^<>]+)(?:<([qkv])>)?", name.strip())
        if not found:
            raise UserError(f"not a slot: {name!r}; expected m<layer>, logits or a<layer>.h<head><q|k|v>")
        node = Node.parse(found[1])
        if (node.kind == "head") != (found[2] is not None):
            raise UserError(
                f"not a slot: {name!r}; heads read through <q>, <k> or <v> (a1.h0<q>), other nodes have no parts"
            )
        return Slot(node, found[2])  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.node}<{self.part}>" if self.part else str(self.node)


@dataclass(frozen=True, order=True)
class Edge:
    """From a source's output to a slot."""

    src: Node
    dst: Slot

    @staticmethod
    def parse(name: str) -> Edge:
        """Read `a0.h1->a1.h0<q>`."""
        found = _EDGE.fullmatch(name.strip())
        if not found:
            raise UserError(f"not an edge: {name!r}; expected <node>-><node>, such as a0.h1->a1.h0<q>")
        part = f"<{found['part']}>" if found["part"] else ""
        return Edge(Node.parse(found["src"]), Slot.parse(found["dst"] + part))

    def __str__(self) -> str:
        return f"{self.src}->{self.dst}"


@dataclass(frozen=True)
class Graph:
    """All nodes and edges of a geometry. `ungrouped` gives every query head a k and a v of its own."""

    geometry: Geometry
    ungrouped: bool = False

    def __post_init__(self) -> None:
        if self.ungrouped and self.geometry.group > 1 and not self.geometry.qk_norm_apart:
            raise UserError(
                "this model norms the keys of a layer's kv heads with regard to one another, so query heads that share "
                "a kv head have no keys of their own; use the grouped graph (ungrouped=False)"
            )

    @cached_property
    def sources(self) -> tuple[Node, ...]:
        """Writers to the residual stream, in the order of the forward pass."""
        return (Node("input"), *(n for layer in range(self.geometry.layers) for n in self._layer(layer)))

    def _layer(self, layer: int) -> list[Node]:
        heads = [Node("head", layer, h) for h in range(self.geometry.heads)]
        return [*heads, Node("mlp", layer)] if self.geometry.mlp else heads

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Sources, then the logits."""
        return (*self.sources, Node("logits"))

    @property
    def per_layer(self) -> int:
        """Sources a layer adds."""
        return self.geometry.heads + (1 if self.geometry.mlp else 0)

    @property
    def kv_heads(self) -> int:
        """Heads that k and v slots are counted by."""
        return self.geometry.heads if self.ungrouped else self.geometry.kv_heads

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Readers of the residual stream, in the order of the forward pass: by layer q, k, v, then the MLP."""
        found: list[Slot] = []
        for layer in range(self.geometry.layers):
            found += [Slot(Node("head", layer, h), "q") for h in range(self.geometry.heads)]
            for part in ("k", "v"):
                found += [Slot(Node("head", layer, h), part) for h in range(self.kv_heads)]  # type: ignore[arg-type]
            if self.geometry.mlp:
                found.append(Slot(Node("mlp", layer)))
        return (*found, Slot(Node("logits")))

    def upstream(self, slot: Slot) -> int:
        """How many sources (the first ones in order) this slot reads."""
        layer, g = slot.node.layer, self.geometry
        if slot.node.kind == "logits":
            return len(self.sources)
        before = 1 + layer * self.per_layer
        return before + (g.heads if slot.node.kind == "mlp" and not g.parallel else 0)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge, by slot and then by source."""
        return tuple(Edge(src, slot) for slot in self.slots for src in self.sources[: self.upstream(slot)])

    @cached_property
    def source_index(self) -> dict[Node, int]:
        return {n: i for i, n in enumerate(self.sources)}

    @cached_property
    def slot_index(self) -> dict[Slot, int]:
        return {s: i for i, s in enumerate(self.slots)}

    def slots_of(self, node: Node) -> tuple[Slot, ...]:
        """The slots through which a node reads: a head's q, and the k and v it uses."""
        if node.kind == "input":
            return ()
        if node.kind != "head":
            return (Slot(node),)
        kv = Node("head", node.layer, node.head if self.ungrouped else node.head // self.geometry.group)
        return (Slot(node, "q"), Slot(kv, "k"), Slot(kv, "v"))

    def readers(self, slot: Slot) -> tuple[Node, ...]:
        """The nodes that use what a slot reads: for a shared kv head, every head of its group."""
        if slot.part in ("k", "v") and not self.ungrouped and slot.node.kind == "head":
            group = self.geometry.group
            return tuple(Node("head", slot.node.layer, slot.node.head * group + i) for i in range(group))
        return (slot.node,)

    def check(self, edge: Edge | str) -> Edge:
        """The edge, if this graph has it; UserError that says what is wrong otherwise."""
        one = Edge.parse(edge) if isinstance(edge, str) else edge
        if one.src not in self.source_index:
            raise unknown("source node", str(one.src), [str(n) for n in self.sources])
        if one.dst not in self.slot_index:
            raise unknown("slot", str(one.dst), [str(s) for s in self.slots])
        if self.source_index[one.src] >= self.upstream(one.dst):
            raise UserError(f"this model has no edge {one}: {one.dst} reads the stream before {one.src} writes to it")
        return one

    def between(self, edges: Iterable[Edge | str]) -> Iterator[Edge]:
        """The edges, each checked against the graph."""
        return (self.check(e) for e in edges)

    def __str__(self) -> str:
        kind = "ungrouped" if self.ungrouped else "grouped"
        return f"graph of {len(self.nodes)} nodes and {len(self.edges)} edges ({kind})"
