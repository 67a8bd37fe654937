"""Multi30k German-English, lower-cased: 29,000 image captions, for CPUs.

Takes the raw files of the task-1 release of Multi30k (train.de.gz, val.de.gz,
test_2016_flickr.de.gz and so on), or from --source also plain text named
{train,valid,test}.{de,en}.
"""

import gzip
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "prepare"))
import corpus

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
NAMES = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
LINES = {"train": 29000, "valid": 1014, "test": 1000}
LANGUAGES = ("de", "en")


def main() -> None:
    chosen = corpus.options(__doc__, "data/multi30k", size=6000)
    if not (chosen.out / "text" / "test.en").exists():
        splits = {
            split: corpus.paired(
                *(raw_lines(chosen, split, language) for language in LANGUAGES), split
            )
            for split in corpus.SPLITS
        }
        corpus.write_splits(chosen, LANGUAGES, splits, LINES)
    corpus.subword(chosen, LANGUAGES, "sentencepiece")
    corpus.binarise(chosen, LANGUAGES)


def raw_lines(chosen, split, language):
    plain = chosen.source and chosen.source / f"{split}.{language}"
    if plain and plain.is_file():
        lines = corpus.read_lines(plain)
    else:
        name = f"{NAMES[split]}.{language}.gz"
        path = corpus.obtain(name, chosen, url=URL + name)
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
        lines = text.rstrip("\n").split("\n")
    return [line.strip().lower() for line in lines]


if __name__ == "__main__":
    main()
