"""Sweeps: many cells from one file, on this machine or on a Slurm cluster, each published exactly once."""
