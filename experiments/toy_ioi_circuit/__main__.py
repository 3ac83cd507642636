"""`python -m experiments.toy_ioi_circuit`."""

from interp.cli import main_for

raise SystemExit(main_for("toy_ioi_circuit"))
