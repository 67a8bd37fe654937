"""Export a ticket to CTranslate2, translate, and compare with fairseq.

    python examples/deploy/deploy.py model.ticket data-bin text.de

The text is tokenised as for fairseq-interactive without --bpe: symbols of the
dictionary, separated by blanks.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import List, NamedTuple

BEAM = 5


class Row(NamedTuple):
    name: str
    size: int  # bytes on the disk
    seconds: float
    lines: List[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ticket", type=Path)
    parser.add_argument("data", type=Path, help="folder of the dictionaries")
    parser.add_argument("text", type=Path, help="source text in symbols of the model")
    parser.add_argument("--out", type=Path, default=Path("deploy-out"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = options.text.read_text(encoding="utf-8").splitlines()

    baked = options.out / "baked.pt"
    run("onelayer-lottery", "bake", options.ticket, baked, "--force")
    rows = [by_fairseq(baked, options.data, source)]
    for quantization in ("float32", "int8"):
        folder = options.out / f"ctranslate2-{quantization}"
        run(
            *("onelayer-lottery", "export", options.ticket, folder, "--force"),
            *("--to", "ctranslate2", "--compute", quantization),
        )
        rows.append(by_ctranslate2(folder, source, quantization))
    report(options.ticket, rows)


def by_fairseq(baked: Path, data: Path, source: List[str]) -> Row:
    """Beam search by fairseq-interactive, time of starting left out."""
    source_lang, target_lang = language_pair(data)
    words = ["fairseq-interactive", data, "--path", baked, "--beam", BEAM, "--cpu"]
    words += ["-s", source_lang, "-t", target_lang, "--buffer-size", len(source)]
    words += ["--max-tokens", 6000]
    printed = run(*words, stdin="".join(line + "\n" for line in source))
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", printed, re.MULTILINE)
    waits = re.findall(r"^W-\d+\t(\S+)\tseconds$", printed, re.MULTILINE)
    lines = [text for _, text in sorted(found, key=lambda pair: int(pair[0]))]
    seconds = sum(map(float, waits))
    return Row("fairseq, baked fp32", baked.stat().st_size, seconds, lines)


def by_ctranslate2(folder: Path, source: List[str], quantization: str) -> Row:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder), compute_type=quantization, intra_threads=1, inter_threads=1
    )
    tokens = [line.split() for line in source]
    started = time.perf_counter()
    results = translator.translate_batch(
        tokens, beam_size=BEAM, max_batch_size=1024, batch_type="tokens"
    )
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.iterdir())
    lines = [" ".join(result.hypotheses[0]) for result in results]
    return Row(f"CTranslate2 {quantization}", size, seconds, lines)


def report(ticket: Path, rows: List[Row]) -> None:
    print(f"{'':<22}{'bytes':>12}{'sentences/s':>13}{'same lines':>12}")
    print(f"{'the ticket itself':<22}{ticket.stat().st_size:>12,}")
    reference = rows[0].lines
    for row in rows:
        speed = len(row.lines) / max(row.seconds, 1e-9)
        same = sum(ours == theirs for ours, theirs in zip(row.lines, reference))
        share = f"{same}/{len(reference)}"
        print(f"{row.name:<22}{row.size:>12,}{speed:>13.1f}{share:>12}")


def language_pair(data: Path) -> List[str]:
    names = [re.match(r"\w+\.([\w]+)-([\w]+)\.", path.name) for path in data.iterdir()]
    return list(next(name.groups() for name in sorted(filter(None, names), key=str)))


def run(command: str, *words: object, stdin: str = "") -> str:
    done = subprocess.run(
        [str(Path(sys.executable).parent / command), *map(str, words)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
