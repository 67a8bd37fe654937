"""Registered models and architectures."""
