"""The executor: run a plan's passes, and what must be plain the plain way.

A pass holds `interventions × prompts` rows. It walks up the layers once: at each layer the rows already in it
run the whole block, the interventions that enter here run the rest of the block from the site they edit, and
both go on together. After the last layer only the metric's positions are left, and of the logits only what it
reads is computed. A pass that runs out of memory is halved, and the smaller size is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.context import EditContext, Held
from interp.hooks.edits import Edit
from interp.hooks.sites import SITES
from interp.interventions.base import Base
from interp.interventions.entry import BEFORE_QUERIES, Entry
from interp.interventions.plan import Item, Pass, Plan
from interp.interventions.reading import Reader
from interp.models.block import block
from interp.models.forward import embed, final_norm, unembed
from interp.models.grid import Grid
from interp.registry import UserError

log = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference from the plain way, as a share of the metric's scale, by dtype."""


def execute(plan: Plan, progress: Any = None) -> Float[Tensor, "intervention prompt"]:
    """The metric of every intervention and prompt. `progress(done, total)` is called as rows finish."""
    reader, total = plan.reader, len(plan.interventions)
    done = 0
    out: Tensor | None = None

    def put(items: Sequence[Item], values: Sequence[Tensor]) -> None:
        nonlocal out, done
        if out is None and values:
            out = values[0].new_zeros(total, len(values[0]))
        for item, value in zip(items, values, strict=True):
            assert out is not None
            out[item.index] = value
        done += len(items)
        if progress is not None:
            progress(done, total)

    with torch.no_grad():
        base_value = baseline(plan)
        put(plan.idle, [base_value] * len(plan.idle))
        waiting = list(plan.passes)
        limit = None
        while waiting:
            one = waiting.pop(0)
            if limit is not None and len(one.items) > limit:
                waiting[:0] = _split(one, limit)
                continue
            try:
                values = PassRun(plan.base, reader, one, plan.options.prefix, base_value).values()
            except RuntimeError as e:
                if not out_of_memory(e) or len(one.items) == 1:
                    raise
                limit = len(one.items) // 2
                log.warning("out of memory with %d interventions a pass; going on with %d", len(one.items), limit)
                waiting[:0] = _split(one, limit)
                continue
            put(one.items, values)
        for item in plan.plain:
            put([item], [plain_value(plan, item)])
    if out is None:
        return torch.zeros(0, reader.task.n)
    if plan.options.exact:
        verify(plan, out, base_value)
    return out


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text


def _split(one: Pass, limit: int) -> list[Pass]:
    return [Pass(one.first, one.items[i : i + limit]) for i in range(0, len(one.items), limit)]


def plain_value(plan: Plan, item: Item) -> Float[Tensor, " prompt"]:
    """The metric of one intervention by one whole forward pass."""
    run = plan.model.run(plan.reader.prompts, edits=plan.interventions[item.index])
    return plan.reader.of_logits(run.logits)


def baseline(plan: Plan) -> Float[Tensor, " prompt"]:
    """The metric of the unedited base run, read the way the plan reads. Computed once for a plan."""
    reader = plan.reader
    if "baseline" not in plan.notes:
        if plan.options.plain or not plan.options.prefix or plan.model._functions:
            plan.notes["baseline"] = reader.of_logits(plan.model.run(reader.prompts).logits)
        else:
            with torch.no_grad():
                view = reader.view_of_final(plan.base.final)
                plan.notes["baseline"] = reader.metric.from_view(view, reader.task, reader.reference)
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


OWN = frozenset(("resid_pre", "z"))
"""Sites whose tensor, of several interventions, is the pass's own memory: edits are made in place."""


