"""Families: one row of data for each architecture.

`interp list families` names them; what a row says is `family.Family`; the rows lie in `rows/`, by kinship.
"""

from __future__ import annotations

from interp.models import rows as rows
from interp.models.family import FAMILIES, Config, Family, Packing, Routing, family_of, register_family

__all__ = ["FAMILIES", "Config", "Family", "Packing", "Routing", "family_of", "register_family"]
