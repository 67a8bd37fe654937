"""Registered models and architectures: importing this package registers them."""

from onelayer_lottery.models import reservoir, roberta, transformer

__all__ = ["reservoir", "roberta", "transformer"]
