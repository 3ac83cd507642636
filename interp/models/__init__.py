"""Checkpoints as one forward function sees them: families, blocks, loading, and a small native model."""
