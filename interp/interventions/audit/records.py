"""Rows of an audit, and how two tensors are compared.

A row says which rule was tried at which site in which layer, by which comparison; the largest difference seen,
the largest one allowed (0: bit-identical) and the size of the numbers compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.sites import SITES, Site
from interp.registry import UserError


@dataclass(frozen=True)
class AuditRow:
    """One check at one place. `passed` is None where the check does not apply; `reason` says why."""

    setting: str
    rule: str
    site: str
    check: str
    layer: int | None = None
    axes: str = ""
    passed: bool | None = None
    value: float | None = None
    tolerance: float | None = None
    scale: float | None = None
    n: int | None = None
    reason: str | None = None

    def __str__(self) -> str:
        where = str(Address(self.site, self.layer))
        state = {True: "held", False: "BROKEN", None: "not tried"}[self.passed]
        size = "" if self.value is None else f": {self.value:.3g}"
        size += "" if self.tolerance is None else f", allowed {self.tolerance:.3g}"
        why = f" ({self.reason})" if self.reason else ""
        return f"{state} {self.rule} at {where}, {self.check} [{self.setting}]{size}{why}"


@dataclass(frozen=True)
class Audit:
    """Every row of one audit."""

    model: str
    family: str
    rows: tuple[AuditRow, ...]

    @property
    def passed(self) -> bool:
        """Whether every check that applies held."""
        return all(row.passed is not False for row in self.rows)

    @property
    def broken(self) -> list[AuditRow]:
        return [row for row in self.rows if row.passed is False]

    def records(self, experiment: str = "site_audit") -> list[dict[str, Any]]:
        """Rows as plain mappings, in the columns of the audit schema."""
        head = {"experiment": experiment, "model": self.model, "family": self.family}
        return [{**head, **asdict(row)} for row in self.rows]

    def __iter__(self) -> Iterator[AuditRow]:
        return iter(self.rows)

    def __str__(self) -> str:
        tried = sum(row.passed is not None for row in self.rows)
        lines = [f"{self.model} ({self.family}): {tried} checks, {len(self.broken)} broken"]
        return "\n".join([*lines, *(str(row) for row in self.broken)])


@dataclass
class Recorder:
    """Collects rows; every comparison of an audit goes through here."""

    setting: str = ""
    relative: float = 1e-5
    """Allowed difference as a share of the size of the numbers compared, where bits may differ."""
    n: int = 0
    rows: list[AuditRow] = field(default_factory=list)

    def add(self, rule: str, address: Address, check: str, passed: bool | None, **more: Any) -> None:
        """One row as it is."""
        axes = " ".join(SITES[address.site].axes) if address.site in SITES else ""
        self.rows.append(
            AuditRow(self.setting, rule, address.site, check, address.layer, axes, passed, n=self.n or None, **more)
        )

    def same(self, rule: str, address: Address, check: str, got: Tensor, want: Tensor) -> None:
        """Bit-identical."""
        worst = difference(got, want)
        self.add(rule, address, check, worst == 0, value=worst, tolerance=0.0, scale=size(want))

    def close(self, rule: str, address: Address, check: str, got: Tensor, want: Tensor) -> None:
        """Equal up to rounding: `relative` of the largest number compared."""
        worst, scale = difference(got, want), size(want)
        allowed = self.relative * (scale or 1.0)
        self.add(rule, address, check, worst <= allowed, value=worst, tolerance=allowed, scale=scale)

    def moved(self, rule: str, address: Address, check: str, got: Tensor, base: Tensor) -> None:
        """Different, by more than float32 rounding."""
        seen, scale = difference(got, base), size(base)
        least = 1e-6 * (scale or 1.0)
        why = None if seen > least else f"moved by {seen:.3g}, less than {least:.3g}"
        self.add(rule, address, check, seen > least, value=seen, scale=scale, reason=why)

    def raises(self, rule: str, address: Address, check: str, call: Any, says: tuple[str, ...]) -> None:
        """A UserError that names what it should."""
        try:
            call()
        except UserError as error:
            missing = [word for word in says if word not in str(error)]
            self.add(rule, address, check, not missing, reason=f"the error names no {missing}" if missing else None)
        else:
            self.add(rule, address, check, False, reason="nothing was raised")


def difference(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; infinite where one is not a number and for unlike shapes."""
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    gap = (a.double() - b.double()).abs()
    return float("inf") if bool(gap.isnan().any()) else float(gap.max())


def size(a: Tensor) -> float:
    """Largest absolute value."""
    return float(a.double().abs().max()) if a.numel() else 0.0


def real(x: Tensor, site: Site, mask: Bool[Tensor, "batch pos"], allowed: Tensor | None = None) -> Tensor:
    """The numbers of a site that belong to real tokens: of scores and patterns, those that may be read."""
    if "query" in site.axes:
        assert allowed is not None
        return x.movedim(1, -1)[allowed[:, 0]]
    return x[mask]
