"""The size of a trained model: as a ticket, or as a dense file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

from fairseq.data.data_utils import load_indexed_dataset

from onelayer_lottery.checkpoint.reading import Checkpoint
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.conversion.tasks import find_dictionaries
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.identity import IDENTITY_KEY, signature_of
from onelayer_lottery.models.planted import config_of
from onelayer_lottery.ticket.format import ticket_bytes, write_ticket
from onelayer_lottery.ticket.inspection import inspect_ticket


def model_size(state: Checkpoint, folder: Path, *, data: Path) -> Dict[str, Any]:
    """Return bytes and numbers of weights; write the ticket of a masked model."""
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
    """Return one line that names the model of a run and the versions used."""
    arguments = state["cfg"]["model"]
    arch = getattr(arguments, "arch", None) or arguments["_name"]
    parts = [f"arch:{arch}"]
    if IDENTITY_KEY in state["model"]:
        parts.append(signature_of(vars(config_of(arch, arguments))))
    else:
        parts.append(f"seed:{seed}")
    parts += [f"fairseq:{versions['fairseq']}", f"v:{versions['onelayer_lottery']}"]
    return "|".join(parts)


def data_sizes(data: Path) -> Dict[str, int]:
    """Count the sentences of each split and the symbols of each dictionary."""
    sizes = {}
    for index in sorted(data.rglob("*.idx")):
        split = index.name.split(".")[0]
        if split not in sizes:
            prefix = str(index)[: -len(".idx")]
            sizes[split] = len(load_indexed_dataset(prefix))
    for path in sorted(data.rglob("dict.*")):
        lines = path.read_text(encoding="utf-8").splitlines()
        sizes[str(path.relative_to(data))] = len(lines)
    return sizes


def _masked_size(state: Checkpoint, folder: Path, *, data: Path) -> Dict[str, Any]:
    try:
        dictionaries = find_dictionaries(state, beside=folder, given=data)
    except LotteryError:
        dictionaries = None
    ticket = ticket_from_checkpoint(state, dictionaries=dictionaries)
    bare = ticket_bytes(replace(ticket, dictionaries={}))
    sizes = {"ticket_without_dictionaries": bare}
    if dictionaries:
        sizes["ticket"] = write_ticket(ticket, folder / "model.ticket", force=True)
    report = inspect_ticket(ticket)
    return {
        "bytes": sizes,
        "weights": {**report["totals"], "params": report["table_1"]["params"]},
    }
