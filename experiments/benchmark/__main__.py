"""`python -m experiments.benchmark`."""

from interp.cli import main_for

raise SystemExit(main_for("benchmark"))
