"""The command line: `interp run | list | results | train`, and `python -m experiments.NAME`.

Exit codes: 0 done; 1 a run failed; 2 bad input (one line, nothing written); 130 interrupted (rows that a
long run streamed are kept, the same command resumes it). Only typer is imported here: what a command needs
is imported when it runs, so help and lists answer at once.
"""

from __future__ import annotations

from interp.cli.app import main, main_for

__all__ = ["main", "main_for"]
