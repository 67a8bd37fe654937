"""Tickets of every sort for the page, without training, and its program in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import pytest
from conftest import ROOT

from onelayer_lottery.frozen.weights import digest
from onelayer_lottery.page.moses import moses_tables
from onelayer_lottery.ticket.declared import transformer_weights
from onelayer_lottery.ticket.format import (
    Bpe,
    FrozenTensor,
    MaskedTensor,
    TextSteps,
    Ticket,
    read_ticket,
)

GOLDEN = ROOT / "tests" / "golden" / "0.1.0"
PAGE = ROOT / "onelayer_lottery" / "page"

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed"
)


def random_ticket(
    *,
    init: str = "kaiming-uniform",
    keep: float = 0.5,
    signed: bool = False,
    scales: str = "none",
    imported: bool = False,
    seed: int = 1,
    bpe: Optional[Bpe] = None,
    text: Optional[TextSteps] = None,
    **flags: Any,
) -> Ticket:
    """A ticket with random masks over a model with these flags."""
    base = read_ticket(GOLDEN / "plain.ticket")
    short = {"max_source_positions": 12, "max_target_positions": 24}
    model: Dict[str, Any] = {**base.config["model"], **short, **flags}
    model.update(mask_init=init, mask_keep=keep, mask_seed=seed, mask_scale=scales)
    model["mask_method"] = "signed" if signed else "topk"
    generator = np.random.RandomState(seed % 1000)
    ticket = replace(base, seed=seed, init=init, keep=keep, frozen={}, masks={})
    ticket.config = {**base.config, "model": model}
    ticket.bpe, ticket.text, ticket.tied, ticket.dense = bpe, text, {}, {}
    rows = {
        side: base.dictionaries[side].count("\n") + 4 for side in ("source", "target")
    }
    for layer, shape in transformer_weights(Namespace(**model), **rows):
        role = layer.replace("layers.0", "layers.*").replace("layers.1", "layers.*")
        padding = 1 if layer.endswith("embed_tokens") else None
        ticket.frozen[role] = FrozenTensor(shape, 1.0, padding, "0" * 64)
        ticket.frozen[role].digest = digest(ticket.frozen_spec(role).draw())
        mask = np.zeros(shape, dtype=bool)
        kept = round(keep * mask.size)
        mask.flat[generator.permutation(mask.size)[:kept]] = True
        signs = generator.rand(kept) < 0.5 if signed else None
        ticket.masks[layer] = MaskedTensor(role, mask, signs)
        if imported and padding:
            values = generator.standard_normal(kept).astype(np.float16)
            ticket.frozen[role].values = values
        for number, size in enumerate(_scale_shapes(scales, shape)):
            scale = generator.uniform(0.5, 1.5, size).astype(np.float32)
            ticket.dense[f"{layer}.masked.scales.{number}"] = scale
    if model["share_all_embeddings"]:
        ticket.tied = dict.fromkeys(
            ("decoder.embed_tokens", "decoder.output_projection"),
            "encoder.embed_tokens",
        )
    elif model["share_decoder_input_output_embed"]:
        ticket.tied = {"decoder.output_projection": "decoder.embed_tokens"}
    return ticket


def _scale_shapes(scales: str, shape: Any) -> List[Any]:
    rows, columns = shape
    return {
        "none": [],
        "tensor": [(1, 1)],
        "row": [(rows, 1)],
        "row-column": [(rows, 1), (1, columns)],
    }[scales]


def random_lines(ticket: Ticket, count: int, seed: int = 5) -> List[str]:
    """Lines of the ticket's own words, of unknown ones, and too long ones."""
    lines = ticket.dictionaries["source"].splitlines()
    words = [*(line.rsplit(" ", 1)[0] for line in lines), "unheard", "<pad>"]
    generator = np.random.RandomState(seed)
    return [
        " ".join(generator.choice(words, generator.randint(1, 15)))
        for _ in range(count)
    ]


def run_page_program(
    ticket: Path, lines: List[str], beam: int = 5, text: Optional[TextSteps] = None
):
    """What the page's program answers in Node, as a finished process."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as tables:
        json.dump(moses_tables(text.moses if text else None), tables)
        tables.flush()
        return subprocess.run(
            ["node", str(PAGE / "cli.mjs"), str(ticket), str(beam), tables.name],
            input="".join(line + "\n" for line in lines),
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )


def javascript(program: str, text: str = "") -> str:
    """What a program prints that may import the page's modules."""
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", program],
        input=text,
        capture_output=True,
        encoding="utf-8",
        cwd=PAGE,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
