"""Tickets as models of other libraries; needs neither torch nor fairseq."""
