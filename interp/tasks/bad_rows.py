"""`BadRowsError`: one error that lists every bad row of a table, by number and reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interp.registry import UserError

MOST_KINDS, MOST_RUNS = 10, 10
"""What a message shows of thousands of bad rows; the error's `rows` has all of them."""


class BadRowsError(UserError):
    """A table has bad rows. `rows` maps each row's number (from 1) to its reason."""

    def __init__(self, source: str, rows: Mapping[int, str], total: int) -> None:
        self.rows = dict(rows)
        kinds: dict[str, list[int]] = {}
        for number in sorted(rows):
            # what differs from row to row stands after the last colon; the rest is the kind of fault
            kinds.setdefault(rows[number].rpartition(": ")[0] or rows[number], []).append(number)
        parts = []
        for numbers in list(kinds.values())[:MOST_KINDS]:
            example = rows[numbers[0]]
            said = example if len(numbers) == 1 else f"{example} (row {numbers[0]})"
            parts.append(f"{'row' if len(numbers) == 1 else 'rows'} {ranges(numbers, MOST_RUNS)}: {said}")
        if len(kinds) > MOST_KINDS:
            parts.append(f"and {len(kinds) - MOST_KINDS} more kinds of fault")
        super().__init__(
            f"{source}: {len(rows)} of {total} rows are bad: {'; '.join(parts)}. "
            "Mend them, or pass skip_bad=True (in a shell --set task_options.skip_bad=true) to leave them out"
        )


def ranges(numbers: Sequence[int], most: int | None = None) -> str:
    """Ascending numbers as ranges; with `most`, so many of them and how many numbers the rest are.

    >>> ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    >>> ranges([1, 2, 3, 7, 9, 10], most=1)
    '1-3 and 3 more'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = runs[:most]
    left = sum(b - a + 1 for a, b in runs[len(shown) :])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in shown) + (f" and {left} more" if left else "")
