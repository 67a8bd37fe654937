"""Sequence-level distillation: data whose training targets are a model's translations.

    python examples/learning/translate_targets.py data/multi30k/data-bin \\
        --teacher dense/checkpoint_best.pt --out data/multi30k/distilled

The teacher translates the training sentences by beam search (fairseq-generate, on a GPU
if there is one). The new folder is the old one with other targets in train; train on it
as on any other. A sentence that the teacher cannot read keeps its target.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator, Tuple

import torch
from fairseq.data import Dictionary, indexed_dataset
from fairseq.data.data_utils import load_indexed_dataset

import onelayer_lottery

_SAY_EVERY = 1000  # sentences


def languages(data: Path) -> Tuple[str, str]:
    """The source and the target language of a folder of fairseq-preprocess."""
    for path in sorted(data.glob("train.*.idx")):
        found = re.fullmatch(r"train\.([^.]+)-([^.]+)\.\1\.idx", path.name)
        if found:
            return found[1], found[2]
    raise SystemExit(
        f"{data} has no train.SOURCE-TARGET.SOURCE.idx: give the data-bin folder that"
        " fairseq-preprocess wrote"
    )


def translations(data: Path, teacher: Path, beam: int) -> Iterator[Tuple[int, str]]:
    """The number of each training sentence and its translation, in any order."""
    words = [sys.executable, "-m", "fairseq_cli.generate", data, "--path", teacher]
    words += ["--user-dir", Path(onelayer_lottery.__file__).parent]
    words += ["--gen-subset", "train", "--beam", beam]
    words += ["--max-len-a", 1.2, "--max-len-b", 10, "--max-tokens", 6000]
    words += [
        "--required-batch-size-multiple",
        1,
        "--skip-invalid-size-inputs-valid-test",
    ]
    words += [] if torch.cuda.is_available() else ["--cpu", "--num-workers", 0]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said, subprocess.Popen(
        list(map(str, words)), stdout=subprocess.PIPE, stderr=said, encoding="utf-8"
    ) as process:
        for line in process.stdout:
            found = re.match(r"H-(\d+)\t\S+\t(.*)", line)
            if found:
                yield int(found[1]), found[2]
        if process.wait():
            said.seek(0)
            last = said.read().strip().splitlines()[-1:]
            raise SystemExit(f"fairseq-generate failed on {teacher}: {' '.join(last)}")


def distil(data: Path, teacher: Path, out: Path, *, beam: int) -> None:
    source, target = languages(data)
    name = f"train.{source}-{target}.{target}"
    symbols = Dictionary.load(str(data / f"dict.{target}.txt"))
    old = load_indexed_dataset(str(data / name), symbols)
    found: Dict[int, str] = {}
    for number, text in translations(data, teacher, beam):
        found[number] = text
        if len(found) % _SAY_EVERY == 0:
            print(f"{len(found):,} of {len(old):,} sentences", file=sys.stderr)
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(data, part, ignore=shutil.ignore_patterns(f"{name}.*"))
    builder = indexed_dataset.make_builder(
        str(part / f"{name}.bin"), impl="mmap", vocab_size=len(symbols)
    )
    for number, tokens in enumerate(old):
        if number in found:
            tokens = symbols.encode_line(found[number], add_if_not_exist=False)
        builder.add_item(tokens)
    builder.finalize(str(part / f"{name}.idx"))
    part.rename(out)
    print(f"{out}: {len(found):,} of {len(old):,} training targets are the teacher's")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder that fairseq-preprocess wrote")
    parser.add_argument("--teacher", type=Path, required=True, help="its checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--beam", type=int, default=5, help="default: 5")
    args = parser.parse_args()
    if args.out.exists():
        raise SystemExit(f"--out {args.out} exists: give a new folder")
    if not args.teacher.is_file():
        raise SystemExit(f"--teacher {args.teacher} is not a file: give a checkpoint")
    distil(args.data, args.teacher, args.out, beam=args.beam)


if __name__ == "__main__":
    main()
