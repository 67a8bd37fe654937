"""Text to symbols and back, as fairseq does it; needs neither torch nor fairseq."""
