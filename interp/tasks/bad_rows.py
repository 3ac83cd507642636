"""`BadRowsError`: one error that lists every bad row of a table, by number and reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interp.registry import UserError


class BadRowsError(UserError):
    """A table has bad rows. `rows` maps each row's number (from 1) to its reason."""

    def __init__(self, source: str, rows: Mapping[int, str], total: int) -> None:
        self.rows = dict(rows)
        kinds: dict[str, list[int]] = {}
        for number in sorted(rows):
            # what differs from row to row stands after the last colon; the rest is the kind of fault
            kinds.setdefault(rows[number].rpartition(": ")[0] or rows[number], []).append(number)
        parts = []
        for numbers in kinds.values():
            example = rows[numbers[0]]
            said = example if len(numbers) == 1 else f"{example} (row {numbers[0]})"
            parts.append(f"{'row' if len(numbers) == 1 else 'rows'} {ranges(numbers)}: {said}")
        super().__init__(
            f"{source}: {len(rows)} of {total} rows are bad: {'; '.join(parts)}. "
            "Mend them, or pass skip_bad=True to leave them out"
        )


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges.

    >>> ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
