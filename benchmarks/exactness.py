"""Compare CTranslate2's translations with fairseq's for every sort of ticket.

    python benchmarks/exactness.py data/multi30k --out exactness

DATA is what examples/multi30k/prepare.py makes. Each sort is trained briefly, written
as a ticket, and translates the test set with both engines: beam 5, float32. Compared
are the symbols of every line, and the score of each translation, which CTranslate2
computes anew. A line "at the limit" is one for which an engine finds 200 symbols: there
fairseq adds the end of the sentence, CTranslate2 does not. For each kind of subwords,
the symbols of all lines and the joined translations are compared with those of
fairseq's own encoders too. A line below the limit that differs is listed with the
scores that both engines give to both translations. A sort that has a result is not run
again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import encoders

from onelayer_lottery import load_ticket
from onelayer_lottery.text.byte_level import ByteLevel
from onelayer_lottery.text.dictionary import EOS
from onelayer_lottery.text.pipeline import text_pipeline
from onelayer_lottery.text.subwords import GPT2_FILES
from onelayer_lottery.ticket import read_ticket

BIN = Path(sys.executable).parent
LIMIT = 200  # symbols of a translation
TRAIN = (
    "--optimizer adam --adam-betas (0.9,0.98) --lr 5e-3 --warmup-updates 30"
    " --lr-scheduler polynomial_decay --criterion label_smoothed_cross_entropy"
    " --label-smoothing 0.1 --dropout 0 --max-tokens 1000 --num-workers 0"
    " --required-batch-size-multiple 1 --no-epoch-checkpoints --disable-validation"
    " --encoder-layers 2 --decoder-layers 2 --cpu"
)
WIDTH = "--{0}-embed-dim 64 --{0}-ffn-embed-dim 128 --{0}-attention-heads 4"
ONE_LAYER = "--arch transformer_onelayer_random_tiny --mask-preset best"
RESERVOIR = "--arch transformer_reservoir_tiny --reservoir-layers encoder:1/decoder:1"
EMBEDDINGS = "--encoder-embed-path {0} --decoder-embed-path {0}"


class Sort(NamedTuple):
    flags: str  # of fairseq-train
    data: str = "sentencepiece"  # the kind of its subwords, or joined
    ticket: str = ""  # flags of onelayer-lottery ticket
    needs: str = ""  # the sort whose embeddings are imported


SORTS = {
    "masks only": Sort(ONE_LAYER),
    "imported embeddings, fp32": Sort(f"{ONE_LAYER} {EMBEDDINGS}", needs="masks only"),
    "imported embeddings, fp16": Sort(
        f"{ONE_LAYER} {EMBEDDINGS}", ticket="--embeddings fp16", needs="masks only"
    ),
    "signed": Sort(f"{ONE_LAYER} --mask-method signed --mask-keep 0.6"),
    "scale of a tensor": Sort(f"{ONE_LAYER} --mask-scale tensor"),
    "scale of a row": Sort(f"{ONE_LAYER} --mask-scale row"),
    "scale of a row and a column": Sort(f"{ONE_LAYER} --mask-scale row-column"),
    "pre-norm": Sort(
        f"{ONE_LAYER} --encoder-normalize-before --decoder-normalize-before"
    ),
    "learned positions": Sort(
        f"{ONE_LAYER} --encoder-learned-pos --decoder-learned-pos"
        " --mask-train positions"
    ),
    "shared embeddings": Sort(f"{ONE_LAYER} --share-all-embeddings", data="joined"),
    "norms and biases trained": Sort(f"{ONE_LAYER} --mask-train norm,bias"),
    "reservoirs": Sort(RESERVOIR),
    "reservoirs under masks": Sort(f"{RESERVOIR} --reservoir-mask all"),
    "subwords of fastBPE": Sort(ONE_LAYER, data="fastbpe"),
    "subwords of subword-nmt": Sort(ONE_LAYER, data="subword_nmt"),
    "subwords of GPT-2": Sort(ONE_LAYER, data="gpt2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="what the recipe of Multi30k prepared")
    parser.add_argument("--out", type=Path, default=Path("exactness"))
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--only", nargs="*", choices=SORTS, default=list(SORTS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        path = place(options, name) / "result.json"
        if not path.exists():
            say(name)
            path.write_text(json.dumps(result(options, name), indent=2) + "\n")
    print(table(options))


def place(options: argparse.Namespace, name: str) -> Path:
    folder = options.out / name.replace(",", "").replace(" ", "-")
    folder.mkdir(exist_ok=True)
    return folder


def result(options: argparse.Namespace, name: str) -> Dict[str, Any]:
    sort, folder = SORTS[name], place(options, name)
    ticket = make_ticket(options, sort, folder)
    lines = read_lines(options.data / "text" / "test.de")
    ours = load_ticket(ticket, engine="ctranslate2", threads=1)
    theirs = load_ticket(ticket, engine="fairseq", threads=1)
    rows = [ours.encode(line, warn=say) for line in lines]
    found = [best.symbols for best in ours.search(rows, beam=5)]
    best = theirs.search(rows, beam=5)
    wanted = [hypothesis.symbols for hypothesis in best]
    rescored = ours._engine.score_batch(
        [[ours._names[symbol] for symbol in row] for row in rows],
        [[ours._names[symbol] for symbol in row] for row in wanted],
        max_input_length=0,
    )
    gaps = [
        abs(float(np.mean(score.log_probs)) - hypothesis.score)
        for score, hypothesis in zip(rescored, best)
    ]
    at_limit = [max(map(len, pair)) >= LIMIT for pair in zip(found, wanted)]
    same = [one == other for one, other in zip(found, wanted)]
    return {
        "lines": len(lines),
        "updates": options.updates,
        "same": sum(same),
        "at_limit": sum(at_limit),
        "same_at_limit": sum(s for s, limit in zip(same, at_limit) if limit),
        "largest_difference_of_scores": max(gaps),
        "text_is_fairseqs": text_is_fairseqs(ticket, folder, lines, wanted, theirs),
        "differing": [
            differing(ours, theirs, number, rows[number], found[number], wanted[number])
            for number in range(len(lines))
            if not same[number] and not at_limit[number]
        ],
    }


def differing(
    ours: Any, theirs: Any, number: int, row: List[int], *both: List[int]
) -> Dict[str, Any]:
    """What both engines think of both translations of a line, and of an empty one."""
    words = [[ours._names[symbol] for symbol in rows] for rows in (row, *both, [])]
    scored = ours._engine.score_batch([words[0]] * 3, words[1:], max_input_length=0)
    *means, empty = (float(np.mean(score.log_probs)) for score in scored)
    return {
        "line": number + 1,
        "symbols": [len(symbols) for symbols in both],
        "ctranslate2": means,
        "fairseq": [fairseq_score(theirs, row, symbols) for symbols in both],
        "searched": ours.search([row], beam=5)[0].score,
        "empty_line": math.exp(empty),
    }


def fairseq_score(theirs: Any, row: List[int], symbols: List[int]) -> float:
    """The mean of the logarithms of the probabilities, as fairseq computes them."""
    before = torch.tensor([[EOS, *symbols]])
    with torch.no_grad():
        output = theirs.model(torch.tensor([row]), torch.tensor([len(row)]), before)
        logs = theirs.model.get_normalized_probs(output, log_probs=True)[0]
    return float(logs[range(len(symbols) + 1), [*symbols, EOS]].mean())


def text_is_fairseqs(
    ticket: Path, folder: Path, lines: List[str], wanted: List[List[int]], theirs: Any
) -> bool:
    """Split all lines and join all translations as fairseq's own encoder does."""
    held = read_ticket(ticket)
    kind = held.bpe.kind
    flags = {
        "sentencepiece": ["sentencepiece_model"],
        "gpt2": ["gpt2_encoder_json", "gpt2_vocab_bpe"],
    }.get(kind, ["bpe_codes"])
    parts = held.bpe.content.split(b"\0", 1) if kind == "gpt2" else [held.bpe.content]
    for flag, part in zip(flags, parts):
        (folder / flag).write_bytes(part)
    paths = {flag: str(folder / flag) for flag in flags}
    encoder = encoders.build_bpe(Namespace(bpe=kind, **paths))
    pipeline = text_pipeline(held)
    symbols = theirs._fairseq.task.target_dictionary
    translations = [symbols.string(row) for row in wanted]
    return all(pipeline.encode(line) == encoder.encode(line) for line in lines) and all(
        pipeline.decode(line) == encoder.decode(line) for line in translations
    )


