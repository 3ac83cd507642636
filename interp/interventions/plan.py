"""The planner: from a base run, interventions and a metric to the cheapest exact execution.

An intervention is a tuple of edits made together in one run. For each the planner finds

1. whether anything changes: an edit whose new value equals the base run's costs nothing (`changes.py`);
2. the entry: the earliest edited layer, and within it the earliest edited site (`entry.py`);
3. the first column that changes: what lies before it is the base run's (causal models);
4. what must run the plain way, and why.

Interventions are packed as rows of one pass. A pass walks up the layers once; interventions join it at the layer
where they enter (`replay.py` executes). Rows hold their columns from the first changed one on; close ones are made
the same where that costs less than mixing the positions of each apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.hooks.edits import Edit
from interp.hooks.geometry import Geometry
from interp.hooks.sites import SITES
from interp.interventions.base import Base, base_run
from interp.interventions.changes import Maps, first_change
from interp.interventions.cost import block_flops, entry_flops, plain_flops, reading_flops
from interp.interventions.entry import FINAL, Entry, entry_of
from interp.interventions.reading import Reader
from interp.models.model import Model

Intervention = tuple[Edit, ...]

PASS_TOKENS = 1536
"""Tokens a pass holds at most: on a CPU larger ones gain nothing, smaller ones read the weights more often."""
PASS_NUMBERS = 3 << 20
"""Numbers in the widest activation of a pass up to which it may hold more: in small ones launches cost the most."""
PASS_OVERHEAD = 48.0
"""What one more pass costs at each layer it walks, in tokens: reading the weights again and launching the kernels."""
SEGMENT_OVERHEAD = 15e6
"""What one more first column within a pass costs at each layer, in operations: its own small kernels of attention."""


@dataclass(frozen=True)
class Options:
    """How interventions are executed. Every setting gives the same numbers; see the promises in the README."""

    plain: bool = False
    """One whole forward pass per intervention."""
    prefix: bool = True
    """Reuse the columns before the first change, and read only the metric's logits and positions.

    Without it every pass holds the plain run's rows and positions: with `pack=1` bit-identical on a CPU."""
    pack: int | None = None
    """Interventions per pass; by default as many as `PASS_TOKENS` and `PASS_NUMBERS` allow."""
    exact: bool = False
    """Run a sample of the interventions the plain way too, and raise where they differ beyond the promise."""


DEFAULT = Options()


@dataclass(frozen=True, eq=False)
class Item:
    """One intervention as planned."""

    index: int
    edits: tuple[tuple[Address, Edit], ...]
    entry: Entry | None = None
    """None: nothing changes (`why` empty) or it runs the plain way (`why` says why)."""
    first: int = 0
    why: str = ""

    @property
    def idle(self) -> bool:
        return self.entry is None and not self.why


@dataclass(frozen=True, eq=False)
class Pass:
    """Interventions that run as rows of one forward pass, each from its own first column on."""

    items: tuple[Item, ...]

    @property
    def firsts(self) -> list[int]:
        """The first columns, in order."""
        return sorted({i.first for i in self.items})


