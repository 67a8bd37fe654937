"""BLEU of --compute int8 on every instruction set that oneDNN can emulate here.

    python benchmarks/int8.py model.ticket text.de text.en --out int8.json

CTranslate2 multiplies whole numbers by oneDNN on processors that are not Intel's;
ONEDNN_MAX_CPU_ISA takes instructions away from it. A table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import List

import sacrebleu

from onelayer_lottery.files import whole_file

ISAS = (
    *("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"),
    *("AVX512_CORE_BF16", "DEFAULT"),
)
LIMIT = 0.2  # BLEU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ticket", type=Path)
    parser.add_argument("source", type=Path, help="raw text")
    parser.add_argument("reference", type=Path, help="its translation")
    parser.add_argument("--out", type=Path, default=Path("int8.json"))
    options = parser.parse_args()
    reference = options.reference.read_text("utf-8").splitlines()
    exact = translate(options, compute="float32", isa="DEFAULT")

    def bleu(lines: List[str]) -> float:
        return sacrebleu.corpus_bleu(lines, [reference], force=True).score

    rows = {"float32": {"bleu": bleu(exact), "same": len(exact), "difference": 0.0}}
    for isa in ISAS:
        print(isa, file=sys.stderr)
        lines = translate(options, compute="int8", isa=isa)
        score = bleu(lines)
        rows[isa] = {
            "bleu": score,
            "same": sum(map(str.__eq__, lines, exact)),
            "difference": score - rows["float32"]["bleu"],
        }
    with whole_file(options.out) as file:
        file.write(json.dumps({"lines": len(exact), "rows": rows}, indent=2).encode())
    print("| ONEDNN_MAX_CPU_ISA | BLEU | difference | same lines as float32 | |")
    print("|---|---|---|---|---|")
    for name, row in rows.items():
        verdict = "met" if abs(row["difference"]) <= LIMIT else "missed"
        print(
            f"| {name} | {row['bleu']:.2f} | {row['difference']:+.2f} | {row['same']}"
            f" of {len(exact)} | {verdict} |"
        )


def translate(options: argparse.Namespace, *, compute: str, isa: str) -> List[str]:
    words = [sys.executable, "-m", "onelayer_lottery.cli", "translate"]
    words += [str(options.ticket), "--compute", compute, "--threads", "1"]
    with options.source.open("rb") as source:
        done = subprocess.run(
            words,
            stdin=source,
            stdout=subprocess.PIPE,
            env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa},
            check=True,
        )
    return done.stdout.decode().splitlines()


if __name__ == "__main__":
    main()
