"""Translating raw text with a ticket: dictionaries and subword model are inside it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from argparse import Namespace
from queue import Empty, Queue
from threading import Thread
from typing import Any, Callable, Iterable, Iterator, List, Optional

import torch
from fairseq.data import encoders
from fairseq.dataclass.configs import DatasetConfig, GenerationConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from onelayer_lottery.convert import working_model
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.ticket import Bpe, Ticket, read_ticket

_LARGEST_BATCH = 64  # lines that are translated together, if so many are waiting
_END = object()


def load_ticket(path: os.PathLike | str) -> Translator:
    """Read a ticket and make it ready to translate.

    >>> load_ticket("model.ticket").translate(["ein hund schläft ."])
    """
    translator = Translator(read_ticket(path))
    _return_memory()
    return translator


class Translator:
    """Beam search over the model that a ticket gives."""

    def __init__(self, ticket: Ticket):
        model, dictionaries = working_model(ticket)
        task = TranslationTask(
            TranslationConfig(**ticket.config["task"]),
            dictionaries.source_dictionary,
            dictionaries.target_dictionary,
        )
        settings = Namespace(
            generation=OmegaConf.structured(GenerationConfig()),
            dataset=OmegaConf.structured(DatasetConfig(max_tokens=6000)),
            tokenizer=None,
            bpe=None,
        )
        self._fairseq = GeneratorHubInterface(settings, task, [model])
        self._fairseq.bpe = build_bpe(ticket.bpe)
        self.model = model

    def translate(
        self,
        sentences: List[str],
        *,
        beam: int = 5,
        warn: Callable[[str], None] = lambda line: None,
    ) -> List[str]:
        """Translate sentences, raw text in and out; an empty one stays empty."""
        sources = [self._encode(text, warn) for text in sentences]
        present = [source for source in sources if source is not None]
        found = iter(self._fairseq.generate(present, beam=beam) if present else [])
        return [
            "" if source is None else self._fairseq.decode(next(found)[0]["tokens"])
            for source in sources
        ]

    def _encode(self, text: str, warn: Callable[[str], None]) -> Optional[torch.Tensor]:
        if not text.strip():
            return None
        tokens = self._fairseq.encode(text)
        longest = self._fairseq.max_positions[0]
        if len(tokens) > longest:
            warn(
                f"a line of {len(tokens)} symbols is longer than the {longest} that the"
                f" model reads; its end is left out: {text[:60]}..."
            )
            tokens = torch.cat([tokens[: longest - 1], tokens[-1:]])
        return tokens


def waiting_lines(lines: Iterable[str]) -> Iterator[List[str]]:
    """Group lines as they come: those that wait go together, none waits for more."""
    queue: Queue = Queue(maxsize=4 * _LARGEST_BATCH)

    def fill() -> None:
        try:
            for line in lines:
                queue.put(line.rstrip("\r\n"))
        finally:
            queue.put(_END)

    Thread(target=fill, daemon=True).start()
    group: List[str] = []
    while True:
        try:
            line = queue.get(block=not group)
        except Empty:
            yield group
            group = []
            continue
        if line is _END:
            break
        group.append(line)
        if len(group) == _LARGEST_BATCH:
            yield group
            group = []
    if group:
        yield group


def _return_memory() -> None:
    """Give back to the system what drawing the weights has used, where it can be."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def build_bpe(bpe: Optional[Bpe]) -> Any:
    """Build fairseq's encoder of a subword model, which reads it from a file."""
    if bpe is None:
        return None
    flag = "sentencepiece_model" if bpe.kind == "sentencepiece" else "bpe_codes"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bpe")
        with open(path, "wb") as file:
            file.write(bpe.content)
        try:
            return encoders.build_bpe(Namespace(bpe=bpe.kind, **{flag: path}))
        except ImportError as error:
            raise LotteryError(
                f"the subword model is of {bpe.kind}, whose library is not installed"
                f" ({str(error).strip()})"
            ) from None
        except Exception as error:  # each library has errors of its own
            reason = str(error).strip().replace(path, "it").split("\n")[0]
            raise LotteryError(
                f"the subword model cannot be read as {bpe.kind}: {reason}"
            ) from None
