"""Masked weights and the layers that use them: torch only, no fairseq."""
