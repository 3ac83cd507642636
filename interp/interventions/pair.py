"""Both sides of aligned pairs: the base run of a sweep and the donor of its edits, run together.

They are wanted, but run only when something asks for a value. What a planner asks before that (which columns an edit
changes) the tokens answer. Of the last block only attention is run for all columns; the rest of it follows where a
metric reads, once it is known. Where it saves enough, the donor is run by itself, from the first column on in which a
pair differs: what lies before is the base run's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES
from interp.hooks.values import Run
from interp.interventions.base import Base, run_blocks
from interp.interventions.cost import block_flops
from interp.interventions.entry import BEFORE_QUERIES, FINAL, ORDER
from interp.interventions.reading import Reader
from interp.metric_values import LogitsView
from interp.models.attention import KeyValue
from interp.models.block import block
from interp.models.forward import final_norm
from interp.models.grid import Grid
from interp.models.model import Model
from interp.models.net import Net

TOGETHER = 2048
"""Tokens of two sides up to which they are run as a pair: larger ones gain nothing, and hold captures of both."""
AGAIN = 48, 1e8
"""What a pass of the donor's own costs at each layer: tokens that take as long as its weights to read, operations that
take as long as its kernels to launch."""
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
        self.given = frozenset(str(a) for a in given)
        self.start = self._start()
        """The first column of the donor that is run by itself; 0 where both are run in one."""
        if self.start:  # what the donor's later columns read
            keys = [Address(site, layer) for layer in range(net.geometry.layers) for site in ("k_rot", "v")]
            self.wanted = list(dict.fromkeys([*self.wanted, *keys]))
        self._acts: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        self._ending: tuple[Tensor, ...] | None = None
        self._read: tuple[Reader, list[LogitsView]] | None = None

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

    def covers(self, wanted: Iterable[Address], given: Iterable[Address]) -> bool:
        """Whether it keeps these addresses of its own side, and these of the other."""
        return set(wanted) <= set(self.wanted) and {str(a) for a in given} <= self.given

    def is_side(self, run: Run) -> bool:
        """Whether a run is one of these."""
        return isinstance(run.acts, _Acts) and run.acts.pair is self

    @cached_property
    def ends_early(self) -> bool:
        """Whether nothing is kept after the last block's z: from there on only what the metric reads is run."""
        last = [a.site for a in self.wanted if a.layer == self.net.geometry.layers - 1]
        early = all(ORDER.index(site) <= ORDER.index("z") for site in last)
        return early and not any(a.site in FINAL for a in self.wanted)

    @property
    def walks(self) -> list[tuple[Prompts, int]]:
        """The passes that run both sides: of which prompts, and from which column on."""
        return [(self.mine, 0), (self.theirs, self.start)] if self.start else [(self.both, 0)]

    def acts(self, side: int) -> Mapping[str, Tensor]:
        """What was kept of a side; runs the pair where nothing has."""
        if self._ending is None:
            ends = [self._walk(prompts, start, first) for first, (prompts, start) in enumerate(self.walks)]
            self._ending = ends[0] if len(ends) == 1 else tuple(map(self._whole, *ends))
        return self._acts[side]

    def _walk(self, prompts: Prompts, start: int, first: int) -> tuple[Tensor, ...]:
        """Run one side, or both, from column `start` on, and keep what is wanted.

        Returns residual and z of the last block, or the residual after it where something beyond z is wanted.
        """
        wanted = [a for a in self.wanted if str(a) in self.given] if first else self.wanted
        prefix = [self._before(layer) for layer in range(self.net.geometry.layers)] if start else None
        acts, ending = run_blocks(self.net, prompts, wanted, start, prefix, to_z=self.ends_early)
        for name, value in acts.items():
            self._keep(name, value, first)
        return ending

    def _before(self, layer: int) -> KeyValue:
        """The base run's keys and values of the columns before `start`."""
        k, v = (self._acts[0][f"L{layer}.{site}"][:, : self.start] for site in ("k_rot", "v"))
        return k.transpose(1, 2), v.transpose(1, 2)

    def _keep(self, name: str, value: Tensor, first: int) -> None:
        """Take what the sides from the `first` on have at an address; the donor's is completed."""
        for side, own in enumerate(value.split(len(self.mine)), first):
            if side == 0:
                self._acts[0][name] = own
            elif name in self.given:
                axis = SITES[Address.parse(name).site].token_axis
                self._acts[1][name] = self._as_in_mine(own, self._acts[0][name], axis)

    def _whole(self, mine: Tensor, theirs: Tensor) -> Tensor:
        """Both sides' rows at all columns, from the base run's and the donor's from `start` on."""
        return torch.cat([mine, self._as_in_mine(theirs, mine)])

    def _ended(self, held: Held | None) -> Float[Tensor, "batch kept d_model"]:
        """The residual of both sides after the last block, at the held columns."""
        self.acts(0)
        assert self._ending is not None
        x, *z = self._ending if held is None else (held.take(t) for t in self._ending)
        if not z:
            return x
        whole = Grid.of(self.net, self.both, self.net.dtype)  # z is given: nobody asks where the tokens stand
        return block(self.net, self.net.geometry.layers - 1, x, whole, given={"z": z[0]})[0]

    def final(self, side: int) -> Float[Tensor, "batch pos d_model"]:
        """The residual of a side after the last block."""
        rows = len(self.mine)
        with torch.no_grad():
            return self._ended(None)[side * rows : (side + 1) * rows]

    def view(self, side: int, reader: Reader) -> LogitsView:
        """What a metric reads of a side; both are read at once."""
        if self._read is None or not self._read[0].reads_alike(reader):
            readers = (reader, reader.other) if side == 0 else (reader.other, reader)
            columns = [r.columns for r in readers]
            held = None
            if all(c is not None for c in columns):
                each = torch.cat([c.expand(len(self.mine), -1) for c in columns if c is not None])
                held = Held(self.both, each, False)
            x = final_norm(self.net, self._ended(held))
            views = reader.views(x.view(2, -1, *x.shape[1:]), loose=True)
            self._read = reader, [replace(v, side=r.side) for v, r in zip(views, readers, strict=True)]
        return self._read[1][side]

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

    def _start(self) -> int:
        """From which column on the donor is run by itself, where that saves more than a second pass costs."""
        g, (tokens, operations) = self.net.geometry, AGAIN
        shared = min(*self._counts, self.mine.width - 1) if g.causal else 0
        cost = tokens + operations / block_flops(g, 1, 1, self.mine.width)
        return shared if shared * len(self.mine) > cost else 0

    def _as_in_mine(self, own: Tensor, other: Tensor, axis: int = 1) -> Tensor:
        """A donor's value, from `start` on, with the base run's at the columns that they share."""
        if self.start:
            own = torch.cat([other.narrow(axis, 0, self.start), own], axis)
        if set(self._counts) == {self.start}:
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
        return self.pair.acts(self.side)[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
