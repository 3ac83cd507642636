"""Both sides of aligned pairs: the base run of a sweep and the donor of its edits, run together.

They are wanted, but run only when something asks for a value: by then they may have gone along as rows of the first
pass of edits that needs them (`joint.py`), block by block before the rows that read them. What a planner asks before
that (which columns an edit changes) the tokens answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES
from interp.hooks.values import Run
from interp.interventions.base import Base, run_blocks
from interp.interventions.entry import BEFORE_QUERIES, FINAL, ORDER
from interp.interventions.reading import Reader
from interp.metric_values import LogitsView
from interp.models.model import Model
from interp.models.net import Net

TOGETHER = 2048
"""Tokens of a pair of sides up to which one pass runs both: larger ones gain nothing, and hold captures of both."""
OF_A_TOKEN = BEFORE_QUERIES | {"q", "q_norm", "q_rot"}
"""Sites of the first block that know nothing of other tokens yet."""


class Pair:
    """Two sides whose rows stand in the same columns: `base`, with all of `capture`, and `donor`, with `given`.

    Up to rounding what two `base_run` give. What lies before the first token in which a pair differs is the same in
    both to the bit (causal models). Of a model that `Model.altered` says nothing of: part by part is right there.
    """

    def __init__(
        self,
        model: Model,
        mine: Prompts,
        theirs: Prompts,
        capture: Iterable[Address],
        given: Iterable[Address],
        net: Net,
    ) -> None:
        model._refuse_container_hooks(net)
        self.model = model
        tokens, mask, answer = (
            torch.cat([getattr(p, k) for p in (mine, theirs)]) for k in ("tokens", "mask", "answer")
        )
        both = Prompts(tokens, mask, answer)  # the rows of each side have been checked
        self.net, self.mine, self.theirs, self.both = replace(net, loose=True), mine, theirs, model.prompts(both)
        self.wanted = list(capture)
        keys = [Address(site, layer) for layer in range(net.geometry.layers) for site in ("k_rot", "v")]
        self._keeps_keys = net.geometry.causal and self.may_go_along and min(self._counts) > 0
        if self._keeps_keys:  # what a donor's later columns read
            self.wanted = list(dict.fromkeys([*self.wanted, *keys]))
        self.given = frozenset(str(a) for a in given)
        self._acts: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        self._final: Tensor | None = None
        self._reader: Reader | None = None
        self._views: tuple[LogitsView, LogitsView] | None = None

    def sides(self) -> tuple[Base, Base]:
        """The base run and the donor. They hold the pair, not the other way round."""
        names, layers = [str(a) for a in self.wanted], self.net.geometry.layers
        some = [name for name in names if name in self.given]
        runs = [
            Run(prompts, torch.empty(len(prompts), 0, 0), _Acts(self, side, of), layers=layers)
            for side, (prompts, of) in enumerate(((self.mine, names), (self.theirs, some)))
        ]
        net = replace(self.net, loose=False)
        mine, theirs = (Base(self.model, net, run.prompts, run, None, self, side) for side, run in enumerate(runs))
        return mine, theirs

    @property
    def waiting(self) -> bool:
        """Whether it has not been run yet."""
        return self._final is None and self._views is None

    def covers(self, wanted: Iterable[Address], given: Iterable[Address]) -> bool:
        """Whether it keeps these addresses of its own side, and these of the other."""
        return set(wanted) <= set(self.wanted) and {str(a) for a in given} <= self.given

    def is_side(self, run: Run) -> bool:
        """Whether a run is one of these."""
        return isinstance(run.acts, _Acts) and run.acts.pair is self

    @cached_property
    def may_go_along(self) -> bool:
        """Whether a pass whose rows have different lengths can run it: it must know every site that is kept."""
        sites = [SITES[a.site] for a in self.wanted]
        return not any(s.derived or "query" in s.axes or s.name in FINAL for s in sites)

    @cached_property
    def ends_early(self) -> bool:
        """Whether nothing is kept after the last block's z: there only what the metric reads goes on."""
        last = [a.site for a in self.wanted if a.layer == self.net.geometry.layers - 1]
        return all(ORDER.index(site) <= ORDER.index("z") for site in last)

    def acts(self, side: int) -> Mapping[str, Tensor]:
        """What was kept of a side; runs the pair where nothing has."""
        if self.waiting:
            acts, final = run_blocks(self.net, self.both, self.wanted)
            for name, value in acts.items():
                self.keep(name, value)
            self._final = final
        return self._acts[side]

    def kept(self, side: int, name: str) -> Tensor:
        """One value of a side, which a pass under way may have kept already."""
        known = self._acts[side]
        return known[name] if name in known else self.acts(side)[name]

    def final(self, side: int) -> Float[Tensor, "batch pos d_model"]:
        """The residual of a side after the last block."""
        self.acts(side)
        if self._final is None:  # they went along with a pass, which keeps what a metric reads
            _, self._final = run_blocks(self.net, self.both, [])
        return self._final[: len(self.mine)] if side == 0 else self._final[len(self.mine) :]

    def view(self, side: int, reader: Reader) -> LogitsView:
        """What a metric reads of a side."""
        if self._views is not None and self._reader is not None and self._reader.reads_alike(reader):
            return self._views[side]
        return reader.view_of_final(self.final(side))

    def keep(self, name: str, value: Tensor, sides: Sequence[int] = (0, 1), start: int = 0) -> None:
        """Take what sides have at an address, one after the other, from column `start` on: the donor's is completed."""
        for side, own in zip(sides, value.split(len(self.mine)), strict=True):
            if side == 0:
                self._acts[0][name] = own
            elif name in self.given:
                self._acts[1][name] = self._as_in_mine(own, self._acts[0][name], name, start)

    def finish(self, views: tuple[LogitsView, LogitsView], reader: Reader) -> None:
        """Take what a metric reads of both, as they went along with a pass: by then all is known."""
        self._views, self._reader = views, reader

    def differs(self, address: Address) -> Bool[np.ndarray, "batch pos"]:
        """Where the sides may differ: from the first token on in which they do, or in such tokens alone."""
        if address.site == "pos_embed":
            return np.zeros_like(self._other_tokens)
        if address.site == "embed" or (address.layer == 0 and address.site in OF_A_TOKEN):
            return self._other_tokens
        return self._moved

    @cached_property
    def _other_tokens(self) -> Bool[np.ndarray, "batch pos"]:
        return ((self.mine.tokens != self.theirs.tokens) & self.mine.mask).cpu().numpy()

    @cached_property
    def _shared(self) -> Bool[Tensor, "batch pos"]:
        """Columns that know of no token in which a pair differs: those before the first (causal models)."""
        differs = torch.from_numpy(self._other_tokens).to(self.mine.device).long()
        return (differs.cumsum(1) if self.net.geometry.causal else differs.sum(1, keepdim=True) + 0 * differs) == 0

    @cached_property
    def _moved(self) -> Bool[np.ndarray, "batch pos"]:
        return ~self._shared.cpu().numpy()

    @cached_property
    def _counts(self) -> list[int]:
        """How many columns each pair shares."""
        counts: list[int] = self._shared.sum(1).tolist()
        return counts

    @property
    def common(self) -> int:
        """How many columns all pairs share whose keys and values are kept of the base run."""
        return min(self._counts) if self._keeps_keys else 0

    def _as_in_mine(self, own: Tensor, other: Tensor, name: str, start: int = 0) -> Tensor:
        """A donor's value, from column `start` on, with the base run's at the columns that they share."""
        axis = SITES[Address.parse(name).site].token_axis
        if start:
            own = torch.cat([other.narrow(axis, 0, start), own], axis)
        if set(self._counts) == {start}:
            return own
        if len(set(self._counts)) == 1 and own.is_contiguous():
            shared = self._counts[0]
            own.narrow(axis, 0, shared).copy_(other.narrow(axis, 0, shared))
            return own
        shape = [own.shape[0], *(1,) * (own.ndim - 1)]
        shape[axis] = own.shape[axis]
        return torch.where(self._shared.view(shape), other, own)


def runs_together(mine: Prompts, theirs: Prompts) -> bool:
    """Whether `Pair` fits two sides: rows that stand in the same columns, few enough to gain by it."""
    return mine.stands_like(theirs) and 2 * mine.tokens.numel() <= TOGETHER


class _Acts(Mapping[str, Tensor]):
    """What a side keeps, by address; known by name before it is run."""

    def __init__(self, pair: Pair, side: int, names: Iterable[str]) -> None:
        self.pair, self.side, self.names = pair, side, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.pair.kept(self.side, name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