def make_ticket(options: argparse.Namespace, sort: Sort, folder: Path) -> Path:
    data, bpe = data_of(options, sort.data)
    embeddings = embeddings_of(options, sort)
    width = " ".join(WIDTH.format(side) for side in ("encoder", "decoder"))
    flags = f"{TRAIN} {width} {sort.flags.format(embeddings)}".split()
    counts = ["--max-update", options.updates, "--total-num-update", options.updates]
    checkpoint = folder / "checkpoint_last.pt"
    if not checkpoint.exists():
        if sort.needs and not embeddings.exists():
            raise SystemExit(f"run the sort {sort.needs} first")
        train = [BIN / "fairseq-train", data, "--user-dir", user_dir()]
        call(*train, *flags, *counts, "--save-dir", folder)
    ticket = folder / "model.ticket"
    if ticket.exists():
        return ticket
    lottery = [sys.executable, "-m", "onelayer_lottery.cli"]
    kind = [] if sort.data == "joined" else ["--bpe-kind", sort.data]
    write = ["ticket", checkpoint, ticket, "--data", data, "--bpe", bpe, "--force"]
    call(*lottery, *write, *kind, *sort.ticket.split())
    if any(folder == embeddings_of(options, other).parent for other in SORTS.values()):
        call(*lottery, "bake", ticket, folder / "baked.pt", "--force")
    return ticket


