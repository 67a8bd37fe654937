"""Engines side by side: what a ticket costs with CTranslate2, with fairseq, and others.

    python benchmarks/engines.py model.ticket text.de --out engines.json

Each round starts every engine in a process of its own, one after the other: first with
one line, which gives the seconds to the first answer, then with all lines, which gives
sentences per CPU-second without the start, and resident memory. The text is raw, as for
``onelayer-lottery translate``. A table goes to stdout, all values to --out as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Dict, List, NamedTuple, Set

from onelayer_lottery.exports.folder import write_folder
from onelayer_lottery.files import whole_file
from onelayer_lottery.ticket import read_ticket

BASE = "onelayer-lottery --engine fairseq"
BIN = Path(sys.executable).parent

# What a user of CTranslate2's own converter would write.
STOCK = """
import sys
import ctranslate2
import sentencepiece
engine = ctranslate2.Translator(sys.argv[1], intra_threads=1)
pieces = sentencepiece.SentencePieceProcessor(model_file=sys.argv[2])
lines = [line.rstrip("\\n") for line in open(0, encoding="utf-8")]
found = engine.translate_batch(
    pieces.encode(lines, out_type=str), beam_size=5, max_decoding_length=200,
    max_batch_size=512, batch_type="tokens",
)
for result in found:
    print("".join(result.hypotheses[0]).replace("\\u2581", " ").strip())
"""


class Measure(NamedTuple):
    seconds: float  # to the first line of the answer
    cpu: float  # seconds of the whole process
    memory: float  # resident at most, MB
    lines: List[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ticket", type=Path)
    parser.add_argument("text", type=Path, help="raw text, one sentence a line")
    parser.add_argument("--out", type=Path, default=Path("engines.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, help="use only so many lines")
    options = parser.parse_args()
    lines = options.text.read_text(encoding="utf-8").splitlines()[: options.lines]
    with tempfile.TemporaryDirectory() as folder:
        engines = commands(options.ticket, Path(folder))
        rounds: Dict[str, List[Dict[str, float]]] = {name: [] for name in engines}
        answers: Dict[str, List[str]] = {}
        for number in range(options.rounds):
            for name, words in engines.items():
                print(f"round {number + 1}: {name}", file=sys.stderr)
                start, whole = run(words, lines[:1]), run(words, lines)
                answers[name] = whole.lines
                rounds[name].append(
                    {
                        "first_line_s": start.seconds,
                        "sentences_per_cpu_s": len(lines)
                        / max(whole.cpu - start.cpu, 1e-9),
                        "memory_mb": whole.memory,
                    }
                )
    found = {
        "ticket_bytes": options.ticket.stat().st_size,
        "lines": len(lines),
        "rounds": rounds,
        "same_lines_as_fairseq": {
            name: sum(map(str.__eq__, found, answers[BASE]))
            for name, found in answers.items()
        },
        "installed_mb": {
            "ctranslate2": installed("numpy", "ctranslate2", "sentencepiece"),
            "fairseq": installed("torch", "fairseq-fixed", "fairseq", "sentencepiece"),
        },
    }
    with whole_file(options.out) as file:
        file.write(json.dumps(found, indent=2).encode())
    print(table(found))


def commands(ticket: Path, folder: Path) -> Dict[str, List[str]]:
    """The command of each engine; what others need is made here."""
    ours = [sys.executable, "-m", "onelayer_lottery.cli", "translate", str(ticket)]
    ours += ["--threads", "1"]
    engines = {
        "onelayer-lottery, float32": ours,
        "onelayer-lottery, int8": [*ours, "--compute", "int8"],
        BASE: [*ours, "--engine", "fairseq"],
    }
    held = read_ticket(ticket)
    if not held.bpe or held.bpe.kind != "sentencepiece":
        return engines
    task = held.configuration().task
    pair = [task["source_lang"], task["target_lang"]]
    files = {"spm.model": held.bpe.content}
    for side, language in zip(("source", "target"), pair):
        files[f"dict.{language}.txt"] = held.dictionaries[side].encode()
    write_folder(folder / "data", files)
    baked, model = folder / "baked.pt", str(folder / "data" / "spm.model")
    prepare(sys.executable, "-m", "onelayer_lottery.cli", "bake", ticket, baked)
    prepare(
        *(BIN / "ct2-fairseq-converter", "--model_path", baked),
        *("--data_dir", folder / "data", "--output_dir", folder / "stock"),
        *("--source_lang", pair[0], "--target_lang", pair[1]),
    )
    engines["CTranslate2's own converter"] = [
        *(sys.executable, "-c", STOCK, str(folder / "stock"), model)
    ]
    engines["fairseq-interactive, baked"] = [
        *(str(BIN / "fairseq-interactive"), str(folder / "data"), "--path", str(baked)),
        *("--beam", "5", "--cpu", "-s", pair[0], "-t", pair[1], "--buffer-size", "64"),
        *("--max-tokens", "6000", "--bpe", "sentencepiece"),
        *("--sentencepiece-model", model),
    ]
    return engines


def prepare(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, stdout=sys.stderr)


def run(words: List[str], lines: List[str]) -> Measure:
    """Start an engine, give it lines, and wait for its answer."""
    with tempfile.TemporaryFile() as text:
        text.write("".join(line + "\n" for line in lines).encode())
        text.seek(0)
        started, before = time.perf_counter(), time.perf_counter()
        process = subprocess.Popen(
            words,
            stdin=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        found: List[str] = []
        for line in process.stdout:
            if not line.startswith((b"S-", b"W-", b"D-", b"P-")):  # fairseq's
                before = before if found else time.perf_counter()
                found.append(line.decode().rstrip("\n"))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed")
    if found and found[0].startswith("H-"):
        rows = sorted(found, key=lambda row: int(row.split("\t")[0][2:]))
        found = [row.split("\t")[2] for row in rows]
        found = ["".join(row.split()).replace("\u2581", " ").strip() for row in found]
    cpu = usage.ru_utime + usage.ru_stime
    return Measure(before - started, cpu, usage.ru_maxrss / 1000, found)


def installed(*names: str) -> float:
    """MB of the files of packages and all that they require; absent ones are left."""
    seen: Set[str] = set()
    waiting, size = list(names), 0
    while waiting:
        name = waiting.pop()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
        size += sum(path.stat().st_size for path in paths if path.is_file())
        for requirement in package.requires or ():
            if "extra ==" not in requirement:
                waiting.append(re.match(r"[\w.-]+", requirement)[0])
    return size / 1e6


def table(found: Dict) -> str:
    keys = ("first_line_s", "sentences_per_cpu_s", "memory_mb")
    rows = [
        "| | first line, s | sentences per CPU-second | MB | same lines as fairseq |",
        "|---|---|---|---|---|",
    ]
    for name, rounds in found["rounds"].items():
        middle = [statistics.median(row[key] for row in rounds) for key in keys]
        same = found["same_lines_as_fairseq"][name]
        rows.append(
            f"| {name} | {middle[0]:.2f} | {middle[1]:.1f} | {middle[2]:.0f} |"
            f" {same} of {found['lines']} |"
        )
    sizes = found["installed_mb"]
    rows.append("")
    rows.append(
        f"installed: {sizes['ctranslate2']:.0f} MB with CTranslate2,"
        f" {sizes['fairseq']:.0f} MB with fairseq"
    )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
