"""Fuzzing of every file reader of onelayer_lottery: python -m fuzz --help.

Nothing that a file contains may end in a traceback, a crash, a hang, exhausted memory
or code that runs. A case is a valid file with a few changes, and the command that reads
it; it runs in a forked child with limits. Linux only.
"""
