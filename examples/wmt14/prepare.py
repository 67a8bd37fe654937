"""WMT14 English-German as in fairseq's experiments, which the paper follows.

Takes the archives of statmt.org: Europarl v7, Common Crawl and News Commentary v12 for
training (every 100th sentence for validation), newstest2014 for testing. Moses'
tokenisation, 40,000 joint BPE merges, a joined dictionary.
"""

import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "prepare"))
import corpus

TRAIN = {
    "training-parallel-europarl-v7.tgz": (
        "http://statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        "europarl-v7.de-en",
    ),
    "training-parallel-commoncrawl.tgz": (
        "http://statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "commoncrawl.de-en",
    ),
    "training-parallel-nc-v12.tgz": (
        "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
        "news-commentary-v12.de-en",
    ),
}
TEST = "test-full.tgz"
TEST_URL = "http://statmt.org/wmt14/test-full.tgz"
TEST_LINES = 3003
LANGUAGES = ("en", "de")


def main() -> None:
    chosen = corpus.options(__doc__, "data/wmt14", size=40000)
    if not (chosen.out / "text" / "test.de").exists():
        corpus.write_splits(chosen, LANGUAGES, splits_of(chosen))
    corpus.subword(chosen, LANGUAGES, "fastbpe")
    corpus.binarise(chosen, LANGUAGES, joined=True)


def splits_of(chosen):
    tokens = [corpus.moses(language, lower=False) for language in LANGUAGES]
    pairs = []
    for name, (url, prefix) in TRAIN.items():
        archive = corpus.obtain(name, chosen, url=url)
        sides = [member(archive, f"{prefix}.{language}") for language in LANGUAGES]
        found = corpus.paired(*sides, prefix)
        corpus.say(f"tokenising {len(found):,} sentence pairs of {prefix}")
        pairs += [tokenised(pair, tokens) for pair in found]
    test = corpus.obtain(TEST, chosen, url=TEST_URL)
    sides = [
        segments(test, f"newstest2014-deen-{kind}.{language}.sgm")
        for language, kind in zip(LANGUAGES, ("src", "ref"))
    ]
    tests = corpus.paired(*sides, "newstest2014")
    if len(tests) != TEST_LINES and not chosen.sample:
        corpus.fail(
            f"newstest2014 has {len(tests):,} sentences, expected are {TEST_LINES:,}:"
            f" {test} is not the published archive"
        )
    numbered = list(enumerate(pairs, 1))
    splits = {
        "train": [pair for number, pair in numbered if number % 100],
        "valid": [pair for number, pair in numbered if number % 100 == 0],
    }
    for split in splits:
        splits[split] = corpus.clean(splits[split], longest=250, ratio=1.5)
    return {**splits, "test": [tokenised(pair, tokens) for pair in tests]}


def tokenised(pair, tokens):
    return tuple(tokenise(line) for tokenise, line in zip(tokens, pair))


def segments(path, name):
    lines = member(path, name)
    return [corpus.strip_tags(line) for line in lines if "<seg" in line]


def member(path, name):
    with tarfile.open(path) as archive:
        found = [n for n in archive.getnames() if n.rpartition("/")[2] == name]
        if not found:
            corpus.fail(f"{path} holds no {name}: it is not the published archive")
        text = archive.extractfile(found[0]).read().decode("utf-8")
    return text.rstrip("\n").split("\n")


if __name__ == "__main__":
    main()
