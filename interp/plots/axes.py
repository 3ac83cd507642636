"""The frame of a plot with two axes: where numbers come to lie, ticks, rules and names."""

from __future__ import annotations

import math
from dataclasses import dataclass

from interp.plots.svg import line, log_ticks, number, text, ticks


@dataclass(frozen=True)
class Scale:
    """Numbers to pixels, plain or logarithmic."""

    low: float | int
    high: float | int
    start: float | int
    end: float | int
    log: bool = False

    def __call__(self, value: float | int) -> float:
        low, high, v = (math.log(n) if self.log else n for n in (self.low, self.high, value))
        share = 0.5 if high == low else (v - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside."""
        return log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high, about)


def padded(low: float | int, high: float | int, share: float | int = 0.05) -> tuple[float, float]:
    """The range with a margin; one of no width is widened."""
    room = (high - low) * share or abs(high) * 0.1 or 1.0
    return low - room, high + room


def frame(x: Scale, y: Scale, x_title: str, y_title: str, x_ticks: int = 6, y_ticks: int = 5) -> list[str]:
    """Rules at the y ticks, a stronger one at 0, tick labels and the axes' names."""
    body = []
    for t in y.ticks(y_ticks):
        body.append(line(x.start, y(t), x.end, y(t), "axis" if t == 0 else "rule"))
        body.append(text(x.start - 6, y(t) + 4, number(t, 4), "dim small end"))
    for t in x.ticks(x_ticks):
        body.append(line(x(t), y.start, x(t), y.start + 4, "axis"))
        body.append(text(x(t), y.start + 17, number(t, 4), "dim small mid"))
    body.append(text((x.start + x.end) / 2, y.start + 34, x_title, "dim small mid"))
    body.append(text(x.start - 6, y.end - 9, y_title, "dim small"))
    return body
