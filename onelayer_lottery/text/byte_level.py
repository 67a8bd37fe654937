"""GPT-2's subwords: the bytes of words, merged pair by pair, as numbers in text."""

from __future__ import annotations

import json
from typing import Dict, List, Tuple

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NOT_SUBWORDS = ("<unk>", "<mask>")  # symbols of a dictionary that are not numbers


class ByteLevel:
    """Splits by ``vocab.bpe``; ``encoder.json`` has the number of each subword."""

    def __init__(self, vocabulary: str, merges: str):
        import regex  # knows classes such as letters, which re does not

        self._words = regex.compile(_WORDS)
        self._numbers: Dict[str, int] = json.loads(vocabulary)
        self._subwords = {number: word for word, number in self._numbers.items()}
        # The first line is a version, and what follows the last newline is empty.
        lines = merges.replace("\r\n", "\n").split("\n")[1:-1]
        self._ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        self._letters = _letters()
        self._bytes = {letter: byte for byte, letter in enumerate(self._letters)}

    def encode(self, text: str) -> str:
        return " ".join(
            str(self._numbers[subword])
            for word in self._words.findall(text)
            for subword in self._split([self._letters[b] for b in word.encode()])
        )

    def decode(self, text: str) -> str:
        names = [
            word if word in _NOT_SUBWORDS else self._subwords[int(word)]
            for word in text.split()
        ]
        content = bytes(self._bytes[letter] for letter in "".join(names))
        return content.decode(errors="replace")

    def _split(self, parts: List[str]) -> List[str]:
        """Merge the pair of lowest rank, wherever it is, until none has a rank."""
        while len(parts) > 1:
            pairs = set(zip(parts, parts[1:]))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            parts = _merged(parts, best)
        return parts


def _merged(parts: List[str], pair: Tuple[str, ...]) -> List[str]:
    merged, position = [], 0
    while position < len(parts):
        if tuple(parts[position : position + 2]) == pair:
            merged.append("".join(pair))
            position += 2
        else:
            merged.append(parts[position])
            position += 1
    return merged


def _letters() -> List[str]:
    """Return a printable letter for each byte: its own, or else one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in printable else next(others)) for b in range(256)]
