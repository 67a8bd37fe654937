"""Characters or subwords of a text, ready for language models of fairseq.

    python examples/lm/prepare.py input.txt --out data/shakespeare

The first 90% of the text, up to the end of a line, are for training, the rest for
validation; --valid FILE is for validation instead. Characters are split, and joined
again, by a SentencePiece model like subwords are: onelayer-lottery ticket --bpe takes
it.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import sentencepiece

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "prepare"))
import corpus

TRAINED = 0.9  # of the characters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="plain text in UTF-8")
    parser.add_argument("--valid", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("data/lm"), metavar="DIR")
    parser.add_argument(
        "--subwords", type=int, metavar="N", help="so many; without it, characters"
    )
    chosen = parser.parse_args()
    splits = {"train": corpus.read_lines(chosen.text)}
    if chosen.valid:
        splits["valid"] = corpus.read_lines(chosen.valid)
    else:
        splits["train"], splits["valid"] = cut(splits["train"])
    for split, lines in splits.items():
        if not any(lines):
            corpus.fail(f"there is no text for {split}")
    model = learn(splits["train"], chosen)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.read_bytes())
    for split, lines in splits.items():
        corpus.write_lines(chosen.out / "text" / f"{split}.txt", lines)
        encoded = (" ".join(p) for p in pieces.encode(lines, out_type=str))
        corpus.write_lines(chosen.out / "symbols" / f"{split}.txt", encoded)
    binarise(chosen)
    sizes = ", ".join(
        f"{split} {sum(map(len, lines)) + len(lines):,} characters"
        for split, lines in splits.items()
    )
    symbols = corpus.count_lines(chosen.out / "data-bin" / "dict.txt")
    print(f"wrote {chosen.out / 'data-bin'}: {symbols:,} symbols; {sizes}")


def cut(lines):
    """The first 90% of the characters, to the end of a line, and the rest."""
    wanted = TRAINED * (sum(map(len, lines)) + len(lines))
    read = 0
    for number, line in enumerate(lines, start=1):
        read += len(line) + 1
        if read >= wanted:
            return lines[:number], lines[number:]
    return lines, []


def learn(lines, chosen):
    """A SentencePiece model that loses nothing: spaces stay as they are."""
    path = chosen.out / "spm.model"
    if path.exists():
        return path
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.subwords:
        size = {"model_type": "bpe", "vocab_size": chosen.subwords}
    else:
        size = {"model_type": "char", "use_all_vocab": True}
    part = Path(tempfile.mkstemp(dir=chosen.out)[1])
    try:
        with part.open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=file,
                character_coverage=1.0,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                add_dummy_prefix=False,
                minloglevel=2,
                **size,
            )
        part.chmod(0o644)
        part.replace(path)
    except RuntimeError as error:
        corpus.fail(f"sentencepiece cannot learn these symbols: {error}")
    finally:
        part.unlink(missing_ok=True)
    return path


def binarise(chosen):
    folder = chosen.out / "data-bin"
    if folder.exists():
        return
    part = Path(tempfile.mkdtemp(prefix=".data-bin.", dir=chosen.out))
    words = ["--only-source", "--destdir", str(part), "--workers", "1"]
    words += ["--padding-factor", "1"]  # no symbol that is in no text
    for split in ("train", "valid"):
        words += [f"--{split}pref", str(chosen.out / "symbols" / f"{split}.txt")]
    corpus.preprocess(words, part)
    text = chosen.out / "text" / "valid.txt"  # for bits per character
    shutil.copyfile(text, part / "reference.txt")
    part.chmod(0o755)
    part.rename(folder)


if __name__ == "__main__":
    main()
