"""Addresses of sites: `[L<layer>.]<site>`, such as `L1.z`, `L-1.resid_post`, `ln_final`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from interp.registry import UserError

_FORM = re.compile(r"(?:L(?P<layer>-?[0-9]{1,9})\.)?(?P<site>[A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, order=True)
class Address:
    """A site, and the layer it is in; no layer means every layer, or a site outside the blocks."""

    site: str
    layer: int | None = None

    @staticmethod
    def parse(text: str | Address) -> Address:
        """Read an address; UserError where the text has another form.

        >>> Address.parse("L-1.z")
        Address(site='z', layer=-1)
        """
        if isinstance(text, Address):
            return text
        found = _parsed(text) if isinstance(text, str) else None
        if not found:
            raise UserError(f"not a site address: {text!r}; expected [L<layer>.]<site>, such as L1.z or ln_final")
        return found

    def resolve(self, layers: int) -> Address:
        """The same address with a negative layer counted from the end; UserError outside the model."""
        if self.layer is None:
            return self
        if not -layers <= self.layer < layers:
            raise UserError(f"layer {self.layer} of {self.site} lies outside the model's {layers} layers")
        return self if self.layer >= 0 else Address(self.site, self.layer % layers)

    def __str__(self) -> str:
        return self.site if self.layer is None else f"L{self.layer}.{self.site}"


@lru_cache(4096)
def _parsed(text: str) -> Address | None:
    """A sweep of many edits reads the same few addresses."""
    found = _FORM.fullmatch(text)
    return found and Address(found["site"], None if found["layer"] is None else int(found["layer"]))
