"""`python -m experiments.reproduce_gpt2_small`."""

from interp.cli import main_for

raise SystemExit(main_for("reproduce_gpt2_small"))
