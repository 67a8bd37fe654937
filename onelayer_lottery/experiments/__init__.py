"""Run grids of trainings with fairseq's own commands, and plot the results."""
