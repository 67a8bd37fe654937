"""Registered criterions."""
