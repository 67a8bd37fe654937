"""The error that a user can mend: its message is the whole story."""


class LotteryError(ValueError):
    """Something is wrong with a file or an option; shown without a traceback."""