class PassTap:
    """Applies each intervention's edits to its own rows of a packed tensor.

    A tensor may hold fewer interventions than `set_rows` named: the first ones, before others join them.
    """

    def __init__(self, base: Base, held: Held, tail: Held | None) -> None:
        self.base, self.held, self.tail = base, held, tail
        self._by_place: dict[tuple[str, int | None], list[tuple[int, Edit]]] = {}

    def set_rows(self, items: list[Item]) -> None:
        """Say which interventions the rows of the coming tensors belong to."""
        self._by_place = {}
        for slot, item in enumerate(items):
            for address, edit in item.edits:
                self._by_place.setdefault((address.site, address.layer), []).append((slot, edit))

    def wants(self, site: str, layer: int | None) -> bool:
        return (site, layer) in self._by_place

    def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
        todo = self._by_place.get((site, layer))
        if not todo:
            return x
        held, count = self.held_at(site, layer), len(x) // len(self.base.prompts)
        todo = [(slot, edit) for slot, edit in todo if slot < count]
        if count == 1:  # the plain run's own way, to the bit
            for _, edit in todo:
                x = edit.apply(x, self._context(site, layer, held, edit))
            return x
        if todo and site not in OWN:
            x = x.clone()
        for slot, edit in todo:
            rows = x[slot * len(self.base.prompts) : (slot + 1) * len(self.base.prompts)]
            edit.apply_to(rows, self._context(site, layer, held, edit))
        return x

    def _context(self, site: str, layer: int | None, held: Held, edit: Edit) -> EditContext:
        base = self.base.run if edit.needs_base else None
        return EditContext(SITES[site], layer, self.base.net.geometry, held, edit.selection, base)

    def held_at(self, site: str, layer: int | None) -> Held:
        """The columns a site's tensor holds: in the last block, from the queries on, only the metric's."""
        last = self.base.net.geometry.layers - 1
        if self.tail is None or (layer is not None and (layer < last or site in BEFORE_QUERIES)):
            return self.held
        return self.held if site in ("embed", "pos_embed") else self.tail


