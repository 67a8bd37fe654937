"""A checkpoint, a ticket and other safetensors files are told apart by their bytes."""

import hashlib
import json
import pickle
import struct
import zipfile

import pytest
import torch
from stock import build_tiny, translation_task
from test_convert import checkpoint_of, dictionaries_of

from onelayer_lottery.cli import main
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import is_checkpoint
from onelayer_lottery.ticket.format import write_ticket

# Low bytes as in a pickle of each protocol, in one of none, and in a zip archive.
LENGTHS = [*range(0x80, 0x1000, 0x100), 0x10280, 0x10580, 0x4B50]


def padded(content, length):
    """The same safetensors file with a header of another length."""
    old = int.from_bytes(content[:8], "little")
    assert old <= length
    header = content[8 : 8 + old] + b" " * (length - old)
    return struct.pack("<Q", length) + header + content[8 + old :]


@pytest.fixture(scope="module")
def ticket(tmp_path_factory):
    task = translation_task(40, 30)
    ticket = ticket_from_checkpoint(
        checkpoint_of(build_tiny(task=task)), dictionaries=dictionaries_of(task)
    )
    path = tmp_path_factory.mktemp("ticket") / "model.ticket"
    write_ticket(ticket, path)
    return path


@pytest.mark.parametrize(
    "low", [0x0080, 0x0280, 0x0380, 0x0480, 0x0580, 0x4B50], ids=hex
)
def test_a_ticket_is_inspected_whatever_the_length_of_its_header(
    low, ticket, tmp_path, capsys
):
    content = padded(ticket.read_bytes(), (1 << 16) + low)
    digest = json.loads(content[8 : 8 + (1 << 16) + low])["__metadata__"]["sha256"]
    blank = content.replace(digest.encode(), b"0" * 64)
    right = hashlib.sha256(blank).hexdigest()
    path = tmp_path / "padded.ticket"
    path.write_bytes(content.replace(digest.encode(), right.encode()))
    assert main(["inspect", "--json", str(path)]) == 0, capsys.readouterr().err
    ours = json.loads(capsys.readouterr().out)
    assert main(["inspect", "--json", str(ticket)]) == 0
    theirs = json.loads(capsys.readouterr().out)
    assert ours["totals"] == theirs["totals"]


@pytest.mark.parametrize("length", LENGTHS, ids=hex)
def test_embeddings_are_read_whatever_the_length_of_the_header(
    length, tmp_path, capsys
):
    entry = {"dtype": "F32", "shape": [5, 2], "data_offsets": [0, 40]}
    header = json.dumps({"m": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + struct.pack("<10f", *range(10))
    path, symbols = tmp_path / "m.safetensors", tmp_path / "dict.txt"
    path.write_bytes(padded(content, length))
    symbols.write_text("word 1\n")
    out = tmp_path / "out.txt"
    command = ["embeddings", str(path), "--side", "encoder", "-o", str(out)]
    status = main([*command, "--embed-dict", str(symbols)])
    assert status == 0, capsys.readouterr().err
    assert out.read_text().splitlines()[-1] == "word 8.0 9.0"


def test_a_header_whose_length_looks_like_a_zip_archive_is_none(tmp_path):
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(b"PK\x03\x04\0\0\0\0{")
        file.truncate(8 + int.from_bytes(b"PK\x03\x04", "little"))  # sparse
    assert not is_checkpoint(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_checkpoints_old_and_new_are_recognised(protocol, tmp_path):
    path = tmp_path / "model.pt"
    state = {"model": {"a": torch.zeros(3)}}
    torch.save(state, path, pickle_protocol=protocol)
    assert zipfile.is_zipfile(path)
    assert is_checkpoint(path)
    torch.save(
        state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False
    )
    assert not zipfile.is_zipfile(path)
    assert is_checkpoint(path)
    path.write_bytes(pickle.dumps({"model": 1}, protocol))
    assert is_checkpoint(path)


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK12", b"\x80", b"\x80\x01.", b"\x80\x06.", b"a 1 2\n"]
)
def test_other_files_are_no_checkpoints(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert not is_checkpoint(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(LotteryError, match="is not a file; give a ticket or a check"):
        is_checkpoint(tmp_path)
