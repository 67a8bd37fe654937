"""Train a dense Transformer and a one-layer random one on a small corpus; compare.

Everything is made here: the corpus by a grammar, the models by fairseq's own commands,
one thread each, side by side. A second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List

import grammar
import sacrebleu

from onelayer_lottery.checkpoint.reading import load_checkpoint

USER_DIR = Path(__file__).resolve().parents[2] / "onelayer_lottery"
COMMON = """
    --share-decoder-input-output-embed --optimizer adam --adam-betas (0.9,0.98)
    --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update {updates}
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --max-tokens 1500 --max-update {updates}
    --required-batch-size-multiple 1 --num-workers 0 --no-epoch-checkpoints
    --log-format json --log-interval 20 --cpu
"""
MODELS = {
    "dense": """
        --arch transformer --encoder-embed-dim 128 --encoder-ffn-embed-dim 256
        --encoder-attention-heads 4 --decoder-attention-heads 4
        --encoder-layers 3 --decoder-layers 3 --dropout 0 --lr 2e-3
    """,
    "one-layer random": """
        --arch transformer_onelayer_random_tiny --mask-preset best --dropout 0 --lr 3e-3
    """,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--updates", type=int, default=1500, help="of each model")
    options = parser.parse_args()
    out, updates = options.out, options.updates
    out.mkdir(parents=True, exist_ok=True)
    started = time.time()
    prepare(out)
    train(out, updates)
    with ThreadPoolExecutor() as pool:
        translations = dict(zip(MODELS, pool.map(lambda m: translate(out, m), MODELS)))
    minutes = (time.time() - started) / 60
    report(out, translations, updates=updates, minutes=minutes)


def prepare(out: Path) -> None:
    """Write the corpus and binarise it."""
    if (out / "data-bin" / "dict.en.txt").exists():
        return
    say("writing the corpus")
    grammar.write_corpus(out)
    run(
        out,
        "fairseq-preprocess --source-lang de --target-lang en --trainpref train"
        " --validpref valid --testpref test --destdir data-bin",
        log="preprocess",
    )


def train(out: Path, updates: int) -> None:
    """Train all models at once, and show how far they are."""
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(train_one, out, model, updates) for model in MODELS]
        started = shown = time.time()
        while not all(job.done() for job in jobs):
            time.sleep(0.5)
            pause = 2 if sys.stderr.isatty() else 30
            if time.time() - shown >= pause:
                shown = time.time()
                show_progress(out, updates, shown - started)
        for job in jobs:
            job.result()
    show_progress(out, updates, time.time() - started)
    say("")


def train_one(out: Path, model: str, updates: int) -> None:
    run(
        out,
        f"fairseq-train data-bin {COMMON.format(updates=updates)} {MODELS[model]}"
        f" --user-dir {USER_DIR}"
        f" --save-dir {folder(model)}",
        log=folder(model),
    )


def translate(out: Path, model: str) -> List[str]:
    """Translate the test set with beam 5, in the order of its lines."""
    printed = run(
        out,
        f"fairseq-generate data-bin --path {folder(model)}/checkpoint_best.pt"
        f" --user-dir {USER_DIR} --beam 5 --max-tokens 6000 --cpu"
        " --max-len-a 1.2 --max-len-b 10 --required-batch-size-multiple 1",
        log=f"{folder(model)}.generate",
    )
    found = {
        int(number): text
        for number, text in re.findall(r"^H-(\d+)\t\S+\t(.*)$", printed, re.MULTILINE)
    }
    expected = len(read(out / "test.de"))
    if sorted(found) != list(range(expected)):
        raise SystemExit(f"{len(found)} of {expected} sentences were translated")
    return [found[number] for number in range(expected)]


def report(
    out: Path,
    translations: Dict[str, List[str]],
    *,
    updates: int,
    minutes: float,
) -> None:
    """Print the table and five translations; keep the numbers in results.json."""
    source, reference = read(out / "test.de"), read(out / "test.en")
    metric = sacrebleu.BLEU(tokenize="none", force=True)
    results = {}
    for model, hypotheses in translations.items():
        bleu = metric.corpus_score(hypotheses, [reference]).score
        results[model] = {"bleu": round(bleu, 2), **size(out, model)}
    dense = results["dense"]["bleu"]
    print(
        f"\n{'model':<18}{'BLEU':>7}{'of dense':>10}{'bytes':>12}{'kept weights':>24}"
    )
    for model, row in results.items():
        kept = f"{row['kept']:,} of {row['weights']:,}"
        share = f"{row['bleu'] / dense:.0%}" if dense else "-"
        print(f"{model:<18}{row['bleu']:>7.2f}{share:>10}{row['bytes']:>12,}{kept:>24}")
    print(f"\nBLEU: {metric.get_signature()}, beam 5, {len(source):,} sentences")
    print("bytes: dense, 4 per value; one-layer random, its ticket with dictionaries")
    print(f"{minutes:.1f} minutes, {updates:,} updates each, one thread each")
    for number in range(0, len(source), len(source) // 5):
        print(f"\n  german            {source[number]}")
        print(f"  reference         {reference[number]}")
        for model, hypotheses in translations.items():
            print(f"  {model:<18}{hypotheses[number]}")
    results["minutes"] = round(minutes, 1)
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    ticket = f"{folder('one-layer random')}.ticket"
    (out / "examples.de").write_text("\n".join(source[:4]) + "\n", encoding="utf-8")
    run(
        out,
        f"onelayer-lottery page {ticket} -o translator.html --examples examples.de"
        " --title 'German to English, in the words of a small grammar' --force",
        log="page",
    )
    print(f"\nopen {out / 'translator.html'} in a browser to translate with the ticket")


def size(out: Path, model: str) -> Dict[str, int]:
    """Bytes of the trained model in a file, and the number of its weights."""
    checkpoint = f"{folder(model)}/checkpoint_best.pt"
    if "onelayer" in MODELS[model]:
        file = f"{folder(model)}.ticket"
        run(
            out,
            f"onelayer-lottery ticket {checkpoint} {file} --force",
            log=f"{folder(model)}.ticket",
        )
        printed = run(
            out,
            f"onelayer-lottery inspect {file} --json",
            log=f"{folder(model)}.inspect",
        )
        totals = json.loads(printed[printed.index("{") :])["totals"]
        return {
            "bytes": (out / file).stat().st_size,
            "kept": totals["kept"],
            "weights": totals["positions"],
        }
    tensors = load_checkpoint(out / checkpoint)["model"]
    unique = {
        tensor.data_ptr(): tensor.numel()
        for name, tensor in tensors.items()
        if name.endswith(("weight", "bias"))
    }
    values = sum(unique.values())
    return {"bytes": 4 * values, "kept": values, "weights": values}


def show_progress(out: Path, updates: int, seconds: float) -> None:
    parts = []
    for model in MODELS:
        path = out / f"{folder(model)}.log"
        log = path.read_text(errors="replace") if path.exists() else ""
        done = re.findall(r'num_updates": "(\d+)"', log)
        loss = re.findall(r'"valid_nll_loss": "([\d.]+)"', log)
        progress = f"{int(done[-1]) / updates:4.0%}" if done else "starting"
        parts.append(f"{model} {progress}" + (f", loss {loss[-1]}" if loss else ""))
    end = "\r" if sys.stderr.isatty() else "\n"
    line = f"{seconds / 60:4.1f} min | " + " | ".join(parts)
    print(f"{line:<90}", end=end, file=sys.stderr, flush=True)


def run(out: Path, command: str, *, log: str) -> str:
    """Run a command, its output in a log; its words are split as by a shell."""
    name, *words = shlex.split(command)
    path = out / f"{log}.log"
    with path.open("w", encoding="utf-8") as file:
        status = subprocess.run(
            [str(Path(sys.executable).parent / name), *words],
            cwd=out,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
    if status:
        raise SystemExit(f"{name} failed with status {status}; see {path}")
    return path.read_text(encoding="utf-8")


def folder(model: str) -> str:
    return model.replace(" ", "-")


def read(path: Path) -> List[str]:
    return path.read_text(encoding="utf-8").splitlines()


def say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
