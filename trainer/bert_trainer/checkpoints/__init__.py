"""Checkpoints of a run, and weights that come from or go to other formats."""
