"""IWSLT14 German-English as the paper has it: TED talks, tokenised, lower-cased.

Takes the archive de-en.tgz of the campaign. Moses' tokenisation, 10,000 joint BPE
merges with separate dictionaries, every 23rd sentence of the training data for
validation, all five dev and test sets together for testing.
"""

import re
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "prepare"))
import corpus

ARCHIVE = "de-en.tgz"
URL = "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
LANGUAGES = ("de", "en")
TEST_LINES = 6750
# Lines of train.tags.* that hold facts about a talk, not speech.
ABOUT = re.compile(r"<(url|talkid|keywords|speaker|reviewer|translator|doc|/doc)\b")


def main() -> None:
    chosen = corpus.options(__doc__, "data/iwslt14", size=10000)
    if not (chosen.out / "text" / "test.en").exists():
        archive = corpus.obtain(ARCHIVE, chosen, url=URL)
        corpus.write_splits(chosen, LANGUAGES, splits_of(archive, chosen.sample))
    corpus.subword(chosen, LANGUAGES, "fastbpe")
    corpus.binarise(chosen, LANGUAGES)


def splits_of(path, sample):
    tokens = [corpus.moses(language, lower=True) for language in LANGUAGES]
    with tarfile.open(path) as archive:
        sides = [train_lines(archive, language) for language in LANGUAGES]
        tests = [
            [line for name in TESTS for line in test_lines(archive, name, language)]
            for language in LANGUAGES
        ]
    pairs = {"train": corpus.paired(*sides, "train.tags.de-en")}
    pairs["test"] = corpus.paired(*tests, "the test sets")
    if len(pairs["test"]) != TEST_LINES and not sample:
        corpus.fail(
            f"the test sets have {len(pairs['test']):,} sentences, expected are"
            f" {TEST_LINES:,}: {path} is not the published archive"
        )
    for split in pairs:
        corpus.say(f"tokenising {len(pairs[split]):,} sentence pairs of {split}")
        pairs[split] = [
            tuple(tokenise(line) for tokenise, line in zip(tokens, pair))
            for pair in pairs[split]
        ]
    cleaned = corpus.clean(pairs["train"], longest=175, ratio=1.5)
    numbered = list(enumerate(cleaned, 1))
    return {
        "train": [pair for number, pair in numbered if number % 23],
        "valid": [pair for number, pair in numbered if number % 23 == 0],
        "test": pairs["test"],
    }


def train_lines(archive, language):
    lines = member(archive, f"train.tags.de-en.{language}")
    return [corpus.strip_tags(line) for line in lines if not ABOUT.search(line)]


def test_lines(archive, name, language):
    lines = member(archive, f"IWSLT14.{name}.de-en.{language}.xml")
    return [corpus.strip_tags(line) for line in lines if "<seg id" in line]


def member(archive, name):
    found = [n for n in archive.getnames() if n.rpartition("/")[2] == name]
    if not found:
        corpus.fail(f"{archive.name} holds no {name}: it is not the published archive")
    text = archive.extractfile(found[0]).read().decode("utf-8")
    return text.rstrip("\n").split("\n")


if __name__ == "__main__":
    main()
