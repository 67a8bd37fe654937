"""Rows of TSV files with two sentences and a label, checked one by one."""

from __future__ import annotations

import argparse
import math
import sys
import zipfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "prepare"))
import corpus

# The columns label, sentence 1 and sentence 2 in the headers of GLUE's files.
HEADERS = (
    ("is_duplicate", "question1", "question2"),
    ("gold_label", "sentence1", "sentence2"),
    ("label", "sentence1", "sentence2"),
    ("label", "question", "sentence"),
    ("score", "sentence1", "sentence2"),
    ("Quality", "#1 String", "#2 String"),
)
LABELS = {"QQP": ("0", "1"), "MNLI": ("entailment", "neutral", "contradiction")}
# Where a split may be; a task with two files for valid has both, the second as valid1.
FILES = {
    "train": ("train.tsv",),
    "valid": ("dev_matched.tsv", "dev.tsv", "valid.tsv"),
    "valid1": ("dev_mismatched.tsv",),
    "test": ("test.tsv",),
}


class Row(NamedTuple):
    first: str
    second: str
    label: str
    place: str  # line and file, for messages


class Bad(NamedTuple):
    """A row that cannot be used, and why."""

    sentence: str


def read_splits(chosen: argparse.Namespace) -> Dict[str, List[Row]]:
    """All splits of the source that are there; train and valid must be."""
    splits: Dict[str, List[Row]] = {}
    for split, names in FILES.items():
        found = _find(chosen.source, names)
        if found is None:
            if split in ("train", "valid"):
                corpus.fail(
                    f"{chosen.source} has no {' or '.join(names)}; give the folder or"
                    " the zip archive of the task as --source"
                )
            continue
        name, lines = found
        rows = _rows(name, lines, chosen, labelled=split != "test")
        if rows:
            splits[split] = rows
    known = LABELS.get(chosen.task) or {row.label for row in splits["train"]}
    for rows in splits.values() if not chosen.regression else ():
        for row in rows:
            if row.label not in known:
                corpus.fail(
                    f"{row.place} has the unknown label {row.label!r}; known are"
                    f" {', '.join(sorted(known))}"
                )
    return splits


def _find(source: Path, names: Tuple[str, ...]) -> Optional[Tuple[str, List[str]]]:
    """The first of some files in a folder or an archive: its name and lines."""
    if source.is_dir():
        for name in names:
            if (source / name).is_file():
                return str(source / name), _decoded(source / name)
        return None
    if not zipfile.is_zipfile(source):
        corpus.fail(f"--source {source} is neither a folder nor a zip archive")
    try:
        with zipfile.ZipFile(source) as archive:
            members = {
                Path(member).name: member
                for member in archive.namelist()
                if "__MACOSX" not in member and "/original/" not in member
            }
            for name in names:
                if name in members:
                    text = archive.read(members[name]).decode("utf-8")
                    return members[name], text.rstrip("\n").split("\n")
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        corpus.fail(f"cannot read {source}: {error}")
    return None


def _decoded(path: Path) -> List[str]:
    lines = corpus.read_lines(path)
    return [] if lines == [""] else lines


def _rows(
    name: str, lines: List[str], chosen: argparse.Namespace, *, labelled: bool
) -> List[Row]:
    if not any(line.strip() for line in lines):
        corpus.fail(f"{name} is empty")
    rows, bad = [], []
    for item in _parsed(name, lines, chosen, labelled=labelled):
        if isinstance(item, Row):
            rows.append(item)
            continue
        if not chosen.skip_bad:
            corpus.fail(f"{item.sentence}; mend it, or leave such rows out: --skip-bad")
        bad.append(item.sentence)
    if bad:
        corpus.say(f"{name}: left out {len(bad):,} bad rows, the first: {bad[0]}")
    if not rows and labelled:
        corpus.fail(f"{name} has no row that can be used")
    return rows


def _parsed(
    name: str, lines: List[str], chosen: argparse.Namespace, *, labelled: bool
) -> Iterator[object]:
    """Each line as a row, or what is wrong with it; none if there are no labels."""
    header = lines[0].rstrip("\r").split("\t")
    columns = _columns(name, header, chosen, labelled=labelled)
    if columns is None:
        corpus.say(f"{name} has no labels: it is left out")
        return
    indices, has_header = columns
    for number, line in enumerate(lines, start=1):
        if number == 1 and has_header:
            continue
        place = f"line {number} of {name}"
        fields = line.rstrip("\r").split("\t")
        if len(fields) != len(header):
            yield Bad(
                f"{place} has {len(fields)} columns, expected {len(header)}"
                + (
                    " as in its header"
                    if has_header
                    else " (label, sentence 1, sentence 2)"
                    if len(header) == 3
                    else " as in its first line"
                )
            )
            continue
        # Odd spaces and line ends inside a sentence would become lines of their own.
        label, first, second = (" ".join(fields[index].split()) for index in indices)
        problem = _problem(label, first, second, chosen)
        yield (
            Bad(f"{place}: {problem}") if problem else Row(first, second, label, place)
        )


def _problem(
    label: str, first: str, second: str, chosen: argparse.Namespace
) -> Optional[str]:
    for number, sentence in enumerate((first, second), start=1):
        if not sentence:
            return f"sentence {number} is empty"
    if not label:
        return "the label is empty"
    if chosen.regression:
        try:
            finite = math.isfinite(float(label))
        except ValueError:
            finite = False
        if not finite:
            return f"the label {label!r} is not a number, as --regression wants"
    elif len(label.split()) > 1:
        return f"the label {label!r} is more than one word"
    return None


def _columns(
    name: str, header: List[str], chosen: argparse.Namespace, *, labelled: bool
) -> Optional[Tuple[List[int], bool]]:
    """Where label and sentences are, and whether the first line is a header."""
    if chosen.columns:
        names = chosen.columns.split(",")
        if len(names) != 3:
            corpus.fail(f"--columns {chosen.columns}: give three, as LABEL,S1,S2")
        if all(n.isdigit() for n in names):
            if not all(1 <= int(n) <= len(header) for n in names):
                corpus.fail(
                    f"--columns {chosen.columns}: {name} has {len(header)} columns"
                )
            return [int(n) - 1 for n in names], False
        missing = [n for n in names if n not in header]
        if missing and not labelled:
            return None
        if missing:
            corpus.fail(
                f"{name} has no column {', '.join(missing)}; its header is"
                f" {', '.join(header)}"
            )
        return [header.index(n) for n in names], True
    for names in HEADERS:
        if all(n in header for n in names):
            return [header.index(n) for n in names], True
    if not labelled and any(n in header for names in HEADERS for n in names[1:]):
        return None
    if len(header) == 3:
        return [0, 1, 2], False
    corpus.fail(
        f"line 1 of {name} has {len(header)} columns, expected 3 (label, sentence 1,"
        " sentence 2) or the header of a GLUE file; name the columns with --columns"
    )
