"""Two cells side by side: rows joined on their keys, with the difference of the main column."""

from __future__ import annotations

import pandas as pd

from interp.registry import UserError
from interp.results.schemas import Schema


def compare(a: pd.DataFrame, b: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Join two tables of one schema on the key columns that both use.

    A key column that is one constant in `a` and another in `b` (the model, the metric, …) is what is compared
    and is left out of the join. The result has the joined key, `<main>_a`, `<main>_b`, `difference` (b − a),
    both intervals, and `found` (both, a or b). Raises UserError where no key is left or keys repeat.
    """
    main = schema.main
    for name, frame in (("first", a), ("second", b)):
        if main not in frame:
            raise UserError(f"the {name} table has no column {main!r}; the tables are of different kinds")
    key = [c for c in schema.key if c in a and c in b and not _contrast(a[c], b[c])]
    used = [c for c in key if a[c].notna().any() or b[c].notna().any()]
    if not used:
        raise UserError("the two tables have no key column in common")
    for name, frame in (("first", a), ("second", b)):
        if frame.duplicated(used).any():
            raise UserError(f"rows of the {name} table cannot be told apart by what both have: {', '.join(used)}")
    numbers = [c for c in (main, "ci_low", "ci_high") if c in a and c in b]
    both = a[used + numbers].merge(
        b[used + numbers], on=used, how="outer", suffixes=("_a", "_b"), indicator="found", sort=True
    )  # fmt: skip
    both["found"] = both["found"].astype(str).replace({"left_only": "a", "right_only": "b"})
    both.insert(len(used) + 2 * len(numbers), "difference", both[f"{main}_b"] - both[f"{main}_a"])
    ordered = [*used, *(f"{c}_{s}" for c in numbers for s in "ab"), "difference", "found"]
    return both[ordered]


def contrasts(a: pd.DataFrame, b: pd.DataFrame, schema: Schema) -> dict[str, tuple[str, str]]:
    """Key columns that are one constant in `a` and another in `b`, with both constants."""
    shared = [c for c in schema.key if c in a and c in b and _contrast(a[c], b[c])]
    return {c: (str(a[c].iloc[0]), str(b[c].iloc[0])) for c in shared}


def _contrast(a: pd.Series, b: pd.Series) -> bool:  # type: ignore[type-arg]
    one, other = a.unique(), b.unique()
    if len(one) != 1 or len(other) != 1:
        return False
    null = bool(pd.isna(one[0])), bool(pd.isna(other[0]))
    return null[0] != null[1] if any(null) else bool(one[0] != other[0])
