"""Average several checkpoints; the masks are those of the averaged scores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, List

import torch
from torch import Tensor

from onelayer_lottery.checkpoint.reading import Checkpoint, load_checkpoint
from onelayer_lottery.errors import LotteryError, quote


def average_checkpoints(
    paths: List[Path], *, progress: Callable[[str], None] = lambda line: None
) -> Checkpoint:
    """Average the models of checkpoints; take everything else from the last one.

    Frozen weights are in no checkpoint, so they stay the same to the bit. The state of
    the optimizer is dropped, because it belongs to a single checkpoint.
    """
    total: Dict[str, Tensor] = {}
    for number, path in enumerate(paths, start=1):
        progress(f"reading {path} ({number} of {len(paths)})")
        state = load_checkpoint(path)
        model = state["model"]
        if total:
            _check_same(total, model, paths[0], path)
        for name, tensor in model.items():
            if tensor.is_floating_point():
                value = tensor.double()
                total[name] = total[name] + value if name in total else value
            else:
                total[name] = tensor
    mean = {
        name: (tensor / len(paths)).float() if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }
    # Tied tensors, one tensor under several names, are stored once, as before.
    first = {tensor.data_ptr(): name for name, tensor in reversed(list(model.items()))}
    state["model"] = {n: mean[first[tensor.data_ptr()]] for n, tensor in model.items()}
    state.pop("last_optimizer_state", None)
    extra = state.get("extra_state")
    if isinstance(extra, dict):
        dict.pop(extra, "ema", None)
    return state


def last_checkpoints(folder: Path, count: int) -> List[Path]:
    """Return the newest checkpoints of a folder: by epoch, or else by update."""
    if not folder.is_dir():
        raise LotteryError(f"{folder} is not a folder; give the --save-dir of a run")
    paths: List[Path] = []
    for pattern in (r"checkpoint(\d+)\.pt", r"checkpoint_\d+_(\d+)\.pt"):
        numbered = [
            (int(match.group(1)), path)
            for path in folder.iterdir()
            for match in [re.fullmatch(pattern, path.name)]
            if match
        ]
        paths = [path for _, path in sorted(numbered)]
        if paths:
            break
    if len(paths) < count:
        raise LotteryError(
            f"{folder} has {len(paths)} numbered checkpoints, --last asks for {count};"
            " train without --no-epoch-checkpoints or with --save-interval-updates"
        )
    return paths[-count:]


def _check_same(total: Dict, model: Dict, first: Path, path: Path) -> None:
    for name in {**total, **model}:
        same = name in total and name in model
        if same:
            ours, theirs = total[name], model[name]
            same = ours.shape == theirs.shape
            if same and not ours.is_floating_point():
                same = torch.equal(ours, theirs)
        if not same:
            raise LotteryError(
                f"{path} does not fit {first}: they differ in {quote(name)}; average"
                " only checkpoints of one training"
            )