class PassRun:
    """One pass: builds grids, walks the layers, reads the metric."""

    def __init__(self, base: Base, reader: Reader, one: Pass, prefix: bool, base_value: Tensor) -> None:
        self.base, self.reader, self.one, self.base_value = base, reader, one, base_value
        self.net, self.first, self.shortcuts = replace(base.net, loose=prefix), one.first, prefix
        self.rows = len(base.prompts)
        columns = torch.arange(self.first, base.prompts.width, device=base.prompts.device)
        self.held = Held(base.prompts, columns, self.first == 0, start=self.first)
        read = reader.columns if prefix else None
        narrow = read is not None and read.shape[-1] < len(columns)
        self.tail = Held(base.prompts, read.clamp(min=self.first), False) if narrow and read is not None else None
        self.prefix = base.prefix(self.first)
        self.tap = PassTap(base, self.held, self.tail)
        self._grids: dict[tuple[int, bool], Grid] = {}

    def grid(self, packed: int, tail: bool = False) -> Grid:
        """Where `packed` copies of the prompts stand."""
        held = self.tail if tail else self.held
        assert held is not None
        packed = packed if self.base.prompts.padded or held.columns.ndim == 2 else 1
        if (packed, tail) not in self._grids:
            if self.base.prompts.padded:
                columns = held.columns if held.columns.ndim == 1 else held.columns.repeat(packed, 1)
                held = Held(self.base.prompts.repeat(packed), columns, held.whole)
            elif held.columns.ndim == 2:
                held = Held(self.base.prompts.repeat(packed), held.columns.repeat(packed, 1), held.whole)
            self._grids[packed, tail] = Grid(self.net, held, self.net.dtype, self.first)
        return self._grids[packed, tail]

    def values(self) -> list[Float[Tensor, " prompt"]]:
        """The metric of every intervention of the pass, in the pass's order."""
        layers = self.net.geometry.layers
        order: list[Item] = []
        resid: Tensor | None = None
        lowest = min(i.entry.layer for i in self.one.items if i.entry)
        for layer in range(lowest, layers + 1):
            inside, groups = 0 <= layer < layers, self._groups(layer)
            into = [] if resid is None else [resid]
            for entry, group in groups:
                if inside and not entry.given:  # they run the whole block, so together with the rows already in
                    into.append(self._before_block(entry, group))
                    order = order + group
            joining = [i for entry, group in groups if into and inside and entry.given == ("z",) for i in group]
            beside = self._at_z(layer, joining) if joining else None
            out = [_cat(into)] if into else []
            if into and inside:
                self.tap.set_rows(order + joining)
                out = [self._block(layer, out[0], len(order), {}, beside)]
                order = order + joining
            for entry, group in groups:
                if (not inside or entry.given) and group[0] not in joining:
                    out.append(self._enter(entry, group))
                    order = order + group
            resid = _cat(out) if out else None
        assert resid is not None
        return self._read(resid, order)

    def _groups(self, layer: int) -> list[tuple[Entry, list[Item]]]:
        """Interventions that enter at a layer, by entry."""
        here = [i for i in self.one.items if i.entry is not None and i.entry.layer == layer]
        return [(e, [i for i in here if i.entry == e]) for e in sorted({i.entry for i in here if i.entry})]

    def _expanded(self, full: Tensor, packed: int, axis: int = 1, tail: bool = False) -> Tensor:
        """A base tensor's held columns, once for every intervention."""
        held = self.tail if tail and self.tail is not None else self.held
        part = held.take(full, axis)
        if packed > 1:
            return part.repeat(packed, *(1,) * (part.ndim - 1))
        return part if held.whole else part.contiguous()

    def _before_block(self, entry: Entry, group: list[Item]) -> Tensor:
        """The residual with which interventions enter a block that they run whole."""
        if entry.site != "resid_post":
            return self._expanded(self.base.at("resid_pre", entry.layer), len(group))
        resid = self._expanded(self.base.at("resid_post", entry.layer - 1), len(group))
        self.tap.set_rows(group)
        return self.tap("resid_post", entry.layer - 1, resid)

    def _enter(self, entry: Entry, group: list[Item]) -> Tensor:
        """The residual after the entry layer, for interventions that enter inside it or outside the blocks."""
        base, layers, packed = self.base, self.net.geometry.layers, len(group)
        self.tap.set_rows(group)
        if entry.layer == -1:
            tokens = self._expanded(base.prompts.tokens, packed)
            return embed(self.net, tokens, self.grid(packed), self.tap)
        if entry.site == "resid_post":
            resid = self._to_tail(self._expanded(base.at("resid_post", layers - 1), packed), packed)
            return self.tap("resid_post", layers - 1, resid)
        if entry.layer == layers:
            return self._to_tail(self._expanded(base.final, packed), packed)
        narrow = entry.layer == layers - 1
        given = {}
        for site in entry.given:
            axis = SITES[site].token_axis
            cut = narrow and site not in BEFORE_QUERIES
            given[site] = self._expanded(base.at(site, entry.layer), packed, axis, cut)
        resid = self._expanded(base.at("resid_pre", entry.layer), packed)
        return self._block(entry.layer, resid, packed, given)

    def _at_z(self, layer: int, group: list[Item]) -> tuple[Tensor, Tensor]:
        """Residual and edited z of interventions that join a block's other rows there."""
        packed, narrow = len(group), layer == self.net.geometry.layers - 1
        self.tap.set_rows(group)
        z = self.tap("z", layer, self._expanded(self.base.at("z", layer), packed, tail=narrow))
        resid = self._expanded(self.base.at("resid_pre", layer), packed, tail=narrow)
        return resid, z

    def _block(
        self,
        layer: int,
        resid: Tensor,
        packed: int,
        given: dict[str, Tensor],
        beside: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        narrow = layer == self.net.geometry.layers - 1 and self.tail is not None
        out, _ = block(
            self.net, layer, resid, self.grid(packed), self.tap,
            prefix=None if self.prefix is None else self.prefix[layer],
            given=given, tail=self.grid(packed, tail=True) if narrow else None, beside=beside,
        )  # fmt: skip
        return out

    def _to_tail(self, resid: Tensor, packed: int) -> Tensor:
        """Only the metric's columns of a residual that holds the pass's columns."""
        return resid if self.tail is None else self.grid(packed, tail=True).narrow(resid)

    def _read(self, resid: Tensor, order: list[Item]) -> list[Tensor]:
        self.tap.set_rows(order)
        x = final_norm(self.net, resid, self.tap)
        values = self._values(x.view(len(order), self.rows, *x.shape[1:]))
        by_index = {item.index: value for item, value in zip(order, values, strict=True)}
        return [by_index[i.index] for i in self.one.items]

    def _values(self, x: Float[Tensor, "item row kept d_model"]) -> list[Float[Tensor, " prompt"]]:
        reader, read = self.reader, self.reader.columns
        if not self.shortcuts:
            return [reader.of_logits(unembed(self.net, one)) for one in x]
        if read is not None and self.tail is None:
            here = Held(self.base.prompts, (read - self.first).clamp(min=0), False)
            x = torch.stack([here.take(one) for one in x])
        values = reader.values_of(x)
        if read is not None and self.first > int(read.min()):
            before = (read.expand(self.rows, -1)[:, 0] < self.first)[reader.task.first_rows]
            values = [torch.where(before, self.base_value, value) for value in values]
        return values


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
