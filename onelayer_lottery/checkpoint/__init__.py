"""Read fairseq checkpoints safely, average them, and resume from them."""
