"""Read and write the file of a ticket, a safetensors file that needs no trust."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from onelayer_lottery.ticket.container import (
    Refusal,
    open_container,
    parse_container,
    write_whole,
)
from onelayer_lottery.ticket.decoding import decode_ticket
from onelayer_lottery.ticket.encoding import encode_ticket
from onelayer_lottery.ticket.model import (
    BPE_KINDS,
    Bpe,
    FrozenTensor,
    MaskedTensor,
    Moses,
    TextSteps,
    Ticket,
    TicketError,
)

__all__ = [
    "BPE_KINDS",
    "Bpe",
    "FrozenTensor",
    "MaskedTensor",
    "Moses",
    "TextSteps",
    "Ticket",
    "TicketError",
    "read_ticket",
    "ticket_bytes",
    "write_ticket",
]


def read_ticket(path: os.PathLike | str) -> Ticket:
    """Read a ticket; whatever is wrong with the file is a ``TicketError``."""
    with _naming("read", path):
        return decode_ticket(open_container(Path(path)))


def write_ticket(
    ticket: Ticket, path: os.PathLike | str, *, force: bool = False
) -> int:
    """Write a ticket atomically, and return its size in bytes.

    An existing file is replaced only with ``force``. A ticket that ``read_ticket``
    would refuse is not written.
    """
    path = Path(path)
    with _naming("write", path):
        if path.exists() and not force:
            raise TicketError(f"{path} exists, pass --force to replace it")
        content = encode_ticket(ticket)
        decode_ticket(parse_container(io.BytesIO(content), len(content)))
        write_whole(path, content)
    return len(content)


def ticket_bytes(ticket: Ticket) -> int:
    """Return the size in bytes of the file that ``write_ticket`` would write."""
    with _naming("encode", "the ticket"):
        return len(encode_ticket(ticket))


@contextmanager
def _naming(verb: str, path: os.PathLike | str) -> Iterator[None]:
    """Turn an error about a file into one sentence that names it."""
    try:
        yield
    except Refusal as refusal:
        raise TicketError(f"cannot {verb} {path}: {refusal}") from None
    except OSError as error:
        raise TicketError(f"cannot {verb} {path}: {error.strerror or error}") from None
