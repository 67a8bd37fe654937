"""The command onelayer-lottery, one file for each group of subcommands."""

from onelayer_lottery.cli.program import main

__all__ = ["main"]
