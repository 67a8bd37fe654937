"""Experiments: a grid of trainings, run by fairseq's own commands, and its plots."""
