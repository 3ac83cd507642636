"""What an audit works on: the model, two batches of random prompts of equal shape, and their unedited runs."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SITES, resolve_all
from interp.hooks.values import Run
from interp.interventions.audit.definitions import Definitions
from interp.interventions.audit.records import Recorder, difference, real, size
from interp.models.model import Model
from interp.registry import UserError

SETTINGS = ("unpadded", "left-padded")


@dataclass(frozen=True, eq=False)
class Bench:
    """One setting of one audit. Rows 0 and 1 always have equal masks."""

    model: Model
    clean: Prompts
    corrupt: Prompts
    seed: int
    out: Recorder

    @cached_property
    def addresses(self) -> list[Address]:
        """Every site of the model in every layer."""
        return resolve_all(self.model.sites(), self.model.geometry)

    @cached_property
    def names(self) -> list[str]:
        return [str(a) for a in self.addresses]

    @cached_property
    def base(self) -> Run:
        """The clean prompts, nothing captured and nothing edited."""
        return self.model.run(self.clean)

    @cached_property
    def full(self) -> Run:
        """The clean prompts, every site captured."""
        return self.model.run(self.clean, capture=self.names)

    @cached_property
    def acts(self) -> dict[Address, Tensor]:
        return by_address(self.full)

    @cached_property
    def definitions(self) -> Definitions:
        return Definitions(self.model, self.clean)

    def allowed(self, layer: int | None) -> Bool[Tensor, "batch 1 query key"]:
        return self.definitions.allowed(layer or 0)

    def real(self, address: Address, x: Tensor) -> Tensor:
        """The numbers at real tokens (of scores and patterns: where reading is allowed)."""
        site = SITES[address.site]
        return real(x, site, self.clean.mask, self.allowed(address.layer) if "query" in site.axes else None)

    @property
    def by_batch(self) -> bool:
        """Whether rounding depends on what else is in the batch: experts multiply the tokens routed to them at once."""
        return self.model.geometry.experts > 0

    def alike(self, now: Tensor, before: Tensor) -> bool:
        """Equal bits; where rounding goes by batch, equal up to rounding."""
        if not self.by_batch:
            return torch.equal(now, before)
        return difference(now, before) <= self.out.relative * (size(before) or 1.0)

    def same(self, rule: str, address: Address, check: str, got: Tensor, want: Tensor) -> None:
        """One row: equal bits; where rounding goes by batch, equal up to rounding."""
        (self.out.close if self.by_batch else self.out.same)(rule, address, check, got, want)

    def logits(self, run: Run) -> Float[Tensor, "token d_vocab"]:
        return run.logits[run.prompts.mask]

    def noise(self, address: Address, x: Tensor) -> Tensor:
        """Random numbers of the site's own spread; none where scores and patterns may not be read."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {address}".encode()))
        site = SITES[address.site]
        here = self.real(address, x).float()
        spread = float(here.std()) if here.numel() > 1 else 0.0
        noise = torch.randn(x.shape, generator=generator).to(x.device) * (spread or 1.0)
        if site.axes[-1] == "1":  # a denominator stays positive
            noise = x.float() * (0.5 + torch.rand(x.shape, generator=generator).to(x.device))
        if "key" in site.axes:
            noise = noise * self.allowed(address.layer)
        return noise.to(x.dtype)


def by_address(run: Run) -> dict[Address, Tensor]:
    """A run's captures by address."""
    return {Address.parse(name): value for name, value in run.acts.items()}


def benches(
    model: Model, seed: int, rows: int, length: int, tolerance: float, settings: tuple[str, ...]
) -> list[Bench]:
    """One bench per setting, all on the same tokens; UserError where an audit of this size says nothing."""
    g = model.geometry
    if rows < 3 or length < 4:
        raise UserError(f"an audit needs at least 3 rows of 4 tokens, got {rows} of {length}")
    if g.n_ctx < 4 or g.d_vocab < 4:
        raise UserError(f"an audit needs 4 positions and 4 tokens, {model.name} has {g.n_ctx} and {g.d_vocab}")
    length = min(length, g.n_ctx)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, g.d_vocab, (2, rows, length), generator=generator)
    tokens[1] = (tokens[0] + 1 + tokens[1] % (g.d_vocab - 1)) % g.d_vocab  # corrupt differs everywhere
    made = []
    for setting in settings:
        clean, corrupt = (model.prompts(Prompts.of(t, mask_of(setting, rows, length))) for t in tokens)
        out = Recorder(setting, tolerance, rows)
        made.append(Bench(model, clean, corrupt, seed, out))
    return made


def mask_of(setting: str, rows: int, length: int) -> Bool[Tensor, "rows length"]:
    """True on real tokens: in the padded settings rows from the third on are shorter."""
    short = torch.tensor([0, 0, *(1 + i % (length - 2) for i in range(rows - 2))])
    place = torch.arange(length)
    if setting == "unpadded":
        return torch.ones(rows, length, dtype=torch.bool)
    if setting == "left-padded":
        return place[None] >= (short[:, None] + 1)
    if setting == "right-padded":
        return place[None] < length - (short[:, None] + 1)
    raise UserError(f"unknown setting {setting!r}; there are: unpadded, left-padded, right-padded")
