"""Scores from fairseq's own output: BLEU of what was generated, the curve of a log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Optional

from onelayer_lottery.errors import LotteryError


def bleu_of(log: Path, expected: int, reference: Optional[Path]) -> Dict[str, Any]:
    """BLEU with its signature, of the output of fairseq-generate.

    Against a reference file: of the detokenised lines, as sacrebleu tokenises them.
    Without one: of the tokens, BPE removed, as the paper does.
    """
    import sacrebleu

    text = log.read_text(encoding="utf-8", errors="replace")
    hypotheses = _lines(r"^D-(\d+)\t[^\t]*\t(.*)$", text)
    if reference:
        references = reference.read_text(encoding="utf-8").splitlines()
        metric = sacrebleu.BLEU()
    else:
        hypotheses = _lines(r"^H-(\d+)\t[^\t]*\t(.*)$", text)
        found = _lines(r"^T-(\d+)\t(.*)$", text)
        references = [found[number] for number in sorted(found)]
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


def curve_of(log: str) -> List[Dict[str, Any]]:
    """The validations of a training log, one per update, the later one if repeated."""
    points: Dict[int, Dict[str, Any]] = {}
    for found in re.finditer(r"\| valid \| (\{.*\})$", log, re.MULTILINE):
        values = json.loads(found[1])
        update = int(values["valid_num_updates"])
        points[update] = {"epoch": int(values["epoch"]), "update": update}
        for name in ("loss", "nll_loss", "bleu", "accuracy"):
            if f"valid_{name}" in values:
                points[update][name] = float(values[f"valid_{name}"])
    return [points[update] for update in sorted(points)]


def flips_of(log: str) -> List[Dict[str, Any]]:
    """The flip rates of a training log, by update: of masked models only."""
    points: Dict[int, float] = {}
    for found in re.finditer(r"\| train_inner \| (\{.*\})$", log, re.MULTILINE):
        values = json.loads(found[1])
        if values.get("flip_rate"):  # null where no update was looked at
            points[int(values["num_updates"])] = float(values["flip_rate"])
    return [{"update": update, "rate": points[update]} for update in sorted(points)]


def wall_seconds(log: str) -> Optional[float]:
    """Seconds of training, those before an interruption included.

    fairseq's clock starts anew when a training goes on; what is lost by a kill counts.
    """
    # Only in the line of an epoch is train_wall that clock, after train_train_wall.
    clock = r'"train_train_wall".*"train_wall": "([\d.]+)"|"wall": "([\d.]+)"'
    times = [float(epoch or inner) for epoch, inner in re.findall(clock, log)]
    ends = [at for at, after in zip(times, [*times[1:], 0.0]) if after < at]
    return sum(ends) if times else None


def _lines(pattern: str, text: str) -> Dict[int, str]:
    found = re.findall(pattern, text, re.MULTILINE)
    return {int(number): line for number, line in found}