def embeddings_of(options: argparse.Namespace, sort: Sort) -> Path:
    return options.out / sort.needs.replace(" ", "-") / "baked.pt"


def data_of(options: argparse.Namespace, kind: str) -> Tuple[Path, Path]:
    """The binarised data of a kind of subwords, and the subword model."""
    given, folder = options.data, options.out / f"data-{kind}"
    spm = given / "subwords" / "spm.model"
    if kind == "sentencepiece":
        return given / "data-bin", spm
    bpe = spm if kind == "joined" else folder / "codes"
    if not (folder / "data-bin").exists():
        folder.mkdir(exist_ok=True)
        pieces = given / "subwords"
        if kind != "joined":
            bpe = learn(kind, given / "text", folder)
            apply(kind, bpe, given / "text", folder)
            pieces = folder
        call(
            *(BIN / "fairseq-preprocess", "-s", "de", "-t", "en"),
            *("--trainpref", pieces / "train", "--testpref", pieces / "test"),
            *("--validpref", pieces / "valid", "--destdir", folder / "data-bin"),
            *(["--joined-dictionary"] if kind == "joined" else []),
        )
    return folder / "data-bin", bpe


def learn(kind: str, text: Path, folder: Path) -> Path:
    """Learn 3,000 merges for BPE, 300 for GPT-2's, whose learner is not fast."""
    both = [
        line for side in ("de", "en") for line in read_lines(text / f"train.{side}")
    ]
    codes = folder / "codes"
    if kind == "gpt2":
        codes.mkdir(exist_ok=True)
        merges, symbols = byte_merges(both, 300)
        vocabulary = json.dumps({symbol: n for n, symbol in enumerate(symbols)})
        version = "#version: 0.2\n"
        for name, content in zip(GPT2_FILES, (vocabulary, version + merges)):
            (codes / name).write_text(content, "utf-8")
        return codes
    from subword_nmt.learn_bpe import learn_bpe

    learned = folder / "learned"
    with learned.open("w", encoding="utf-8") as file:
        learn_bpe(both, file, 3000)
    lines = read_lines(learned)
    if kind == "fastbpe":
        lines = [f"{line} 1" for line in lines[1:]]
    codes.write_text("".join(line + "\n" for line in lines), "utf-8")
    return codes


def byte_merges(lines: Sequence[str], count: int) -> Tuple[str, List[str]]:
    """Merge the most frequent pair of the 3,000 most frequent words, and again."""
    empty = ByteLevel("{}", "\n")
    letters = empty._letters
    counted = Counter(word for line in lines for word in empty._words.findall(line))
    words = {
        tuple(letters[byte] for byte in word.encode()): number
        for word, number in counted.most_common(3000)
    }
    merges, symbols = [], list(letters)
    for _ in range(count):
        pairs: Counter = Counter()
        for parts, number in words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += number
        (best, _), *_ = pairs.most_common(1)
        merges.append(" ".join(best) + "\n")
        symbols.append("".join(best))
        one = ByteLevel("{}", "\n" + merges[-1])
        words = {tuple(one._split(list(parts))): n for parts, n in words.items()}
    return "".join(merges), symbols


def apply(kind: str, codes: Path, text: Path, folder: Path) -> None:
    from onelayer_lottery.text.subwords import build_bpe, read_bpe

    subwords = build_bpe(read_bpe(codes, kind))
    for split in ("train", "valid", "test"):
        for side in ("de", "en"):
            lines = read_lines(text / f"{split}.{side}")
            pieces = "".join(subwords.encode(line) + "\n" for line in lines)
            (folder / f"{split}.{side}").write_text(pieces, "utf-8")


def table(options: argparse.Namespace) -> str:
    rows = [
        "| sort | lines below the limit, of them the same | lines at the limit, of"
        " them the same | largest difference of scores | text |",
        "|---|---|---|---|---|",
    ]
    for name in SORTS:
        path = place(options, name) / "result.json"
        if not path.exists():
            continue
        row = json.loads(path.read_text())
        rows.append(
            f"| {name} | {row['lines'] - row['at_limit']},"
            f" {row['same'] - row['same_at_limit']}"
            f" | {row['at_limit']}, {row['same_at_limit']}"
            f" | {row['largest_difference_of_scores']:.1e}"
            f" | {'same' if row['text_is_fairseqs'] else 'differs'} |"
        )
    return "\n".join(rows)


def user_dir() -> str:
    import onelayer_lottery

    return str(Path(onelayer_lottery.__file__).parent)


def read_lines(path: Path) -> List[str]:
    return path.read_text("utf-8").rstrip("\n").split("\n")


def call(*words: object) -> None:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} failed:\n{done.stderr[-2000:]}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
