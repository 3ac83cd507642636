"""Progress on standard error: how much is done, how fast it goes, how long it still takes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def rate(per_second: float | None) -> str:
    """Steps per second, or where a step takes longer, seconds per step.

    >>> rate(12.34), rate(0.25), rate(None)
    ('12.3/s', '4.0 s each', '')
    """
    if not per_second:
        return ""
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{1 / per_second:.1f} s each"


def pace(done: int, total: int, seconds: float) -> str:
    """Rate so far and time left, in words for a log; nothing where nothing is left or nothing is known.

    >>> pace(10, 40, 20.0), pace(1, 3, 90.0), pace(3, 3, 1.0)
    ('2.0 s each, 0:01:00 left', '90.0 s each, 0:03:00 left', '')
    """
    if not 0 < done < total or seconds <= 0:
        return ""
    return f"{rate(done / seconds)}, {timedelta(seconds=round(seconds / done * (total - done)))} left"


class Bar:
    """One bar; `bar(done, total)` moves it. It goes away when all is done, or by `close()`.

    Whoever makes one closes it, however the work ends: an open bar hides the terminal's cursor.
    """

    def __init__(self, about: str, total: int | None = None, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(rate(task.finished_speed or task.speed))

        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TextColumn("left"),
            TimeRemainingColumn(), console=console or Console(stderr=True), transient=True,
            speed_estimate_period=600,
        )  # fmt: skip
        self._task = self._bars.add_task(about, total=total)
        self._bars.start()

    def __call__(self, done: int, total: int | None = None, about: str | None = None) -> None:
        """So many are done, of so many; `about` is said of it from now on."""
        self._bars.update(self._task, completed=done, total=total, description=about)
        if total is not None and done >= total:
            self.close()

    def close(self) -> None:
        """Take the bar away and give the cursor back; a second time does nothing."""
        self._bars.stop()
