"""Running tickets with NumPy and CTranslate2; needs neither torch nor fairseq."""
