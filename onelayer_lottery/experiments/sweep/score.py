"""Scores from fairseq's output: BLEU, bits of language models, learning curves."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Dict, List, Optional

from onelayer_lottery.errors import LotteryError


def bleu_of(log: Path, expected: int, reference: Optional[Path]) -> Dict[str, Any]:
    """Compute BLEU and its signature from the output of fairseq-generate.

    With a reference file, compare detokenised lines with sacrebleu's tokenisation;
    without, compare tokens after removing BPE, as the paper does.
    """
    import sacrebleu

    text = log.read_text(encoding="utf-8", errors="replace")
    hypotheses = _lines(r"^D-(\d+)\t[^\t]*\t(.*)$", text)
    if reference:
        references = reference.read_text(encoding="utf-8").splitlines()
        metric = sacrebleu.BLEU()
    else:
        hypotheses = _lines(r"^H-(\d+)\t[^\t]*\t(.*)$", text)
        targets = _lines(r"^T-(\d+)\t(.*)$", text)
        references = [targets[number] for number in sorted(targets)]
        metric = sacrebleu.BLEU(tokenize="none", force=True)
    if sorted(hypotheses) != list(range(expected)):
        raise LotteryError(
            f"{len(hypotheses)} of {expected} sentences were translated: see {log}"
        )
    if len(references) != expected:
        raise LotteryError(
            f"there are {len(references)} reference lines for {expected} sentences"
            + (f" in {reference}" if reference else f": see {log}")
        )
    ordered = [hypotheses[number] for number in range(expected)]
    bleu = metric.corpus_score(ordered, [references]).score
    return {
        "bleu": round(bleu, 3),
        "bleu_signature": str(metric.get_signature()),
    }


def bits_of(log: Path, reference: Optional[Path]) -> Dict[str, Any]:
    """Return what fairseq-eval-lm measured: bits per symbol, and perplexity.

    With a reference file, the raw lines, also bits per character; the end of a line
    is one.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    pattern = r"Loss \(base 2\): (\S+), Perplexity: (\S+)$"
    loss = re.search(pattern, text, re.MULTILINE)
    symbols = re.search(r"Evaluated ([\d,]+) tokens", text)
    if not loss or not symbols:
        raise LotteryError(f"fairseq-eval-lm printed no loss: see {log}")
    bits, perplexity = float(loss[1]), float(loss[2].replace(",", ""))
    if not math.isfinite(bits):
        raise LotteryError(f"the loss of fairseq-eval-lm is {bits}: see {log}")
    score = {"bits_per_symbol": bits, "perplexity": perplexity}
    if reference:
        lines = reference.read_text(encoding="utf-8").splitlines()
        total = bits * int(symbols[1].replace(",", ""))
        characters = sum(len(line) + 1 for line in lines)
        score["bits_per_character"] = round(total / characters, 4)
    return score


def curve_of(log: str) -> List[Dict[str, Any]]:
    """Return the validations of a training log by update; the last one if repeated."""
    points: Dict[int, Dict[str, Any]] = {}
    for match in re.finditer(r"\| valid \| (\{.*\})$", log, re.MULTILINE):
        values = json.loads(match[1])
        update = int(values["valid_num_updates"])
        points[update] = {"epoch": int(values["epoch"]), "update": update}
        for name in ("loss", "nll_loss", "bleu", "accuracy"):
            if f"valid_{name}" in values:
                points[update][name] = float(values[f"valid_{name}"])
        if "valid_ppl" in values:  # of the loss, where the criterion smooths nothing
            points[update].setdefault("nll_loss", points[update]["loss"])
    return [points[update] for update in sorted(points)]


def flips_of(log: str) -> List[Dict[str, Any]]:
    """Return the flip rates of a training log by update; dense models have none."""
    points: Dict[int, float] = {}
    for match in re.finditer(r"\| train_inner \| (\{.*\})$", log, re.MULTILINE):
        values = json.loads(match[1])
        if values.get("flip_rate"):  # null where no update was measured
            points[int(values["num_updates"])] = float(values["flip_rate"])
    return [{"update": update, "rate": points[update]} for update in sorted(points)]


def wall_seconds(log: str) -> Optional[float]:
    """Return the seconds of training, including those before interruptions.

    fairseq's clock restarts when a training is resumed. Work lost by a kill counts.
    """
    # train_wall is that clock only on lines of epochs, after train_train_wall.
    clock = r'"train_train_wall".*"train_wall": "([\d.]+)"|"wall": "([\d.]+)"'
    times = [float(epoch or inner) for epoch, inner in re.findall(clock, log)]
    ends = [at for at, after in zip(times, [*times[1:], 0.0]) if after < at]
    return sum(ends) if times else None


def _lines(pattern: str, text: str) -> Dict[int, str]:
    pairs = re.findall(pattern, text, re.MULTILINE)
    return {int(number): line for number, line in pairs}
