"""Turn raw text into the words of a dictionary and back, by the steps in a ticket."""

from __future__ import annotations

from typing import Any, Callable, List

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.text.subwords import LIBRARIES, build_bpe
from onelayer_lottery.ticket.format import Moses, TextSteps, Ticket

Step = Callable[[str], str]


class Pipeline:
    """The steps of a ticket, in the order in which its training data were made."""

    def __init__(self, ticket: Ticket):
        steps = ticket.text or TextSteps()
        self._encoders: List[Step] = []
        self._decoders: List[Step] = []  # in the order of decoding
        if steps.moses:
            self._encoders.append(_tokenizer(steps.moses))
        if steps.lower:
            self._encoders.append(str.lower)
        bpe = build_bpe(ticket.bpe)
        if bpe:
            self._encoders.append(bpe.encode)
            self._decoders.append(bpe.decode)
        if steps.moses:
            self._decoders.append(_detokenizer(steps.moses))

    def encode(self, text: str) -> str:
        """Turn raw text into words of the dictionary, separated by spaces."""
        for step in self._encoders:
            text = step(text)
        return text

    def decode(self, text: str) -> str:
        """Turn the words of a translation into raw text."""
        for step in self._decoders:
            text = step(text)
        return text


def text_pipeline(ticket: Ticket) -> Pipeline:
    """Make the steps of a ticket ready; LotteryError names a missing library."""
    return Pipeline(ticket)


def needed_libraries(ticket: Ticket) -> List[str]:
    """Return what must be installed for the text of a ticket, as pip names it."""
    moses = ["sacremoses"] if ticket.text and ticket.text.moses else []
    return [*moses, *([LIBRARIES[ticket.bpe.kind]] if ticket.bpe else [])]


def describe_text(ticket: Ticket) -> str:
    """Return the steps from raw text on, for people."""
    steps = ticket.text or TextSteps()
    names = []
    if steps.moses:
        dashes = ", dashes split" if steps.moses.dashes else ""
        languages = f"{steps.moses.source} and {steps.moses.target}"
        names.append(f"Moses' tokens of {languages}{dashes}")
    if steps.lower:
        names.append("lower case")
    if ticket.bpe:
        names.append(f"subwords of {ticket.bpe.kind}")
    return "; ".join(names) or "words as they are"


def _tokenizer(moses: Moses) -> Step:
    library = _sacremoses()
    normalise = library.MosesPunctNormalizer(lang=moses.source).normalize
    tokenizer = library.MosesTokenizer(lang=moses.source)

    def tokens(text: str) -> str:
        return tokenizer.tokenize(
            normalise(text), aggressive_dash_splits=moses.dashes, return_str=True
        )

    return _guarded(tokens)


def _detokenizer(moses: Moses) -> Step:
    detokenizer = _sacremoses().MosesDetokenizer(lang=moses.target)
    return _guarded(lambda text: detokenizer.detokenize(text.split()))


def _guarded(step: Step) -> Step:
    def guarded(text: str) -> str:
        try:
            return step(text)
        except Exception as error:
            raise LotteryError(
                f"sacremoses fails on {quote(text[:60])}: {quote(error)}"
            ) from None

    return guarded


def _sacremoses() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise LotteryError(
            "the ticket takes text tokenised by Moses, whose library is not installed:"
            " pip install sacremoses"
        ) from None
    return sacremoses
