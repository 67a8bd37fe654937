"""How large a trained model is: as a ticket, or as a dense file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

from fairseq.data.data_utils import load_indexed_dataset

from onelayer_lottery.checkpoint import Checkpoint
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.export import find_dictionaries, ticket_from_checkpoint
from onelayer_lottery.inspection import inspect_ticket
from onelayer_lottery.models.planted import IDENTITY_KEY, config_of
from onelayer_lottery.ticket import write_ticket


def model_size(state: Checkpoint, folder: Path, *, data: Path) -> Dict[str, Any]:
    """Bytes and numbers of weights; a masked model leaves its ticket in the folder."""
    if IDENTITY_KEY in state["model"]:
        return _masked_size(state, folder, data=data)
    unique = {
        tensor.data_ptr(): tensor.numel()
        for name, tensor in state["model"].items()
        if name.endswith(("weight", "bias"))
    }
    values = sum(unique.values())
    return {
        "bytes": {"fp32": 4 * values, "int8": values},
        "weights": {"values": values},
    }


def model_signature(state: Checkpoint, *, seed: int, versions: Dict[str, str]) -> str:
    """One line that says what a model is."""
    arguments = state["cfg"]["model"]
    parts = [f"arch:{arguments.arch}"]
    if IDENTITY_KEY in state["model"]:
        parts.append(config_of(arguments.arch, arguments).signature())
    else:
        parts.append(f"seed:{seed}")
    parts += [f"fairseq:{versions['fairseq']}", f"v:{versions['onelayer_lottery']}"]
    return "|".join(parts)


def data_sizes(data: Path) -> Dict[str, int]:
    """Sentences of each split, and symbols of each dictionary."""
    sizes = {}
    for index in sorted(data.rglob("*.idx")):
        split = index.name.split(".")[0]
        if split not in sizes:
            prefix = str(index)[: -len(".idx")]
            sizes[split] = len(load_indexed_dataset(prefix))
    for path in sorted(data.rglob("dict.*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        sizes[str(path.relative_to(data))] = len(lines)
    return sizes


def _masked_size(state: Checkpoint, folder: Path, *, data: Path) -> Dict[str, Any]:
    try:
        dictionaries = find_dictionaries(state, beside=folder, given=data)
    except LotteryError:
        dictionaries = None
    sizes: Dict[str, int] = {}
    bare = ticket_from_checkpoint(state)
    path = folder / "bare.ticket"
    sizes["ticket_without_dictionaries"] = write_ticket(bare, path, force=True)
    path.unlink()
    if dictionaries:
        full = ticket_from_checkpoint(state, dictionaries=dictionaries)
        sizes["ticket"] = write_ticket(full, folder / "model.ticket", force=True)
    report = inspect_ticket(bare)
    return {
        "bytes": sizes,
        "weights": {**report["totals"], "params": report["table_1"]["params"]},
    }
