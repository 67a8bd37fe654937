"""Draw figures and tables from results."""
