"""Dictionaries: the text that fairseq-preprocess writes, read as fairseq reads it."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional

from onelayer_lottery.errors import LotteryError, quote

BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")

_OVERWRITE = "#fairseq:overwrite"  # after the count of a word that is there already
_EXTRA_LABELS = 64  # fairseq-preprocess pads dictionaries to a multiple of 8


class Symbols:
    """The symbols of a side in the order of their embeddings."""

    def __init__(self, words: Iterable[str] = ()):
        self.words: List[str] = [*SPECIAL, *words]
        # Of a word that was overwritten, the last place counts.
        self._index: Dict[str, int] = {w: i for i, w in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def add(self, word: str) -> None:
        self._index[word] = len(self.words)
        self.words.append(word)

    def encode(self, text: str) -> List[int]:
        """Return the indices of the words of a text, without an end of sentence."""
        return [self._index.get(word, UNK) for word in text.split()]

    def decode(self, indices: Iterable[int]) -> str:
        """Return the words at these indices, without sentence ends."""
        return " ".join(self.words[i] for i in indices if i not in (BOS, EOS))


def read_symbols(text: str, *, most: Optional[int] = None, extra: str = "") -> Symbols:
    """Read a dictionary, of ``most`` lines if given; ``extra`` is a symbol to add."""
    lines = text.split("\n")
    if most is not None and len(lines) > most:
        raise LotteryError(f"it has {len(lines)} lines for {most} embeddings")
    symbols = Symbols()
    for line in lines if lines[-1] else lines[:-1]:
        word, space, field = line.rstrip().rpartition(" ")
        overwrite = field == _OVERWRITE
        if overwrite:
            word, space, field = word.rpartition(" ")
        try:
            int(field)
        except ValueError:
            space = ""
        if not space:
            raise LotteryError(
                f"it cannot be read: {quote(line)} is not a symbol and its count"
            )
        if word in symbols and not overwrite:
            raise LotteryError(f"it cannot be read: it has {quote(word)} twice")
        symbols.add(word)
    if extra and extra not in symbols:
        symbols.add(extra)
    return symbols


def read_classes(text: str, count: int) -> List[str]:
    """Return the labels of a classification head in the order of its outputs."""
    labels = read_symbols(text, most=count + _EXTRA_LABELS).words[len(SPECIAL) :]
    if len(labels) < count:
        raise LotteryError(
            f"the dictionary of labels has {len(labels)}, the model {count} classes"
        )
    return labels[:count]
