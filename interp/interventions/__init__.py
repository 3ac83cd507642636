"""Exact interventions: planning and replaying edits, patching, ablation, paths, edges, running circuits."""
