"""Registered models and architectures: importing this package registers them."""

from onelayer_lottery.models import language_model, reservoir, roberta, transformer

__all__ = ["language_model", "reservoir", "roberta", "transformer"]