@dataclass(frozen=True, eq=False)
class Plan:
    """What will be run. `run()` gives the metric `[intervention, prompt]`; `explain()` says how."""

    model: Model
    interventions: tuple[Intervention, ...]
    reader: Reader
    base: Base
    options: Options
    idle: tuple[Item, ...]
    plain: tuple[Item, ...]
    passes: tuple[Pass, ...]
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole plan, matrix products only (the base run not counted)."""
        g, p = self.base.net.geometry, self.reader.prompts
        whole = plain_flops(g, len(p), p.width)
        return len(self.plain) * whole + sum(pass_flops(one, self.reader, g) for one in self.passes)

    def explain(self) -> Any:
        """A table of what is run and why: one row per pass, one for what is plain and one for what is idle."""
        import pandas as pd

        g, p = self.base.net.geometry, self.reader.prompts
        whole = plain_flops(g, len(p), p.width)
        rows: list[dict[str, Any]] = []
        if self.idle:
            rows.append({"how": "nothing to run", "interventions": len(self.idle), "flops": 0,
                         "why": "the edits give the base run's own values"})  # fmt: skip
        for one in self.passes:
            layers = [i.entry.layer for i in one.items if i.entry]
            sites = sorted({i.entry.site for i in one.items if i.entry})
            low, high, cost = one.firsts[0], one.firsts[-1], pass_flops(one, self.reader, g)
            rows.append({
                "how": "replay", "interventions": len(one.items), "enter layers": f"{min(layers)}–{max(layers)}",
                "enter sites": ", ".join(sites), "first column": low if low == high else f"{low}–{high}",
                "of columns": p.width, "logits": self.reader.reads if self.options.prefix else "all", "flops": cost,
                "of plain": cost / (whole * len(one.items)),
                "why": "" if high else "changes start at 0" if self.options.prefix else "prefix reuse is off",
            })  # fmt: skip
        for why in sorted({i.why for i in self.plain}):
            n = sum(i.why == why for i in self.plain)
            rows.append({"how": "plain", "interventions": n, "first column": 0, "of columns": p.width,
                         "logits": "all", "flops": n * whole, "of plain": 1.0, "why": why})  # fmt: skip
        return pd.DataFrame(rows)

    def run(self, progress: Any = None) -> Tensor:
        """Execute: the metric of every intervention and prompt, `[intervention, prompt]`."""
        from interp.interventions.replay import execute

        return execute(self, progress)

    def _repr_html_(self) -> str:
        from interp.plots.show import card

        g, p = self.base.net.geometry, self.reader.prompts
        whole = plain_flops(g, len(p), p.width) * max(1, len(self.interventions))
        facts = {
            "interventions": len(self.interventions), "passes": len(self.passes), "prompts": len(p),
            "share of the operations of plain passes": f"{self.flops / whole:.0%}",
        }  # fmt: skip
        return card("Plan", facts, self.explain(), most=20)


def pass_flops(one: Pass, reader: Reader, g: Geometry) -> int:
    """Floating-point operations of one pass."""
    rows, width = len(reader.prompts), reader.prompts.width
    columns = reader.columns
    total = 0
    for item in one.items:
        assert item.entry is not None
        tokens = rows * (width - item.first)
        kept = tokens if columns is None else rows * min(columns.shape[-1], width - item.first)
        for layer in range(max(0, item.entry.layer), g.layers):
            queries = kept if layer == g.layers - 1 else tokens
            if layer == item.entry.layer:
                total += entry_flops(g, item.entry, tokens, queries, width)
            else:
                total += block_flops(g, tokens, queries, width)
        answers = None
        if reader.reads == "answers":
            answers = reader.task.right.tokens.shape[1] + reader.task.wrong.tokens.shape[1]
        total += reading_flops(g, rows, kept // rows, answers)
    return total


def make_plan(
    model: Model,
    interventions: Iterable[Iterable[Edit]],
    reader: Reader,
    options: Options = DEFAULT,
    base: Base | None = None,
) -> Plan:
    """Plan the interventions on `reader`'s prompts; everything is checked before anything runs.

    Raises UserError where an edit does not fit the model or the prompts.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> from interp.hooks.edits import zero
    >>> from interp.metrics import get_metric
    >>> reader = Reader(model.net, task, get_metric("logit_diff"), "clean", None)
    >>> plan = make_plan(model, [[zero("L1.z", head=h)] for h in range(4)], reader)
    >>> plan.run().shape  # interventions, prompts
    torch.Size([4, 8])
    """
    many = tuple(tuple(edits) for edits in interventions)
    prompts, g = reader.prompts, model.geometry
    held = Held.all(prompts)
    resolved = [tuple((a, e) for e in edits for a in e.check(g, prompts, held)) for edits in many]
    if base is None:
        places = [[a for a, _ in edits] for edits in resolved]
        base = base_run(model, prompts, needed(places, g, options), reader.net, whole_passes=True)
    maps = Maps()
    items = [_item(i, edits, base, reader, options, maps) for i, edits in enumerate(resolved)]
    passes = _passes([i for i in items if i.entry is not None], reader, options)
    return Plan(
        model, many, reader, base, options,
        tuple(i for i in items if i.idle), tuple(i for i in items if i.why), tuple(passes),
    )  # fmt: skip


def needed(interventions: Iterable[Sequence[Address]], g: Geometry, options: Options) -> list[Address]:
    """Addresses of the base run that passes will be given, by what each intervention edits."""
    want: dict[Address, None] = {}
    lowest = g.layers
    for edited in interventions:
        for address in edited:
            want[address] = None
            if address.layer is not None:
                lowest = min(lowest, address.layer)
            elif address.site in ("embed", "pos_embed"):
                lowest = 0
        for layer in {a.layer for a in edited if a.layer is not None}:
            entry = entry_of([a.site for a in edited if a.layer == layer], layer, g)
            for site in entry.given:
                want[Address(site, layer)] = None
            want[Address("resid_pre", layer)] = None
    if options.prefix and g.causal:
        for layer in range(lowest, g.layers):
            want[Address("k_rot", layer)] = want[Address("v", layer)] = None
    return [a for a in want if SITES[a.site].in_block or a.site in ("embed", "pos_embed", *FINAL)]


def _item(
    index: int, edits: tuple[tuple[Address, Edit], ...], base: Base, reader: Reader, options: Options, maps: Maps
) -> Item:
    why = _reason_for_plain(edits, base.altered, options)
    if why:
        return Item(index, edits, why=why)
    firsts = [first_change(address, edit, base, maps) for address, edit in edits]
    changing = [f for f in firsts if f is not None]
    if not changing:
        return Item(index, edits)
    first = min(changing) if options.prefix and base.net.geometry.causal else 0
    sites = tuple(address for address, _ in edits)
    if sites not in maps.entries:
        maps.entries[sites] = _entry(sites, base.net.geometry)
    return Item(index, edits, maps.entries[sites], _covering(first, reader))


def _covering(first: int, reader: Reader) -> int:
    """A pass must hold every column the metric reads, unless each row reads just one (rows before it keep
    the base run's value)."""
    columns = reader.columns
    if columns is None:
        return 0
    if columns.shape[-1] > 1:
        return min(first, reader.first_column)
    return min(first, reader.prompts.width - 1)


def _reason_for_plain(edits: tuple[tuple[Address, Edit], ...], altered: str, options: Options) -> str:
    if options.plain:
        return "asked for"
    if altered:
        return altered
    for address, edit in edits:
        if not (edit.row_wise and edit.position_wise):
            return f"{edit.kind} at {address} may mix rows or positions"
        if not SITES[address.site].in_block and address.site not in ("embed", "pos_embed", *FINAL):
            return f"{address} is where the metric is read"
        if address.site in FINAL and not options.prefix:
            return f"{address} with prefix reuse off"
    return ""


def _entry(edited: Sequence[Address], g: Geometry) -> Entry:
    if any(a.site in ("embed", "pos_embed") for a in edited):
        return Entry(-1, (), "embed")
    layers = [a.layer for a in edited if a.layer is not None]
    if not layers:
        return Entry(g.layers, (), "ln_final")
    lowest = min(layers)
    return entry_of([a.site for a in edited if a.layer == lowest], lowest, g)


def _passes(items: list[Item], reader: Reader, options: Options) -> list[Pass]:
    """Merge neighbouring first columns where that is cheaper, and cut to the pack size.

    Interventions that edit scores or patterns share a pass with those of the same first column only: their tensors
    are no tokens side by side.
    """
    rows, width = len(reader.prompts), reader.prompts.width
    apart: list[Item] = []
    beside: list[Item] = []
    for item in items:
        (apart if mixes(item) else beside).append(item)
    each = SEGMENT_OVERHEAD / block_flops(reader.net.geometry, 1, 1, width)
    groups = [[i for group in _merged(beside, reader, each) for i in group], *_merged(apart, reader, PASS_OVERHEAD)]
    passes, g = [], reader.net.geometry
    most = max(PASS_TOKENS, PASS_NUMBERS // max(g.d_mlp, g.d_model))
    for mine in groups:
        chunk: list[Item] = []
        tokens = 0
        # deepest entries last: a pass then holds few rows on the lower layers
        ranks = {entry: rank for rank, entry in enumerate(sorted({i.entry for i in mine if i.entry}))}
        for item in sorted(mine, key=lambda i: (ranks[i.entry], i.index)):  # type: ignore[index]
            own = rows * (width - item.first)
            if chunk and (len(chunk) == options.pack or (options.pack is None and tokens + own > most)):
                passes.append(Pass(tuple(chunk)))
                chunk, tokens = [], 0
            chunk.append(item)
            tokens += own
        if chunk:
            passes.append(Pass(tuple(chunk)))
    return passes


def mixes(item: Item) -> bool:
    """Whether an intervention edits, or is given, what lies between tokens: scores or pattern."""
    assert item.entry is not None
    return any(map(_between_tokens, (*item.entry.given, *(a.site for a, _ in item.edits))))


@cache
def _between_tokens(site: str) -> bool:
    return "query" in SITES[site].axes


def _merged(items: list[Item], reader: Reader, overhead: float) -> list[list[Item]]:
    """Interventions by first column, neighbours made one where the higher would cost `overhead` tokens a layer."""
    rows = len(reader.prompts)
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.first, []).append(item)
    merged: list[tuple[int, list[Item]]] = []
    for first in sorted(groups, reverse=True):
        mine = groups[first]
        if merged:
            above, theirs = merged[-1]
            depths, own = _depths(theirs, reader), _depths(mine, reader)
            if sum(depths) * rows * (above - first) <= overhead * min(max(depths), max(own)):
                merged[-1] = (first, theirs + mine)
                continue
        merged.append((first, mine))
    return [[i if i.first == first else replace(i, first=first) for i in mine] for first, mine in merged]


def _depths(items: list[Item], reader: Reader) -> list[int]:
    """Layers that each item's rows walk, at least one."""
    layers = reader.net.geometry.layers
    return [max(1, layers - max(0, i.entry.layer)) for i in items if i.entry]
