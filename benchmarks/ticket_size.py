"""Size of a ticket and time to make and use it, for every architecture.

    python benchmarks/ticket_size.py [small wide deep base wider deeper]
    python benchmarks/ticket_size.py --imported fp16 [small wide deep ...]

With --imported, embeddings are imported, masked, and stored in that precision. The
models were not trained: the size of their masks is the same. Dictionaries have the
paper's number of symbols (IWSLT14: 8,848 and 6,632; WMT14: 41,000 twice).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Optional

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from models import VOCABULARIES, dictionary, text

from onelayer_lottery.checkpoint.reading import load_checkpoint, save_checkpoint
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.conversion.tasks import translation_dictionaries
from onelayer_lottery.conversion.to_checkpoint import checkpoint_from_ticket
from onelayer_lottery.conversion.to_model import baked_model
from onelayer_lottery.ticket.format import read_ticket, write_ticket

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
# The paper's Table 1, in MiB: of the one-layer model with imported embeddings.
PAPER_MEMORY = dict(
    zip(VOCABULARIES, ("28 MB", "71 MB", "29 MB", "96 MB", "227 MB", "98 MB"))
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=list(VOCABULARIES))
    parser.add_argument("--imported", choices=list(DTYPES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    for shape in options.shapes:
        print(f"measuring {shape}", file=sys.stderr)
        rows[shape] = measure(shape, options.imported)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    heads = ["arch", "ticket", "of it dictionaries", "bound (masks)", "paper's memory"]
    heads += ["dense fp32", "dense int8", "export, s", "restore, s", "load, s"]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * 10)
    for shape, row in rows.items():
        cells = [
            shape,
            *(
                f"{row[key] / 1e6:.2f} MB"
                for key in ("ticket_bytes", "dictionary_bytes", "mask_bytes")
            ),
            PAPER_MEMORY[shape],
            *(f"{row['dense_values'] * size / 1e6:.1f} MB" for size in (4, 1)),
            *(f"{row[key]:.1f}" for key in ("export_s", "restore_s", "load_s")),
        ]
        print("| " + " | ".join(cells) + " |")


def measure(shape: str, imported: Optional[str]) -> Dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measure_in(Path(folder), shape, imported)


def measure_in(folder: Path, shape: str, imported: Optional[str]) -> Dict[str, Any]:
    arch = f"transformer_onelayer_random_{shape}"
    symbols = [dictionary(size) for size in VOCABULARIES[shape]]
    arguments = Namespace(arch=arch)
    ARCH_CONFIG_REGISTRY[arch](arguments)
    if imported:
        source = str(folder / "dense.pt")
        matrices = {
            f"{side}.embed_tokens.weight": torch.randn(
                rows, arguments.encoder_embed_dim
            )
            for side, rows in zip(("encoder", "decoder"), VOCABULARIES[shape])
        }
        torch.save({"model": matrices}, source)
        arguments.encoder_embed_path = arguments.decoder_embed_path = source
    task = SimpleNamespace(source_dictionary=symbols[0], target_dictionary=symbols[1])
    model = ARCH_MODEL_REGISTRY[arch].build_model(arguments, task)
    state = {
        "cfg": {
            "model": arguments,
            "task": Namespace(source_lang="de", target_lang="en"),
        },
        "model": model.state_dict(),
    }
    del model
    checkpoint, file = folder / "checkpoint.pt", folder / "model.ticket"
    torch.save(state, checkpoint)
    del state
    texts = [text(side) for side in symbols]
    timed = {}

    def export() -> None:
        found = translation_dictionaries("de", "en", *texts)
        ticket = ticket_from_checkpoint(
            load_checkpoint(checkpoint),
            dictionaries=found,
            embeddings=DTYPES[imported or "fp32"],
        )
        write_ticket(ticket, file)

    def restore() -> None:
        path = folder / "restored.pt"
        save_checkpoint(checkpoint_from_ticket(read_ticket(file)), path, force=True)

    steps = {"export": export, "restore": restore}
    steps["load"] = lambda: baked_model(read_ticket(file))
    for name, step in steps.items():
        started = time.perf_counter()
        step()
        timed[f"{name}_s"] = time.perf_counter() - started
    ticket = read_ticket(file)
    positions = sum(masked.mask.size for masked in ticket.masks.values())
    return {
        "ticket_bytes": file.stat().st_size,
        "dictionary_bytes": sum(len(t.encode()) for t in texts),
        "mask_bytes": positions // 8,
        "dense_values": dense_values(ticket),
        **timed,
    }


def dense_values(ticket) -> int:
    model, _ = baked_model(ticket)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()
