"""The mean of several checkpoints: the mask is taken of the averaged scores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, List

import torch
from torch import Tensor

from onelayer_lottery.checkpoint import Checkpoint, load_checkpoint
from onelayer_lottery.container import quote
from onelayer_lottery.errors import LotteryError


def average_checkpoints(
    paths: List[Path], *, progress: Callable[[str], None] = lambda line: None
) -> Checkpoint:
    """Average the models of checkpoints; all else is taken from the last of them.

    Frozen weights are in no checkpoint, and so stay as they are to the bit. The state
    of the optimizer is left out: it belongs to one checkpoint, not to the mean.
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
    # Tied tensors are one tensor under several names: stored once, as before.
    first = {tensor.data_ptr(): name for name, tensor in reversed(list(model.items()))}
    state["model"] = {n: mean[first[tensor.data_ptr()]] for n, tensor in model.items()}
    state.pop("last_optimizer_state", None)
    extra = state.get("extra_state")
    if isinstance(extra, dict):
        dict.pop(extra, "ema", None)
    return state


def last_checkpoints(folder: Path, count: int) -> List[Path]:
    """The newest checkpoints of a folder: of epochs, else of updates."""
    if not folder.is_dir():
        raise LotteryError(f"{folder} is not a folder; give the --save-dir of a run")
    found: List[Path] = []
    for pattern in (r"checkpoint(\d+)\.pt", r"checkpoint_\d+_(\d+)\.pt"):
        numbered = [
            (int(match.group(1)), path)
            for path in folder.iterdir()
            for match in [re.fullmatch(pattern, path.name)]
            if match
        ]
        found = [path for _, path in sorted(numbered)]
        if found:
            break
    if len(found) < count:
        raise LotteryError(
            f"{folder} has {len(found)} numbered checkpoints, --last asks for {count};"
            " train without --no-epoch-checkpoints or with --save-interval-updates"
        )
    return found[-count:]


def _check_same(total: Dict, model: Dict, first: Path, path: Path) -> None:
    for name in {**total, **model}:
        ours, theirs = total.get(name), model.get(name)
        same = ours is not None and theirs is not None and ours.shape == theirs.shape
        if same and not ours.is_floating_point():
            same = torch.equal(ours, theirs)
        if not same:
            raise LotteryError(
                f"{path} does not fit {first}: they differ in {quote(name)}; average"
                " only checkpoints of one training"
            )
