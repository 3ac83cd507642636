"""The executor: run a plan's passes, and what must be plain the plain way.

A pass holds `interventions × prompts` rows, each from its first changed column on (`segment.py`). It walks up the
layers once: at each layer the rows already in it run the whole block, the interventions that enter here run the rest
of the block from the site they edit, and both go on together. After the last layer only the metric's positions are
left, and of the logits only what it reads is computed. A pass that runs out of memory is halved, and the smaller
size is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.context import Held
from interp.hooks.sites import SITES
from interp.hooks.values import NO_TENSORS
from interp.interventions.entry import BEFORE_QUERIES, Entry
from interp.interventions.layout import Layout, Lying, Rows, cat, join
from interp.interventions.plan import Item, Pass, Plan
from interp.interventions.segment import Segment
from interp.models.block import Beside, block
from interp.models.forward import final_norm, unembed
from interp.models.heap import keep_freed_memory
from interp.registry import UserError

log = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference from the plain way, as a share of the metric's scale, by dtype."""


def execute(plan: Plan, progress: Any = None) -> Float[Tensor, "intervention prompt"]:
    """The metric of every intervention and prompt. `progress(done, total)` is called as rows finish."""
    reader, total = plan.reader, len(plan.interventions)
    done = 0
    out: Tensor | None = None

    def put(items: Sequence[Item], values: Tensor) -> None:
        nonlocal out, done
        if not items:
            return
        if out is None:
            out = values.new_zeros(total, values.shape[-1])
        out[[item.index for item in items]] = values
        done += len(items)
        if progress is not None:
            progress(done, total)

    keep_freed_memory(plan.base.net.device)
    with torch.no_grad():
        waiting = list(plan.passes)
        limit = None
        while waiting:
            one = waiting.pop(0)
            if limit is not None and len(one.items) > limit:
                waiting[:0] = _split(one, limit)
                continue
            try:
                items, values = PassRun(plan, one).values()
            except RuntimeError as e:
                if not out_of_memory(e) or len(one.items) == 1:
                    raise
                limit = max(1, len(one.items) // 2)
                log.warning("out of memory with %d interventions a pass; going on with %d", len(one.items), limit)
                waiting[:0] = _split(one, limit)
            else:
                put(items, values)
        for item in plan.plain:
            put([item], plain_value(plan, item))
        if plan.idle:
            put(plan.idle, baseline(plan))
    if out is None:
        return torch.zeros(0, reader.task.n)
    if plan.options.exact:
        verify(plan, out, baseline(plan))
    return out


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text


def _split(one: Pass, limit: int) -> list[Pass]:
    return [Pass(one.items[i : i + limit]) for i in range(0, len(one.items), limit)]


def plain_value(plan: Plan, item: Item) -> Float[Tensor, " prompt"]:
    """The metric of one intervention by one whole forward pass."""
    run = plan.model.run(plan.reader.prompts, edits=plan.interventions[item.index])
    return plan.reader.of_logits(run.logits)


def baseline(plan: Plan) -> Float[Tensor, " prompt"]:
    """The metric of the unedited base run, read the way the plan reads. Computed once for a plan."""
    reader = plan.reader
    if "baseline" not in plan.notes:
        if plan.options.plain or not plan.options.prefix or plan.base.altered:
            plan.notes["baseline"] = reader.of_logits(plan.model.run(reader.prompts).logits)
        else:
            with torch.no_grad():
                view = plan.base.view(reader)
                plan.notes["baseline"] = reader.metric.from_view(view, reader.task, reader.compared)
    value: Tensor = plan.notes["baseline"]
    return value


def verify(plan: Plan, values: Float[Tensor, "intervention prompt"], base_value: Tensor, sample: int = 3) -> None:
    """Re-run a sample the plain way; UserError where it differs beyond the promise's tolerance."""
    replayed = [i for one in plan.passes for i in one.items] + list(plan.idle)
    chosen = replayed[:: max(1, len(replayed) // sample)][:sample]
    scale = max(float(values.std(dim=0).max()) if len(values) > 1 else 0.0, float(base_value.abs().max()), 1e-3)
    allowed = TOLERANCE.get(plan.base.net.dtype, 1e-5) * scale
    for item in chosen:
        plain = plain_value(plan, item)
        worst = float((plain - values[item.index]).abs().max())
        if worst > allowed:
            raise UserError(
                f"replay of intervention {item.index} ({', '.join(map(str, plan.interventions[item.index]))}) differs "
                f"from the plain run by {worst:.3g}, more than {allowed:.3g}"
            )


Values = tuple[list[Item], Float[Tensor, "item prompt"]]
"""Interventions and the metric of each."""


class PassRun:
    """One pass: walks the layers with the rows of all segments side by side, and reads the metric."""

    def __init__(self, plan: Plan, one: Pass) -> None:
        self.plan, self.base, self.reader, self.shortcuts = plan, plan.base, plan.reader, plan.options.prefix
        self.net = replace(self.base.net, loose=self.shortcuts)
        self.layers = self.net.geometry.layers
        self.rows, self.items = len(self.base.prompts), one.items
        self.segments = {
            first: Segment(self.base, self.net, self.reader, first, self.shortcuts) for first in one.firsts
        }
        self.lying: Lying | None = None

    def values(self) -> Values:
        """The metric of every intervention of the pass, in an order of their own."""
        order: list[Item] = []
        resid: Rows = {}
        lowest = min(i.entry.layer for i in self.items if i.entry)
        for layer in range(lowest, self.layers + 1):
            inside, groups = 0 <= layer < self.layers, self._groups(layer)
            for entry, group in groups:
                if inside and not entry.given:  # they run the whole block, so together with the rows already in
                    join(resid, {s.first: [s.before_block(entry, i)] for s, i in self._layout(group).standing})
                    order = order + group
            joining = [i for entry, group in groups if order and entry.given == ("z",) for i in group]
            if order and inside:
                resid = self._block(layer, resid, order, joining=joining)
                order = order + joining
            for entry, group in groups:
                if (not inside or entry.given) and group[0] not in joining:
                    join(resid, self._enter(entry, group))
                    order = order + group
        return self._read(resid, order)

    def _groups(self, layer: int) -> list[tuple[Entry, list[Item]]]:
        """Interventions that enter at a layer, by entry."""
        here = [i for i in self.items if i.entry is not None and i.entry.layer == layer]
        return [(e, [i for i in here if i.entry == e]) for e in sorted({i.entry for i in here if i.entry})]

    def _layout(self, items: Sequence[Item], alone: bool | None = None) -> Layout:
        """Interventions by the columns they hold."""
        held: dict[int, list[Item]] = {}
        for item in items:
            held.setdefault(item.first, []).append(item)
        return Layout([(self.segments[first], held[first]) for first in sorted(held)], self.rows, alone)

    def _enter(self, entry: Entry, group: list[Item]) -> Rows:
        """The residual after the entry layer, for interventions that enter inside it or outside the blocks."""
        layout, layer = self._layout(group), entry.layer
        if not 0 <= layer < self.layers:
            return {s.first: [s.outside(entry, items)] for s, items in layout.standing}
        narrow, given = layer == self.layers - 1, {}
        for site in entry.given:
            axis, cut = SITES[site].token_axis, narrow and site not in BEFORE_QUERIES
            full = self.base.at(site, layer)
            given[site] = layout.flat(
                {s.first: [s.expanded(full, len(items), axis, cut)] for s, items in layout.standing}
            )
        full = self.base.at("resid_pre", layer)
        resid = {s.first: [s.expanded(full, len(items))] for s, items in layout.standing}
        return self._block(layer, resid, group, given)

    def _block(
        self,
        layer: int,
        resid: Rows,
        order: Sequence[Item],
        given: Mapping[str, Tensor] = NO_TENSORS,
        joining: Sequence[Item] = (),
    ) -> Rows:
        """One block: for the rows in it, and those that join them at z."""
        every = self._layout([*order, *joining])
        here, last = self._layout(order, every.alone), layer == self.layers - 1
        beside = self._beside(layer, here, every, joining) if joining else None
        every.set_rows()
        tail = last and any(s.tail is not None for s, _ in every.standing)
        prefix = [s.prefix(layer) for s, _ in here.standing]
        out, _ = block(
            self.net, layer, here.flat(resid, self.lying), here.columns(), every.tap(here, self.layers),
            prefix=prefix[0] if every.alone else prefix, given=given, tail=here.columns(tail) if tail else None,
            beside=beside, spare=len(order) > 1,  # the rows of a single one may be the base run's memory
        )  # fmt: skip
        after = every.parted(out, tail)
        self.lying = None if every.alone else (out, [piece for pieces in after.values() for piece in pieces])
        return after

    def _beside(self, layer: int, here: Layout, every: Layout, joining: Sequence[Item]) -> Beside:
        """Puts the rows of interventions that join at z after those of their segment."""
        tail, joins = layer == self.layers - 1, self._layout(joining).standing

        def put(resid: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            joined = [(s.first, s.at_z(layer, items)) for s, items in joins]
            every.set_rows()
            both = []
            for which, x in enumerate((resid, z)):
                rows = here.parted(x, tail)
                join(rows, {first: [pair[which]] for first, pair in joined})
                both.append(every.flat(rows))
            return both[0], both[1]

        return put

    def _read(self, resid: Rows, order: Sequence[Item]) -> Values:
        layout = self._layout(order)
        layout.set_rows()
        every = final_norm(self.net, layout.flat(resid), layout.tap(layout, self.layers))
        parts, standing = layout.parted(every, True), layout.standing
        x = cat([self._kept(segment, items, parts[segment.first][0]) for segment, items in standing])
        values = self._values(x).split([len(items) for _, items in standing])
        each = [self._or_base(value, s.first) for (s, _), value in zip(standing, values, strict=True)]
        return [i for _, items in standing for i in items], cat(each)

    def _kept(self, segment: Segment, items: Sequence[Item], x: Tensor) -> Float[Tensor, "item row kept d_model"]:
        """The columns that the metric reads of what the unembedding receives."""
        read = self.reader.columns
        if self.shortcuts and read is not None and segment.tail is None:
            here = (read - segment.first).clamp(min=0)
            x = Held(self.base.prompts, here if here.ndim == 1 else here.repeat(len(items), 1), False).take(x)
        return x.view(len(items), self.rows, *x.shape[1:])

    def _values(self, x: Float[Tensor, "item row kept d_model"]) -> Float[Tensor, "item prompt"]:
        if not self.shortcuts:
            return torch.stack([self.reader.of_logits(unembed(self.net, one)) for one in x])
        return self.reader.values_of(x)

    def _or_base(self, values: Float[Tensor, "item prompt"], first: int) -> Float[Tensor, "item prompt"]:
        """The base run's value of prompts that read a column before the first one held."""
        read = self.reader.columns
        if not self.shortcuts or read is None or first <= self.reader.first_column:
            return values
        before = (read.expand(self.rows, -1)[:, 0] < first)[self.reader.task.first_rows]
        return torch.where(before, baseline(self.plan), values)
