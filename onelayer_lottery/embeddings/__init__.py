"""Read pre-trained embeddings from files, and put them into a model."""
