"""Run every run of a grid, and continue after a stop."""
