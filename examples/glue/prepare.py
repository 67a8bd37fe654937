"""Sentence pairs with a label, from TSV to data-bin: QQP, MNLI, or any of your own.

--source is a folder, or GLUE's zip archive, with train.tsv and dev.tsv (MNLI also:
dev_matched.tsv and dev_mismatched.tsv; test.tsv is used if its rows have labels). The
columns are found by the header of GLUE's files; without a header they are label,
sentence 1, sentence 2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "prepare"))
import corpus
import sentence_pairs

INPUTS = ("input0", "input1")
SPECIAL = 4  # <s> sentence </s> </s> sentence </s>


class Example(NamedTuple):
    """A row whose sentences are pieces, separated by spaces."""

    inputs: Tuple[str, str]
    label: str


def main() -> None:
    chosen = options()
    splits = sentence_pairs.read_splits(chosen)
    encode = gpt2(chosen.gpt2_files) if chosen.bpe == "gpt2" else None
    text = {s: [(r.first, r.second) for r in rows] for s, rows in splits.items()}
    if encode:
        pieces = {
            s: [tuple(map(encode, p)) for p in pairs] for s, pairs in text.items()
        }
    else:
        pieces = sentencepiece(chosen, text)
    examples = {
        split: [
            Example(fitted(pair, row, chosen), row.label)
            for pair, row in zip(pieces[split], rows)
        ]
        for split, rows in splits.items()
    }
    binarise(chosen, examples)
    for split, rows in examples.items():
        print(f"{split}: {len(rows):,} pairs, {shares(rows, chosen)}")
    print(f"wrote {chosen.out / 'data-bin'}: {chosen.task}, {chosen.bpe}")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="prepare.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", metavar="TASK", help="QQP, MNLI, or any name")
    parser.add_argument("--source", type=Path, required=True, metavar="DIR|ZIP")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: data/glue/TASK"
    )
    parser.add_argument(
        "--columns",
        metavar="LABEL,S1,S2",
        help="names in the header, or numbers from 1 on of files without one",
    )
    parser.add_argument(
        "--regression", action="store_true", help="labels are numbers, not classes"
    )
    parser.add_argument("--bpe", choices=["gpt2", "sentencepiece"], help="the subwords")
    parser.add_argument(
        "--gpt2-files",
        type=Path,
        metavar="DIR",
        help="GPT-2's encoder.json and vocab.bpe, and RoBERTa's dict.txt: its own"
        " subwords are used (default: sentencepiece, learnt from the training data)",
    )
    parser.add_argument(
        "--subwords", type=int, default=8000, metavar="N", help="of sentencepiece"
    )
    parser.add_argument(
        "--max-positions",
        type=int,
        default=512,
        metavar="N",
        help="most symbols of a pair, with 4 for beginning, separators and end",
    )
    parser.add_argument(
        "--long",
        choices=["error", "cut"],
        default="error",
        help="what to do with longer pairs: cut shortens the longer sentence",
    )
    parser.add_argument(
        "--sentences",
        action="store_true",
        help="also write OUT/sentences, the sentences of the pairs one by one, for"
        " pretrain.sh",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out rows with missing columns, empty sentences or no label, which"
        " the published files have some of",
    )
    chosen = parser.parse_args()
    chosen.out = chosen.out or Path("data/glue") / chosen.task
    chosen.bpe = chosen.bpe or ("gpt2" if chosen.gpt2_files else "sentencepiece")
    if chosen.bpe == "gpt2":
        names = ("encoder.json", "vocab.bpe", "dict.txt")
        folder = chosen.gpt2_files
        missing = [n for n in names if not (folder and (folder / n).is_file())]
        if missing:
            corpus.fail(
                f"--bpe gpt2 needs {', '.join(missing)} in --gpt2-files"
                f" {folder or 'DIR'}: fetch them as fairseq's examples/roberta says, or"
                " use --bpe sentencepiece"
            )
    elif chosen.gpt2_files:
        corpus.fail("--gpt2-files has no effect with --bpe sentencepiece: give one")
    if chosen.max_positions <= SPECIAL + 1:
        corpus.fail(f"--max-positions {chosen.max_positions}: give more than 5")
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


def sentencepiece(
    chosen: argparse.Namespace, text: Dict[str, List[Tuple[str, str]]]
) -> Dict[str, List[Tuple[str, str]]]:
    """Learn subwords from the training data, and apply them to all."""
    for split, pairs in text.items():
        for side, name in enumerate(INPUTS):
            path = chosen.out / "text" / f"{split}.{name}"
            corpus.write_lines(path, (pair[side] for pair in pairs))
            # The text may have changed since they were made.
            (chosen.out / "subwords" / path.name).unlink(missing_ok=True)
    (chosen.out / "subwords" / "spm.model").unlink(missing_ok=True)
    corpus.subword(chosen, INPUTS, "sentencepiece", list(text))
    folder = chosen.out / "subwords"
    sides = {s: [corpus.read_lines(folder / f"{s}.{n}") for n in INPUTS] for s in text}
    return {split: list(zip(*lines)) for split, lines in sides.items()}


def gpt2(folder: Path) -> Callable[[str], str]:
    """GPT-2's byte pairs as the numbers that RoBERTa's dictionary has."""
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    encoder = get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    return lambda line: " ".join(map(str, encoder.encode(line)))


def fitted(
    pair: Tuple[str, str], row: sentence_pairs.Row, chosen: argparse.Namespace
) -> Tuple[str, str]:
    """The pieces of a pair, if there are not too many; or cut, if that is asked for."""
    first, second = (side.split() for side in pair)
    room = chosen.max_positions - SPECIAL
    length = len(first) + len(second)
    if length > room and chosen.long == "error":
        corpus.fail(
            f"{row.place} has {length + SPECIAL} symbols, more than --max-positions"
            f" {chosen.max_positions}; raise it, or pass --long cut"
        )
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return " ".join(first), " ".join(second)


def binarise(chosen: argparse.Namespace, examples: Dict[str, List[Example]]) -> None:
    """fairseq-preprocess for both inputs, with one dictionary, and for the labels."""
    folder = chosen.out / "data-bin"
    part = Path(tempfile.mkdtemp(prefix=".data-bin.", dir=chosen.out))
    pieces = chosen.out / "pieces"
    for split, rows in examples.items():
        for side, name in enumerate(INPUTS):
            corpus.write_lines(
                pieces / f"{split}.{name}", (r.inputs[side] for r in rows)
            )
        corpus.write_lines(pieces / f"{split}.label", (r.label for r in rows))
    both = pieces / "both.input0"  # fairseq makes the dictionary of one file
    if chosen.bpe == "gpt2":
        dictionary = chosen.gpt2_files / "dict.txt"
    else:
        sides = [corpus.read_lines(pieces / f"train.{name}") for name in INPUTS]
        corpus.write_lines(both, [line for side in sides for line in side])
        words = ["--only-source", "--dict-only", "--trainpref", both.with_suffix("")]
        words += ["-s", "input0", "--destdir", part / "both"]
        corpus.preprocess(list(map(str, words)), part)
        dictionary = pieces / "dict.txt"
        shutil.move(part / "both" / "dict.input0.txt", dictionary)
        shutil.rmtree(part / "both")
        both.unlink()
    for name in INPUTS:
        column(part, pieces, name, examples, ["--srcdict", str(dictionary)])
    if chosen.sentences:
        one_by_one(chosen.out / "sentences", pieces, examples, dictionary)
    if chosen.regression:
        (part / "label").mkdir()
        for split in examples:
            shutil.copyfile(
                pieces / f"{split}.label", part / "label" / f"{split}.label"
            )
    else:
        column(part, pieces, "label", examples, ["--padding-factor", "1"])
    put_in_place(part, folder)


def one_by_one(
    folder: Path, pieces: Path, examples: Dict[str, List[Example]], dictionary: Path
) -> None:
    """All sentences without their labels, as the task masked_lm reads them."""
    part = Path(tempfile.mkdtemp(prefix=".sentences.", dir=folder.parent))
    words = ["--only-source", "--destdir", str(part), "--srcdict", str(dictionary)]
    words += ["--workers", str(os.cpu_count() or 1)]
    for split in ("train", "valid"):
        path = pieces / f"{split}.sentences"
        pairs = (row.inputs for row in examples[split])
        corpus.write_lines(path, (sentence for pair in pairs for sentence in pair))
        words += [f"--{split}pref", str(path)]
    corpus.preprocess(words, part)
    put_in_place(part, folder)


def put_in_place(part: Path, folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    part.chmod(0o755)
    part.rename(folder)


def column(
    part: Path, pieces: Path, name: str, examples: Dict, extra: List[str]
) -> None:
    """A column in a folder of its own, as the task sentence_prediction reads it."""
    words = ["--only-source", "--destdir", str(part / name), *extra]
    words += ["--workers", str(os.cpu_count() or 1)]
    # Without languages fairseq takes the prefix for the file's whole name.
    words += ["--trainpref", str(pieces / f"train.{name}")]
    valid = [str(pieces / f"{s}.{name}") for s in examples if s.startswith("valid")]
    words += ["--validpref", ",".join(valid)]
    if "test" in examples:
        words += ["--testpref", str(pieces / f"test.{name}")]
    corpus.preprocess(words, part)


def shares(rows: List[Example], chosen: argparse.Namespace) -> str:
    if chosen.regression:
        values = [float(row.label) for row in rows]
        return f"labels from {min(values):g} to {max(values):g}"
    labels = [row.label for row in rows]
    return ", ".join(
        f"{name} {labels.count(name) / len(labels):.1%}" for name in sorted(set(labels))
    )


if __name__ == "__main__":
    main()
