"""What all recipes share: get files, check them, make subwords, binarise.

Every step writes its files whole and is left out when they are there: a second call
goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Callable, Dict, Iterable, List, NoReturn, Optional, Sequence, Tuple

SPLITS = ("train", "valid", "test")
Pairs = Sequence[Tuple[str, str]]


def options(doc: str, out: str, *, size: int) -> argparse.Namespace:
    """The command line that all recipes have."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(
        "--source",
        type=Path,
        metavar="DIR",
        help="take the files from this folder instead of the network",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(out), metavar="DIR", help=f"default: {out}"
    )
    parser.add_argument(
        "--subwords", type=int, default=size, metavar="N", help=f"default: {size}"
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="the files are a part of the corpus: do not check their sizes",
    )
    chosen = parser.parse_args()
    if chosen.source and not chosen.source.is_dir():
        fail(f"--source {chosen.source} is not a folder")
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


def fail(sentence: str) -> NoReturn:
    sys.exit(f"{Path(sys.argv[0]).parent.name}/{Path(sys.argv[0]).name}: {sentence}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def obtain(name: str, chosen: argparse.Namespace, *, url: str) -> Path:
    """A file by its published name: from --source, or by the network into out/."""
    if chosen.source:
        path = chosen.source / name
        if not path.is_file():
            fail(f"--source {chosen.source} has no {name}, as published at {url}")
    else:
        path = chosen.out / "download" / name
        if not path.is_file():
            _whole(path, lambda part: _download(url, part))
    return path


def obtain_by(
    command: str, name: str, chosen: argparse.Namespace, *, sha256: str
) -> Path:
    """A file that a package manager fetches; DIR in the command is where to."""
    path = (chosen.source or chosen.out / "download") / name
    if not path.is_file():
        if chosen.source:
            fail(f"--source {chosen.source} has no {name}; it is fetched by: {command}")
        path.parent.mkdir(parents=True, exist_ok=True)
        say(command.replace("DIR", str(path.parent)))
        words = command.replace("DIR", str(path.parent)).split()
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            fail(
                f"{words[0]} is not installed; install it, or fetch {name} elsewhere"
                " and pass its folder as --source DIR"
            )
        if done.returncode or not path.is_file():
            fail(
                f"could not fetch {name} by {' '.join(words)}: fetch it where there is"
                " a network, and pass its folder as --source DIR\n"
                + done.stderr.strip()[-500:]
            )
    if not chosen.sample:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != sha256:
            fail(f"{path} is not the published file: its SHA-256 is {found}")
    return path


def write_splits(
    chosen: argparse.Namespace,
    languages: Tuple[str, str],
    splits: Dict[str, Pairs],
    published: Optional[Dict[str, int]] = None,
) -> None:
    """Write out/text/SPLIT.LANGUAGE, after a look at the numbers of lines."""
    for split in SPLITS:
        count = len(splits[split])
        say(f"{split}: {count:,} sentence pairs")
        if not count:
            fail(f"there are no pairs for {split}")
        if published and not chosen.sample and count != published[split]:
            fail(
                f"{split} has {count:,} pairs, expected are {published[split]:,}: the"
                " files are not those that this recipe was made for; with --sample"
                " this is not checked"
            )
    for split in SPLITS:
        for side, language in enumerate(languages):
            lines = (pair[side] for pair in splits[split])
            write_lines(chosen.out / "text" / f"{split}.{language}", lines)


def subword(
    chosen: argparse.Namespace,
    languages: Tuple[str, str],
    kind: str,
    splits: Sequence[str] = SPLITS,
) -> None:
    """Learn subwords of both languages together, and apply them to every split."""
    text, out = chosen.out / "text", chosen.out / "subwords"
    out.mkdir(exist_ok=True)
    inputs = [text / f"train.{language}" for language in languages]
    make = {"sentencepiece": _sentencepiece, "fastbpe": _fastbpe}[kind]
    encode = make(inputs, out, chosen.subwords)
    for split in splits:
        for language in languages:
            path = out / f"{split}.{language}"
            if not path.exists():
                say(f"applying subwords to {split}.{language}")
                write_lines(path, encode(read_lines(text / path.name)))
            lines, pieces = (count_lines(f) for f in (text / path.name, path))
            if lines != pieces:
                fail(f"{path} has {pieces:,} lines, its text {lines:,}; remove it")


def binarise(
    chosen: argparse.Namespace, languages: Tuple[str, str], *, joined: bool = False
) -> None:
    """fairseq-preprocess into out/data-bin, with the test references beside."""
    source, target = languages
    folder = chosen.out / "data-bin"
    if not folder.exists():
        say("binarising")
        part = Path(tempfile.mkdtemp(prefix=".data-bin.", dir=chosen.out))
        pieces = chosen.out / "subwords"
        words = ["-s", source, "-t", target, "--destdir", str(part)]
        for split in SPLITS:
            words += [f"--{split}pref", str(pieces / split)]
        words += ["--workers", str(os.cpu_count() or 1)]
        words += ["--joined-dictionary"] if joined else []
        preprocess(words, part)
        reference = chosen.out / "text" / f"test.{target}"
        shutil.copyfile(reference, part / f"reference.{target}")
        part.chmod(0o755)
        part.rename(folder)
    print(f"wrote {folder}: {source}-{target}, {_sizes(chosen, languages)}")


def preprocess(words: Sequence[str], part: Path) -> None:
    """fairseq-preprocess; if it fails, the unfinished folder is removed."""
    words = [sys.executable, "-m", "fairseq_cli.preprocess", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(part)
        fail(f"fairseq-preprocess failed: {done.stderr.strip()[-800:]}")


def moses(language: str, *, lower: bool) -> Callable[[str], str]:
    """Moses' normalisation and tokenisation of a line, aggressive hyphens as in WMT."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalise = MosesPunctNormalizer(lang=language).normalize
    tokenizer = MosesTokenizer(lang=language)

    def tokens(line: str) -> str:
        line = tokenizer.tokenize(
            normalise(line), aggressive_dash_splits=not lower, return_str=True
        )
        return line.lower() if lower else line

    return tokens


def clean(pairs: Iterable[Tuple[str, str]], *, longest: int, ratio: float) -> List:
    """Leave out pairs that are empty, too long, or of too different lengths."""
    kept = []
    for pair in pairs:
        one, two = (len(side.split()) for side in pair)
        fits = 0 < one <= longest and 0 < two <= longest
        if fits and one <= ratio * two and two <= ratio * one:
            kept.append(pair)
    return kept


def paired(sources: List[str], targets: List[str], name: str) -> Pairs:
    """Two lists of lines as pairs; they must be of the same length."""
    if len(sources) != len(targets):
        fail(f"{name} has {len(sources):,} and {len(targets):,} lines: not parallel")
    return list(zip(sources, targets))


def read_lines(path: Path) -> List[str]:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {error}")


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in lines)

    _whole(path, write)


def _whole(path: Path, write: Callable[[Path], None]) -> None:
    """Put a file in its place only when all of it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        fail(f"cannot write {path}: {error.strerror or error}")
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _download(url: str, part: Path) -> None:
    say(f"fetching {url}")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        part.unlink(missing_ok=True)
        reason = getattr(error, "reason", error)
        fail(
            f"cannot fetch {url} ({reason}): fetch it where there is a network, and"
            " pass its folder as --source DIR"
        )


def _sentencepiece(inputs: List[Path], out: Path, size: int) -> Callable:
    import sentencepiece

    model = out / "spm.model"
    if not model.exists():
        say(f"learning {size:,} subwords")

        def write(part: Path) -> None:
            with part.open("wb") as file:
                sentencepiece.SentencePieceTrainer.train(
                    input=",".join(map(str, inputs)),
                    model_writer=file,
                    vocab_size=size,
                    model_type="bpe",
                    character_coverage=1.0,
                    minloglevel=2,
                )

        try:
            _whole(model, write)
        except RuntimeError as error:
            fail(f"sentencepiece cannot learn {size} subwords: {error}")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda lines: (" ".join(p) for p in pieces.encode(lines, out_type=str))


def _fastbpe(inputs: List[Path], out: Path, size: int) -> Callable:
    """Learnt by subword-nmt, which fastBPE's Python package cannot; applied by it."""
    import fastBPE
    from subword_nmt.learn_bpe import learn_bpe

    codes = out / "codes"
    if not codes.exists():
        say(f"learning {size:,} subwords")
        learned = out / "codes.subword-nmt"
        both = out / "train.both"
        write_lines(both, (line for path in inputs for line in read_lines(path)))
        with both.open(encoding="utf-8") as text, learned.open("w") as file:
            learn_bpe(text, file, size)
        merges = read_lines(learned)[1:]  # the first line is the version
        write_lines(codes, (f"{merge} 1" for merge in merges))
        both.unlink()
        learned.unlink()
    # Without a vocabulary, it takes one from a file: none is wanted.
    bpe = fastBPE.fastBPE(str(codes), "")
    return lambda lines: bpe.apply(lines)


def _sizes(chosen: argparse.Namespace, languages: Tuple[str, str]) -> str:
    counts = [count_lines(chosen.out / "text" / f"{s}.{languages[0]}") for s in SPLITS]
    pairs = "/".join(f"{count:,}" for count in counts)
    symbols = "/".join(
        f"{count_lines(chosen.out / 'data-bin' / f'dict.{language}.txt'):,}"
        for language in languages
    )
    return f"{pairs} pairs (train/valid/test), {symbols} subwords"


def strip_tags(line: str) -> str:
    """The text of a line of XML or SGML with one element."""
    return re.sub(r"<[^>]*>", "", line).strip()
