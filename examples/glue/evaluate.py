"""Accuracy of a model for sentence pairs on data of prepare.sh, with every class.

MODEL is a ticket or any checkpoint: masked, baked, or of stock fairseq. Two validation
sets are MNLI's matched and mismatched ones. With the classes 0 and 1, F1 of 1 is given,
as for QQP. Of a regression, Pearson's correlation.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from fairseq import checkpoint_utils

from onelayer_lottery.checkpoint.reading import load_checkpoint, save_checkpoint
from onelayer_lottery.conversion.to_checkpoint import baked_checkpoint
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.text.dictionary import read_classes
from onelayer_lottery.ticket.format import read_ticket
from onelayer_lottery.ticket.tasks import SENTENCE_PREDICTION, task_of_ticket

NAMES = {"valid": "matched (valid)", "valid1": "mismatched (valid1)"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("data", type=Path, metavar="DATA-BIN")
    parser.add_argument(
        "--split", action="append", help="default: valid, and valid1 if it is there"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args()
    logging.disable(logging.INFO)
    try:
        reports = evaluate(chosen.model, chosen.data, chosen.split)
    except LotteryError as error:
        sys.exit(f"evaluate.py: {error}")
    if chosen.json:
        print(json.dumps(reports, indent=2))
        return
    for split, report in reports.items():
        name = NAMES.get(split, split) if {"valid", "valid1"} <= set(reports) else split
        print(shown(name, report))


def evaluate(
    path: Path, data: Path, splits: List[str] | None = None
) -> Dict[str, Dict[str, Any]]:
    """A report for each split."""
    regression = check_data(data)
    splits = splits or [s for s in NAMES if (data / "input0" / f"{s}.idx").is_file()]
    for split in splits or ["valid"]:
        if split not in splits or not (data / "input0" / f"{split}.idx").is_file():
            raise LotteryError(f"{data} holds no data of {split}")
    model, task = load(path, data, regression=regression)
    reports = {}
    for split in splits:
        outputs, targets = predict(model, task, split)
        if regression:
            reports[split] = correlation(outputs[:, 0], targets)
            continue
        text = (data / "label" / "dict.txt").read_text(encoding="utf-8")
        labels = read_classes(text, task.cfg.num_classes)
        reports[split] = score(outputs.argmax(1), targets, labels)
    return reports


def check_data(data: Path) -> bool:
    """Whether the data are of a regression; all that can be missing has a sentence."""
    if not (data / "input0" / "dict.txt").is_file():
        raise LotteryError(
            f"{data} has no input0/dict.txt: give the data-bin of"
            " examples/glue/prepare.sh"
        )
    if (data / "label" / "dict.txt").is_file():
        return False
    if any((data / "label").glob("*.label")):
        return True
    raise LotteryError(
        f"the label dictionary {data / 'label' / 'dict.txt'} is missing: without it"
        " nobody knows which class is which; give the data-bin that the model was"
        " trained with, or prepare it again"
    )


def load(path: Path, data: Path, *, regression: bool) -> Tuple[Any, Any]:
    """The model, and its task over the data."""
    if not path.is_file():
        raise LotteryError(f"{path} is not a file; give a ticket or a checkpoint")
    with path.open("rb") as file:
        is_checkpoint = file.read(2) == b"PK"
    ticket = None if is_checkpoint else read_ticket(path)
    if ticket:
        flags = {"_name": task_of_ticket(ticket).name, **ticket.config["task"]}
    else:
        flags = dict((load_checkpoint(path).get("cfg") or {}).get("task") or {})
    if flags.get("_name") != SENTENCE_PREDICTION.name:
        raise LotteryError(f"{path} is of the task {flags.get('_name')}, not of pairs")
    if bool(flags.get("regression_target")) != regression:
        kinds = {True: "a regression", False: "classes"}
        raise LotteryError(
            f"{data} is of {kinds[regression]}, {path} was trained for"
            f" {kinds[not regression]}"
        )
    labels = data / "label" / "dict.txt"
    classes = sum(
        not line.startswith("madeupword")
        for line in ([] if regression else labels.read_text("utf-8").splitlines())
    )
    if not regression and classes != flags["num_classes"]:
        raise LotteryError(
            f"{labels} has {classes} classes, {path} {flags['num_classes']}; give the"
            " data-bin that the model was trained with"
        )
    with tempfile.TemporaryDirectory() as folder:
        if ticket:
            path = Path(folder) / "baked.pt"
            state = baked_checkpoint(ticket, dtype=torch.float32)
            save_checkpoint(state, path, force=True)
        try:
            (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(path)], arg_overrides={"data": str(data)}
            )
        except (RuntimeError, SystemExit) as error:
            raise LotteryError(
                f"the model does not fit the dictionaries in {data}; give the data-bin"
                f" that it was trained with ({str(error).splitlines()[0]})"
            ) from None
    return model.eval(), task


@torch.no_grad()
def predict(model: Any, task: Any, split: str) -> Tuple[np.ndarray, np.ndarray]:
    """Outputs of the head (pairs, classes) and targets, for every pair of a split."""
    data = task.load_dataset(split)
    longest = task.max_positions()
    long = int((np.asarray(data.sizes) > longest).sum())
    if long:
        raise LotteryError(
            f"{long:,} pairs of {split} have more symbols than the {longest} that the"
            f" model reads; prepare them with --max-positions {longest} --long cut"
        )
    batches = task.get_batch_iterator(
        data, max_sentences=64, required_batch_size_multiple=1
    ).next_epoch_itr(shuffle=False)
    head = task.cfg.classification_head_name
    outputs, targets = [], []
    for sample in batches:
        scores, _ = model(**sample["net_input"], classification_head_name=head)
        outputs.append(scores.float().numpy())
        targets.append(sample["target"].view(-1).numpy())
    found = np.concatenate(outputs), np.concatenate(targets)
    if len(found[1]) != len(data):
        raise LotteryError(f"{len(found[1])} of {len(data)} pairs were classified")
    return found


def score(found: np.ndarray, targets: np.ndarray, labels: List[str]) -> Dict[str, Any]:
    """Counts, accuracy and, class by class, precision, recall and F1, in percent."""
    classes = {}
    for index, label in enumerate(labels):
        of_class, called = targets == index, found == index
        right = int((of_class & called).sum())
        classes[label] = {
            "pairs": int(of_class.sum()),
            "predicted": int(called.sum()),
            "precision": percent(right, int(called.sum())),
            "recall": percent(right, int(of_class.sum())),
            "f1": percent(2 * right, int(of_class.sum() + called.sum())),
        }
    right = int((found == targets).sum())
    report = {
        "pairs": len(targets),
        "right": right,
        "accuracy": percent(right, len(targets)),
        "majority": percent(max(c["pairs"] for c in classes.values()), len(targets)),
        "classes": classes,
    }
    if sorted(labels) == ["0", "1"]:
        report["f1"] = classes["1"]["f1"]
    return report


def correlation(found: np.ndarray, targets: np.ndarray) -> Dict[str, Any]:
    varied = found.std() > 0 and targets.std() > 0
    return {
        "pairs": len(targets),
        "mean_squared_error": float(((found - targets) ** 2).mean()),
        "pearson": 100 * float(np.corrcoef(found, targets)[0, 1]) if varied else 0.0,
    }


def percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def shown(name: str, report: Dict[str, Any]) -> str:
    if "pearson" in report:
        return (
            f"{name}: Pearson's r {report['pearson']:.1f}, mean squared error"
            f" {report['mean_squared_error']:.3f}, {report['pairs']:,} pairs"
        )
    f1 = f", F1 {report['f1']:.1f}" if "f1" in report else ""
    lines = [
        f"{name}: accuracy {report['accuracy']:.1f}{f1} ({report['right']:,} of"
        f" {report['pairs']:,} right; majority class {report['majority']:.1f})",
        f"  {'class':<16}{'pairs':>7}{'predicted':>11}{'precision':>11}{'recall':>8}"
        f"{'F1':>7}",
    ]
    for label, row in report["classes"].items():
        lines.append(
            f"  {label:<16}{row['pairs']:>7,}{row['predicted']:>11,}"
            f"{row['precision']:>11.1f}{row['recall']:>8.1f}{row['f1']:>7.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
