"""Faults made on purpose, for the experiment `sweep_faults` and the tests: what is broken, and what was lost."""
