"""Frozen random weights from a seed: NumPy only."""
