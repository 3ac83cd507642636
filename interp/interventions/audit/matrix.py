"""The support matrix in short: one line for each family, from the table that the audit of all families makes.

    | family | kinds | sites | checks | float32 | bfloat16 | float16 | replay | in bfloat16 | in float16 |

`checks` counts comparisons of the contract that held in float32 (in half precision as many again, in short).
The other columns are the largest difference from the checkpoint's own forward pass, by dtype, and of planned from
plain replay, by dtype, as shares of the largest number; `bits` where there was none.
"""

from __future__ import annotations

import pandas as pd

DTYPES = ("float32", "bfloat16", "float16")
HEAD = ("family", "kinds", "sites", "checks", *DTYPES, "replay", "in bfloat16", "in float16")


def condensed(frame: pd.DataFrame) -> list[str]:
    """Markdown lines of the table, families in the order of the frame's names; `BROKEN` where a check broke."""
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    for family in sorted(frame["family"].unique(), key=lambda name: (name == "bridge", name)):
        lines.append(_line(_family(family, frame[frame["family"] == family])))
    return lines


def _family(family: str, rows: pd.DataFrame) -> list[str]:
    contract = rows[~rows["rule"].isin(["forms", "replay"])]
    whole = contract[contract["setting"] == "float32"]
    forms, replay = rows[rows["rule"] == "forms"], rows[rows["rule"] == "replay"]
    kinds = ", ".join(sorted(rows["model"].unique()))
    broken = int((rows["passed"] == False).sum())  # noqa: E712 - a nullable column
    checks = f"{int(whole['n'].sum()):,}" if len(whole) else "–"
    return [
        family, kinds, str(whole[whole["rule"] != "6 lacking"]["site"].nunique() or "–"),
        f"{broken} BROKEN" if broken else checks,
        *(_share(forms[forms["setting"] == dtype]) for dtype in DTYPES),
        *(_share(replay[replay["setting"] == dtype]) for dtype in DTYPES),
    ]  # fmt: skip


def _share(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "–"
    worst = float(rows["value"].max())
    return "bits" if worst == 0 else f"{worst:.0e}"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
