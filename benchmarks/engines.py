"""Engines side by side: what a ticket costs with CTranslate2, with fairseq, and others.

    python benchmarks/engines.py model.ticket text.de --out engines.json

Each round starts every engine in a process of its own, one after the other: first with
one line, which gives the seconds to the first answer and the CPU-seconds of the whole
process, which other programs hardly change, then with all lines, which gives
sentences per CPU-second without the start, and resident memory. The text is raw, as for
``onelayer-lottery translate``. What the others need, a baked checkpoint and a converted
folder, is made before the first round, in --work. Tables go to stdout, all values to
--out as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Set

from onelayer_lottery.exports.folder import write_folder
from onelayer_lottery.files import whole_file
from onelayer_lottery.text.pipeline import text_pipeline
from onelayer_lottery.ticket import read_ticket

FLOAT32 = "translate"
INT8 = "translate --compute int8"
FAIRSEQ = "translate --engine fairseq"
STOCK_CT2 = "CTranslate2's own converter and script"
GENERATE = "fairseq-generate on the baked model"
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
    parser.add_argument(
        "--first-line",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="the target for the start (default: 0.5)",
    )
    parser.add_argument("--only", nargs="*", metavar="NAME", help="engines to start")
    parser.add_argument("--work", type=Path, help="keep what is made for the others")
    options = parser.parse_args()
    lines = options.text.read_text(encoding="utf-8").splitlines()[: options.lines]
    with tempfile.TemporaryDirectory() as folder:
        engines = commands(options.ticket, options.work or Path(folder), lines)
        if options.only:
            engines = {name: engines[name] for name in options.only}
        if not options.rounds:  # everything is made
            return
        rounds: Dict[str, List[Dict[str, float]]] = {name: [] for name in engines}
        answers: Dict[str, List[str]] = {}
        for number in range(options.rounds):
            for name, words in engines.items():
                print(f"round {number + 1}: {name}", file=sys.stderr)
                start = run([*words.command, *words.one], lines[:1])
                whole = run([*words.command, *words.all], lines)
                answers[name] = whole.lines
                rounds[name].append(
                    {
                        "first_line_s": start.seconds,
                        "first_line_cpu_s": start.cpu,
                        "sentences_per_cpu_s": len(lines)
                        / max(whole.cpu - start.cpu, 1e-9),
                        "memory_mb": whole.memory,
                    }
                )
    found = {
        "command": " ".join(["python benchmarks/engines.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {processor()}",
        "versions": {
            name: version(name)
            for name in ("ctranslate2", "numpy", "sentencepiece", "torch")
        },
        "ticket_bytes": options.ticket.stat().st_size,
        "lines": len(lines),
        "rounds": rounds,
        "same_lines": {
            name: sum(map(str.__eq__, found, answers[FLOAT32]))
            for name, found in answers.items()
        },
        "installed_mb": {
            "ctranslate2": installed("numpy", "ctranslate2", "sentencepiece"),
            "fairseq": installed("torch", "fairseq-fixed", "fairseq", "sentencepiece"),
        },
    }
    found["targets"] = targets(found, options.first_line)
    with whole_file(options.out) as file:
        file.write(json.dumps(found, indent=2).encode() + b"\n")
    print(table(found))


class Engine(NamedTuple):
    command: List[str]
    one: Sequence[str] = ()  # what follows for one line
    all: Sequence[str] = ()  # what follows for all lines


def commands(ticket: Path, work: Path, lines: List[str]) -> Dict[str, Engine]:
    """The command of each engine; what others need is made here."""
    ours = [sys.executable, "-m", "onelayer_lottery.cli", "translate", str(ticket)]
    ours += ["--threads", "1"]
    engines = {
        FLOAT32: Engine(ours),
        INT8: Engine([*ours, "--compute", "int8"]),
        FAIRSEQ: Engine([*ours, "--engine", "fairseq"]),
    }
    held = read_ticket(ticket)
    if not held.bpe or held.bpe.kind != "sentencepiece":
        return engines
    task = held.configuration().task
    pair = [task["source_lang"], task["target_lang"]]
    baked, data = work / "baked.pt", work / "data"
    if not (work / "stock").exists():
        files = {"spm.model": held.bpe.content}
        for side, language in zip(("source", "target"), pair):
            files[f"dict.{language}.txt"] = held.dictionaries[side].encode()
        work.mkdir(parents=True, exist_ok=True)
        write_folder(data, files, force=True)
        bake = (sys.executable, "-m", "onelayer_lottery.cli", "bake", "--force")
        prepare(*bake, ticket, baked)
        prepare(
            *(BIN / "ct2-fairseq-converter", "--model_path", baked, "--force"),
            *("--data_dir", data, "--output_dir", work / "stock"),
            *("--source_lang", pair[0], "--target_lang", pair[1]),
        )
    encode = text_pipeline(held).encode
    for name, chosen in (("one", lines[:1]), ("all", lines)):
        text = work / f"{name}.{pair[0]}"
        text.write_text("".join(encode(line) + "\n" for line in chosen), "utf-8")
        prepare(
            *(BIN / "fairseq-preprocess", "-s", pair[0], "-t", pair[1]),
            *("--srcdict", data / f"dict.{pair[0]}.txt", "--only-source"),
            *("--testpref", work / name, "--destdir", work / f"bin-{name}"),
        )
        target = f"dict.{pair[1]}.txt"
        (work / f"bin-{name}" / target).write_bytes((data / target).read_bytes())
    script = [sys.executable, "-c", STOCK, str(work / "stock")]
    engines[STOCK_CT2] = Engine([*script, str(data / "spm.model")])
    engines[GENERATE] = Engine(
        [
            *(str(BIN / "fairseq-generate"), "--path", str(baked), "--beam", "5"),
            *("-s", pair[0], "-t", pair[1], "--cpu", "--max-tokens", "6000"),
            *("--batch-size", "64", "--required-batch-size-multiple", "1"),
        ],
        one=[str(work / "bin-one")],
        all=[str(work / "bin-all")],
    )
    return engines


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


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
            if not line.startswith((b"S-", b"W-", b"D-", b"P-", b"Gen")):  # fairseq's
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
    return Measure(before - started, cpu, usage.ru_maxrss * 1024 / 1e6, found)


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


def targets(found: Dict[str, Any], first_line: float) -> List[Dict[str, Any]]:
    """What was to be reached, what was, and whether: ratios are those of a round."""
    rounds = found["rounds"]

    def ratio(key: str, one: str, other: str) -> List[float]:
        pairs = zip(rounds.get(one, ()), rounds.get(other, ()))
        return [a[key] / b[key] for a, b in pairs]

    starts = [row["first_line_s"] for row in rounds[FLOAT32]]
    rows = [
        ("start to first line, s", starts, "<=", first_line),
        *(
            (f"sentences per CPU-second, {name} / fairseq", values, ">=", least)
            for name, values, least in (
                ("float32", ratio("sentences_per_cpu_s", FLOAT32, FAIRSEQ), 2.3),
                ("int8", ratio("sentences_per_cpu_s", INT8, FAIRSEQ), 2.8),
            )
        ),
        ("memory / fairseq", ratio("memory_mb", FLOAT32, FAIRSEQ), "<=", 0.25),
        ("installed, MB", [found["installed_mb"]["ctranslate2"]], "<=", 230),
    ]
    values = ratio("sentences_per_cpu_s", FLOAT32, STOCK_CT2)
    rows.append((f"sentences per CPU-second / {STOCK_CT2}", values, ">=", 1.0))
    return [
        {
            "what": what,
            "target": f"{sign} {bound}",
            "median": statistics.median(values),
            "range": [min(values), max(values)],
            "verdict": verdict(values, sign, bound),
        }
        for what, values, sign, bound in rows
        if values
    ]


def verdict(values: List[float], sign: str, bound: float) -> str:
    met = [value >= bound if sign == ">=" else value <= bound for value in values]
    return "met" if all(met) else "too noisy to tell" if any(met) else "missed"


def table(found: Dict[str, Any]) -> str:
    keys = ("first_line_s", "first_line_cpu_s", "sentences_per_cpu_s", "memory_mb")
    rows = [
        "| | first line, s | its CPU-seconds | sentences per CPU-second | MB"
        " | same lines |",
        "|---|---|---|---|---|---|",
    ]
    for name, rounds in found["rounds"].items():
        middle = [statistics.median(row[key] for row in rounds) for key in keys]
        same = found["same_lines"][name]
        rows.append(
            f"| {name} | {middle[0]:.2f} | {middle[1]:.2f} | {middle[2]:.1f} |"
            f" {middle[3]:.0f} |"
            f" {same} of {found['lines']} |"
        )
    rows += ["", "| | target | median | rounds | verdict |", "|---|---|---|---|---|"]
    for row in found["targets"]:
        least, most = row["range"]
        rows.append(
            f"| {row['what']} | {row['target']} | {row['median']:.2f} |"
            f" {least:.2f} to {most:.2f} | {row['verdict']} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
