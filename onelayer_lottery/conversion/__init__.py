"""Turn checkpoints into tickets, and tickets into checkpoints and models."""
