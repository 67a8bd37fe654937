"""The ticket file: exact, deterministic, small; every other file is refused."""

import copy
import hashlib
import json
import os
import pickle
import random
import re
import resource
import stat
import zipfile

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from onelayer_lottery.core.frozen import digest, frozen_weight
from onelayer_lottery.core.mask import top_k_mask
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.frozen.weights import STREAM_VERSION
from onelayer_lottery.ticket import container
from onelayer_lottery.ticket.format import (
    Bpe,
    FrozenTensor,
    MaskedTensor,
    Ticket,
    TicketError,
    read_ticket,
    ticket_bytes,
    write_ticket,
)

# Golden: may change only together with the version of the format.
GOLDEN = "e403622f2a003c888b546e25723e83b76633c1251c84cd78a52ba7ae4af9db08"

FC1 = "decoder.layers.*.fc1"
EMBEDDING = "decoder.embed_tokens"
IMPORTED = "encoder.embed_tokens"
LAYER = "decoder.layers.0.fc1"


def mask_of(shape, keep, seed):
    mask = np.zeros(shape, dtype=bool)
    order = np.random.RandomState(seed).permutation(mask.size)
    mask.flat[order[: round(keep * mask.size)]] = True
    return mask


def make(keep=0.25, shape=(5, 7)):
    """A ticket with one of everything: shared, tied, imported, dense, text, bpe."""
    imported = mask_of((6, 4), keep, 9)
    values = np.linspace(-1, 1, int(imported.sum())).astype(np.float16)
    return Ticket(
        seed=7,
        init="kaiming-uniform",
        fan="kept",
        keep=keep,
        stream=STREAM_VERSION,
        frozen={
            FC1: FrozenTensor(shape, 0.5, None, "ab" * 32),
            EMBEDDING: FrozenTensor((9, 11), 1.0, 1, "cd" * 32),
            IMPORTED: FrozenTensor((6, 4), 1.0, 1, "ef" * 32, values),
        },
        masks={
            "decoder.layers.0.fc1": MaskedTensor(FC1, mask_of(shape, keep, 1)),
            "decoder.layers.1.fc1": MaskedTensor(FC1, mask_of(shape, keep, 2)),
            EMBEDDING: MaskedTensor(EMBEDDING, mask_of((9, 11), keep, 3)),
            IMPORTED: MaskedTensor(IMPORTED, imported),
        },
        tied={"decoder.output_projection": EMBEDDING},
        dense={
            "decoder.layers.0.norm.weight": np.array([0.5, -1.25], np.float32),
            "decoder.layers.0.norm.half": np.array([[1], [2]], np.float16),
            "scale": np.array(3.5, np.float32),
        },
        config={
            "arch": "tiny",
            "width": 5,
            "dropout": 0.1,
            "sizes": [1, None],
            "ü": {},
        },
        dictionaries={"source": "der 3\nMädchen 2\n", "target": ""},
        bpe=Bpe("sentencepiece", b"\x00\xffmodel"),
    )


def same_array(first, second):
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.tobytes() == second.tobytes()
    )


def same(first, second):
    """Whether two tickets say the same."""
    plain = ("seed", "init", "fan", "keep", "stream", "tied", "config", "dictionaries")
    return (
        all(getattr(first, name) == getattr(second, name) for name in (*plain, "bpe"))
        and first.frozen.keys() == second.frozen.keys()
        and first.masks.keys() == second.masks.keys()
        and first.dense.keys() == second.dense.keys()
        and all(same_array(first.dense[n], second.dense[n]) for n in first.dense)
        and all(
            masked.role == second.masks[name].role
            and same_array(masked.mask, second.masks[name].mask)
            and np.array_equal(masked.signs, second.masks[name].signs)
            for name, masked in first.masks.items()
        )
        and all(
            (one.shape, one.gain, one.padding, one.digest)
            == (two.shape, two.gain, two.padding, two.digest)
            and (one.values is None) == (two.values is None)
            and (one.values is None or same_array(one.values, two.values))
            for one, two in ((f, second.frozen[r]) for r, f in first.frozen.items())
        )
    )


def split(content):
    """The header and the data of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length].decode()), content[8 + length :]


def join(header, data, resign=True, encode=json.dumps):
    """Frame a file; with ``resign``, all digests are made right again."""
    metadata = header.get("__metadata__")
    if resign:
        digests = {}
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                digests[name] = hashlib.sha256(data[start:end]).hexdigest()
        metadata["payloads"] = json.dumps(digests)
        metadata["sha256"] = "0" * 64
    text = encode(header).encode("utf-8", "surrogatepass")
    content = len(text).to_bytes(8, "little") + text + data
    if resign:
        whole = hashlib.sha256(content).hexdigest().encode()
        place = text.index(b'"sha256": "' + b"0" * 64) + 8 + len(b'"sha256": "')
        content = content[:place] + whole + content[place + 64 :]
    return content


def with_tables(content, change):
    """Change the parsed JSON of the metadata, and make all digests right again."""
    header, data = split(content)
    metadata = header["__metadata__"]
    names = ("settings", "frozen", "masks", "tied", "config", "bpe")
    tables = {name: json.loads(metadata[name]) for name in names}
    changed = change(tables)
    tables = tables if changed is None else changed
    metadata.update({name: json.dumps(table) for name, table in tables.items()})
    return join(header, data)


def with_payload(content, name, payload, dtype=None, shape=None):
    """Put another payload (or none) in the place of one, all digests right."""
    header, data = split(content)
    parts, end = [], 0
    entries = {key: header[key] for key in header if key != "__metadata__"}
    if payload is not None and name not in entries:
        entries[name] = {"dtype": "U8", "shape": None, "data_offsets": [0, 0]}
    for key in list(entries):
        start, stop = entries[key]["data_offsets"]
        part = data[start:stop]
        if key == name:
            if payload is None:
                del header[key]
                continue
            part = payload
            default = entries[key]["dtype"]
            width = {"U8": 1, "F16": 2, "F32": 4}.get(dtype or default, 1)
            entries[key]["dtype"] = dtype or default
            entries[key]["shape"] = (
                [len(part) // width] if shape is None else list(shape)
            )
        header[key] = {**entries[key], "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    return join(header, b"".join(parts))


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("ticket") / "tiny.ticket"
    write_ticket(make(), path)
    return path.read_bytes()


@pytest.fixture
def read(tmp_path):
    """Reads bytes as a ticket; whatever they are, only TicketError may be raised."""

    path = tmp_path / "damaged.ticket"

    def read_content(content):
        path.write_bytes(content)
        return read_ticket(path)

    return read_content


@pytest.fixture
def refusal(read):
    def sentence(content):
        with pytest.raises(TicketError) as caught:
            read(content)
        return checked_sentence(str(caught.value))

    return sentence


def checked_sentence(message):
    assert re.match(r"cannot read \S*\.ticket: ", message), message
    assert message.isprintable()
    assert len(message) < 400
    return message


def test_a_ticket_comes_back_as_it_was(tmp_path):
    path = tmp_path / "a.ticket"
    written = write_ticket(make(), path)
    assert written == path.stat().st_size
    assert same(read_ticket(path), make())
    assert issubclass(TicketError, LotteryError)


def test_signs_come_back_and_cost_one_bit_for_each_kept_weight(tmp_path):
    ticket = make(keep=0.5)
    masked = ticket.masks[LAYER]
    masked.signs = np.arange(masked.mask.sum()) % 3 == 0
    write_ticket(ticket, tmp_path / "signed.ticket")
    again = read_ticket(tmp_path / "signed.ticket")
    assert same(ticket, again)
    assert read_ticket(tmp_path / "signed.ticket").stored[f"signs/{LAYER}"] == 3
    factors = again.masks[LAYER].factors()
    assert factors[masked.mask].tolist() == [-1 if s else 1 for s in masked.signs]
    assert not factors[~masked.mask].any()
    masked.signs = masked.signs[1:]
    with pytest.raises(TicketError, match=r"signs of .* not one bool for each kept"):
        write_ticket(ticket, tmp_path / "never.ticket")


@pytest.mark.parametrize("keep", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_masks_of_every_density_come_back(keep, tmp_path):
    before = make(keep=keep, shape=(64, 129))
    write_ticket(before, tmp_path / "a.ticket")
    assert same(read_ticket(tmp_path / "a.ticket"), before)


@pytest.mark.parametrize("keep", [0.5, 0.3, 0.1, 0.123456789])
def test_the_count_of_a_mask_is_that_of_training(keep, tmp_path):
    for size in (1, 3, 5, 7, 15, 25, 101):
        mask = top_k_mask(torch.arange(1.0, size + 1).view(1, size), keep).numpy()
        before = make()
        before.keep, before.tied = keep, {}
        before.frozen = {FC1: FrozenTensor((1, size), 1.0, None, "ab" * 32)}
        before.masks = {LAYER: MaskedTensor(FC1, mask)}
        write_ticket(before, tmp_path / "a.ticket", force=True)
        assert same(read_ticket(tmp_path / "a.ticket"), before)


def test_a_ticket_may_be_nearly_empty(tmp_path):
    before = Ticket(0, "signed-constant", "full", 1.0, 1, {}, {}, {}, {}, {}, {})
    write_ticket(before, tmp_path / "a.ticket")
    assert same(read_ticket(tmp_path / "a.ticket"), before)
    assert read_ticket(tmp_path / "a.ticket").stored == {}


def test_what_is_read_may_be_changed(tmp_path):
    write_ticket(make(), tmp_path / "a.ticket")
    after = read_ticket(tmp_path / "a.ticket")
    after.dense["scale"][()] = 1
    after.frozen[IMPORTED].values[0] = 1
    for masked in after.masks.values():
        masked.mask[0, 0] = True


def test_the_bytes_of_a_ticket_never_change(content):
    assert hashlib.sha256(content).hexdigest() == GOLDEN


def test_the_bytes_do_not_depend_on_the_order_of_construction(content, tmp_path):
    shuffled = make()
    for name in ("frozen", "masks", "dense", "config", "dictionaries"):
        items = reversed(list(getattr(shuffled, name).items()))
        setattr(shuffled, name, dict(items))
    shuffled.masks = {
        name: MaskedTensor(masked.role, np.asfortranarray(masked.mask))
        for name, masked in shuffled.masks.items()
    }
    shuffled.dense["scale"] = shuffled.dense["scale"].astype(">f4")
    write_ticket(shuffled, tmp_path / "a.ticket")
    assert (tmp_path / "a.ticket").read_bytes() == content


def test_writing_what_was_read_gives_the_same_bytes(content, read, tmp_path):
    write_ticket(read(content), tmp_path / "again.ticket")
    assert (tmp_path / "again.ticket").read_bytes() == content


def test_the_safetensors_library_reads_a_ticket(content, tmp_path):
    path = tmp_path / "a.ticket"
    path.write_bytes(content)
    tensors = load_file(path)
    assert tensors["dense/decoder.layers.0.norm.weight"].tolist() == [0.5, -1.25]
    assert tensors["dense/scale"] == 3.5
    assert tensors["dictionary/source"].tobytes().decode() == "der 3\nMädchen 2\n"
    assert tensors["dictionary/target"].size == 0
    mask = make().masks[EMBEDDING].mask
    packed = np.packbits(mask, bitorder="little")
    assert np.array_equal(tensors[f"mask/{EMBEDDING}"], packed)
    with safe_open(str(path), "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "onelayer_lottery.ticket"
    assert metadata["version"] == "1"
    assert json.loads(metadata["masks"])[EMBEDDING]["kept"] == int(mask.sum())


def test_data_is_aligned(content):
    header, data = split(content)
    assert (len(content) - len(data)) % 8 == 0
    for name, entry in header.items():
        if name != "__metadata__":
            width = {"U8": 1, "F16": 2, "F32": 4}[entry["dtype"]]
            assert entry["data_offsets"][0] % width == 0


def test_digests_in_the_file_are_the_documented_ones(content):
    header, data = split(content)
    stated = header["__metadata__"]["sha256"].encode()
    blank = content.replace(stated, b"0" * 64)
    assert hashlib.sha256(blank).hexdigest().encode() == stated
    for name, expected in json.loads(header["__metadata__"]["payloads"]).items():
        start, end = header[name]["data_offsets"]
        assert hashlib.sha256(data[start:end]).hexdigest() == expected


def test_a_ticket_knows_the_bytes_of_its_payloads(content, tmp_path):
    (tmp_path / "a.ticket").write_bytes(content)
    sizes = read_ticket(tmp_path / "a.ticket").stored
    assert sizes[f"mask/{EMBEDDING}"] == 13
    assert sizes["values/encoder.embed_tokens"] == 12
    assert sizes["bpe"] == 7
    assert sum(sizes.values()) == len(split(content)[1])


@pytest.mark.parametrize(("keep", "bits"), [(0.5, 1.0), (0.3, 0.8813), (0.1, 0.469)])
def test_a_ticket_of_masks_is_hardly_larger_than_their_bits(keep, bits, tmp_path):
    shape = (512, 512)
    layers = range(8)
    before = make(keep=keep)
    before.frozen = {FC1: FrozenTensor(shape, 1.0, None, "ab" * 32)}
    before.masks = {
        f"decoder.layers.{n}.fc1": MaskedTensor(FC1, mask_of(shape, keep, n))
        for n in layers
    }
    before.tied, before.dense, before.bpe = {}, {}, None
    size = write_ticket(before, tmp_path / "a.ticket")
    assert ticket_bytes(before) == size == (tmp_path / "a.ticket").stat().st_size
    positions = len(layers) * 512 * 512
    payload = sum(read_ticket(tmp_path / "a.ticket").stored.values())
    assert payload < 1.02 * bits * positions / 8
    assert size - payload < 0.02 * positions / 8
    assert same(read_ticket(tmp_path / "a.ticket"), before)


def test_frozen_weights_are_drawn_again_as_the_format_describes():
    rows, columns = 3, 5
    key = hashlib.sha256(b"7/decoder.layers.*.fc1").digest()[:16]
    words = [int.from_bytes(key[i : i + 8], "little") for i in (0, 8)]
    integers = []
    for counter in range(1, 3):
        for word in philox((counter, 0, 0, 0), words):
            integers += [word % 2**32, word >> 32]
    scale = np.float32(0.5 * np.sqrt(1 / 0.25) * np.sqrt(2) / np.sqrt(5) * np.sqrt(3))
    expected = [
        np.float32((2 * (u >> 9) + 1 - 2**23) * 2.0**-23) * scale
        for u in integers[: rows * columns]
    ]
    weight = frozen_weight(7, FC1, shape=(3, 5), keep=0.25, gain=0.5)
    assert weight.flatten().tolist() == expected
    assert digest(weight) == hashlib.sha256(np.array(expected, "<f4")).hexdigest()


def philox(counter, key):
    """Philox4x64-10, as published."""
    word = 2**64 - 1
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [high >> 64 ^ c[1] ^ k[0], high & word, low >> 64 ^ c[3] ^ k[1], low & word]
        k = [k[0] + 0x9E3779B97F4A7C15 & word, k[1] + 0xBB67AE8584CAA73B & word]
    return c


# Writing


def test_an_existing_file_is_replaced_only_by_force(tmp_path):
    path = tmp_path / "a.ticket"
    path.write_bytes(b"precious")
    with pytest.raises(TicketError, match=r"a\.ticket exists, pass --force to replace"):
        write_ticket(make(), path)
    assert path.read_bytes() == b"precious"
    write_ticket(make(), path, force=True)
    assert same(read_ticket(path), make())
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_usual_permissions(tmp_path):
    write_ticket(make(), tmp_path / "a.ticket")
    (tmp_path / "b").write_bytes(b"")
    modes = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("a.ticket", "b")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("fault", ["disk full", "interrupt", "rename"])
def test_a_failed_write_leaves_nothing_behind(fault, tmp_path, monkeypatch):
    path = tmp_path / "a.ticket"
    path.write_bytes(b"precious")

    def fail(*arguments):
        raise (
            KeyboardInterrupt if fault == "interrupt" else OSError(28, "No space left")
        )

    if fault == "disk full":
        resource_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource_limit[1]))
    else:
        monkeypatch.setattr(os, "replace", fail)
    try:
        with pytest.raises(KeyboardInterrupt if fault == "interrupt" else TicketError):
            write_ticket(make(), path, force=True)
    finally:
        if fault == "disk full":
            resource.setrlimit(resource.RLIMIT_FSIZE, resource_limit)
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/a.ticket", "No such file or directory"),
        ("file/a.ticket", "Not a directory|No such file"),
        ("x" * 300, "File name too long"),
        ("nul\0.ticket", "not the name of a file"),
        ("folder", "Is a directory|exists"),
    ],
)
def test_a_path_that_cannot_be_written_is_named(name, message, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TicketError, match=f"(?s)^cannot write .*: .*({message})"):
        write_ticket(make(), tmp_path / name, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def set_field(name, value):
    return lambda t: setattr(t, name, value)


UNWRITABLE = {
    "mask of another shape": (
        lambda t: setattr(t.masks[EMBEDDING], "mask", mask_of((11, 9), 0.25, 1)),
        r"mask of 'decoder.embed_tokens' is bool of shape \(11, 9\)",
    ),
    "mask of integers": (
        lambda t: setattr(t.masks[EMBEDDING], "mask", np.ones((9, 11), int)),
        "is int64 of shape",
    ),
    "mask that is a list": (
        lambda t: setattr(t.masks[EMBEDDING], "mask", [True]),
        "malformed: .*no attribute",
    ),
    "mask that keeps too much": (
        lambda t: t.masks[EMBEDDING].mask.fill(True),
        "keeps 99 of 99; keep 0.25 means 25",
    ),
    "unknown role": (
        lambda t: setattr(t.masks[EMBEDDING], "role", "none"),
        "mask of 'decoder.embed_tokens' has role 'none', of no tensor",
    ),
    "empty tensor": (
        lambda t: (
            setattr(t.masks[EMBEDDING], "mask", np.zeros((0, 3), bool)),
            setattr(t.frozen[EMBEDDING], "shape", (0, 3)),
        ),
        "malformed",
    ),
    "dense in double": (
        lambda t: t.dense.update(x=np.zeros(2)),
        "'dense/x' is float64, not float32",
    ),
    "dense not finite": (
        lambda t: t.dense.update(x=np.array([1, np.nan], np.float32)),
        "payload 'dense/x' has a NaN or infinity",
    ),
    "too many values": (
        lambda t: setattr(t.frozen[IMPORTED], "values", np.ones(7, np.float32)),
        "one value for each kept position",
    ),
    "keep not a number": (
        set_field("keep", float("nan")),
        "malformed: .*[Oo]ut of range",
    ),
    "seed of text": (set_field("seed", "7"), "malformed: .*integer"),
    "seed with fraction": (set_field("seed", 7.5), "malformed: .*integer"),
    "negative seed": (set_field("seed", -1), r"seed is -1; expected an integer from 0"),
    "config not JSON": (set_field("config", {"a": object()}), "not JSON serializable"),
    "config not finite": (set_field("config", {"a": float("inf")}), "malformed"),
    "config with surrogate": (
        set_field("config", {"a": "\ud800"}),
        "config is not valid JSON",
    ),
    "dictionary with surrogate": (
        set_field("dictionaries", {"s": "\ud800"}),
        "malformed",
    ),
    "side that leaves its folder": (
        set_field("dictionaries", {"../../etc": "x"}),
        "belongs to nothing",
    ),
    "unknown bpe": (set_field("bpe", Bpe("gpt", b"")), "bpe 'gpt' is unknown"),
}


def endless():
    value = {}
    value["again"] = value
    return value


@pytest.mark.parametrize("case", [*UNWRITABLE, "endless config"])
def test_what_could_not_be_read_is_not_written(case, tmp_path):
    before = make()
    change, message = UNWRITABLE.get(
        case, (set_field("config", endless()), "malformed")
    )
    change(before)
    with pytest.raises(TicketError, match=f"^cannot write .*a.ticket: .*{message}"):
        write_ticket(before, tmp_path / "a.ticket")
    assert list(tmp_path.iterdir()) == []


# Files that are no tickets


def test_a_file_that_is_not_there_or_not_a_file_is_named(tmp_path):
    for path, message in (
        (tmp_path / "none.ticket", "does not exist"),
        (tmp_path / "nul\0.ticket", "does not exist"),
        (tmp_path, "is not a file"),
        (tmp_path / ("x" * 300), "File name too long|does not exist"),
        ("/dev/zero", "is not a file"),
    ):
        with pytest.raises(TicketError, match=f"^cannot read .*: .*({message})"):
            read_ticket(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(content, tmp_path):
    path = tmp_path / "a.ticket"
    path.write_bytes(content)
    path.chmod(0)
    with pytest.raises(TicketError, match=r"a\.ticket: Permission denied"):
        read_ticket(path)


def test_a_fault_of_the_disk_is_a_sentence(content, tmp_path, monkeypatch):
    path = tmp_path / "a.ticket"
    path.write_bytes(content)

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(container, "parse_container", fail)
    with pytest.raises(
        TicketError, match=r"cannot read .*a\.ticket: Input/output error"
    ):
        read_ticket(path)


def test_other_files_are_not_tickets(tmp_path, refusal):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("data.pkl", b"x" * 100)
    save_file({"a": np.zeros(3)}, str(tmp_path / "a.safetensors"))
    others = [
        (tmp_path / "a.zip").read_bytes(),
        (tmp_path / "a.safetensors").read_bytes(),
        pickle.dumps({"model": [1.5] * 50}),
        b"P",
        b"\0" * 100,
        b"\xff" * 100,
        b'{"__metadata__": {"format": "onelayer_lottery.ticket"}}',
        b"der 3\nMann 2\n" * 50,
    ]
    for other in others:
        assert "it is not a ticket" in refusal(other)
    assert "it is empty" in refusal(b"")


def test_another_version_is_told_before_anything_else(content, refusal):
    header, data = split(content)
    header["__metadata__"]["version"] = "3"
    message = (
        "it was written by a newer version: format 3, this reads 2; upgrade"
        " onelayer_lottery"
    )
    assert message in refusal(join(header, data, resign=False))
    header["__metadata__"] = {"format": "onelayer_lottery.ticket", "version": "3"}
    assert message in refusal(join(header, b"", resign=False))
    for version in ("0", "01", "1.5", "", "1" * 5000, 1, None, ["1"]):
        header["__metadata__"]["version"] = version
        assert "its version is" in refusal(join(header, data, resign=False))


def test_a_header_that_claims_too_much_is_refused_without_memory(content, refusal):
    header, data = split(content)
    for length in (2**63, 2**40, (4 << 20) + 1):
        claim = length.to_bytes(8, "little") + content[8:]
        assert "it is not a ticket" in refusal(claim)
    assert "its header is not complete" in refusal(
        len(content).to_bytes(8, "little") + content[8:]
    )
    entry = header["dense/scale"]
    entry["shape"], entry["data_offsets"] = [2**40], [0, 2**42]
    assert "is not where it must be" in refusal(join(header, data))
    header = {
        "__metadata__": header["__metadata__"],
        "dense/scale": {**entry, "shape": [2**40], "data_offsets": [0, 2**42]},
    }
    assert "it is truncated" in refusal(join(header, data))


def test_damage_names_the_payload(content, refusal):
    header, data = split(content)
    start = len(content) - len(data)
    for name, entry in header.items():
        first, last = entry.get("data_offsets", (0, 0))
        if first < last:
            damaged = bytearray(content)
            damaged[start + first] ^= 16
            message = f"payload {name!r} is damaged: its digest is not the stated one"
            assert message in refusal(bytes(damaged))


def test_damage_of_the_header_is_noticed_though_it_is_still_valid(content, refusal):
    for old, new in ((b"tiny", b"tinz"), (b'seed\\":7', b'seed\\":5')):
        assert old in content
        message = "it is damaged: its digest is not the stated one"
        assert message in refusal(content.replace(old, new))


def test_a_digest_that_is_in_the_header_twice_is_refused(content, read, refusal):
    zeros = with_tables(content, at("config", "arch", value="0" * 64))
    assert read(zeros).config["arch"] == "0" * 64
    stated = split(zeros)[0]["__metadata__"]["sha256"]
    twice = zeros.replace(b"0" * 64, stated.encode())
    assert "it is damaged: its digest is not the stated one" in refusal(twice)


# Files with right digests and wrong content


def at(*path, value):
    def change(tables):
        place = tables
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def without(*path):
    def change(tables):
        place = tables
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


TABLES = {
    "unknown role": (
        at("masks", LAYER, "role", value="x"),
        "mask of 'decoder.layers.0.fc1' has role 'x', of no tensor",
    ),
    "role of another shape": (
        at("masks", LAYER, "role", value=EMBEDDING),
        "mask of 'decoder.layers.0.fc1' keeps 9 of 99; keep 0.25 means 25",
    ),
    "another shape": (at("frozen", FC1, "shape", value=[5, 8]), "keeps 9 of 40; keep"),
    "huge shape": (at("frozen", FC1, "shape", value=[10**9, 10**9]), "keeps 9 of"),
    "shape of three": (
        at("frozen", FC1, "shape", value=[5, 7, 1]),
        "has shape [5, 7, 1]",
    ),
    "negative shape": (
        at("frozen", FC1, "shape", value=[-5, -7]),
        "has shape [-5, -7]",
    ),
    "zero shape": (at("frozen", FC1, "shape", value=[0, 7]), "has shape [0, 7]"),
    "shape of text": (at("frozen", FC1, "shape", value=["5", 7]), "has shape ['5', 7]"),
    "shape of much": (at("frozen", FC1, "shape", value=[["x" * 200] * 6] * 6), "..."),
    "shape of truth": (at("frozen", FC1, "shape", value=[True, 35]), "has shape [True"),
    "kept too many": (at("masks", LAYER, "kept", value=10), "keeps 10 of 35"),
    "kept negative": (at("masks", LAYER, "kept", value=-9), "keeps -9 of 35"),
    "kept with fraction": (
        at("masks", LAYER, "kept", value=9.0),
        "must have the fields",
    ),
    "another keep": (at("settings", "keep", value=0.5), "; keep 0.5 means"),
    "unknown coding": (
        at("masks", LAYER, "coding", value="zip"),
        "has unknown coding 'zip'",
    ),
    "endless coding": (at("masks", LAYER, "coding", value="z" * 9999), "coding 'zzz"),
    "other coding": (at("masks", LAYER, "coding", value="ans"), "is damaged: "),
    "unknown init": (
        at("settings", "init", value="ones"),
        "init is 'ones'; expected one",
    ),
    "unknown fan": (
        at("settings", "fan", value="in"),
        "its fan is 'in'; expected one of",
    ),
    "keep zero": (
        at("settings", "keep", value=0),
        "its keep is 0; expected a fraction",
    ),
    "keep above one": (at("settings", "keep", value=1.5), "its keep is 1.5; expected"),
    "keep negative": (at("settings", "keep", value=-0.5), "its keep is -0.5; expected"),
    "keep not a number": (at("settings", "keep", value=float("nan")), "not valid JSON"),
    "keep infinite": (at("settings", "keep", value=float("inf")), "not valid JSON"),
    "keep of text": (
        at("settings", "keep", value="0.25"),
        "settings must have the fields",
    ),
    "keep true": (at("settings", "keep", value=True), "settings must have the fields"),
    "seed negative": (at("settings", "seed", value=-1), "its seed is -1; expected an"),
    "seed huge": (
        at("settings", "seed", value=2**63),
        "its seed is 9223372036854775808",
    ),
    "seed endless": (
        at("settings", "seed", value=10**30),
        "settings is not valid JSON",
    ),
    "seed of text": (
        at("settings", "seed", value="7"),
        "settings must have the fields",
    ),
    "seed true": (at("settings", "seed", value=True), "settings must have the fields"),
    "seed with fraction": (at("settings", "seed", value=7.0), "must have the fields"),
    "seed missing": (without("settings", "seed"), "settings must have the fields"),
    "another setting": (at("settings", "x", value=1), "settings must have the fields"),
    "newer stream": (
        at("settings", "stream", value=2),
        "its stream is 2; expected at mo",
    ),
    "stream zero": (at("settings", "stream", value=0), "its stream is 0"),
    "settings a list": (at("settings", value=[]), "settings must have the fields"),
    "frozen a list": (at("frozen", value=[]), "its frozen is not a JSON object"),
    "masks a list": (at("masks", value=[]), "its masks is not a JSON object"),
    "tied a list": (at("tied", value=[]), "its tied is not a JSON object"),
    "config a list": (at("config", value=[]), "its config is not a JSON object"),
    "config null": (at("config", value=None), "its config is not a JSON object"),
    "row a list": (
        at("masks", LAYER, value=[]),
        "its mask of 'decoder.layers.0.fc1' must",
    ),
    "frozen row text": (at("frozen", FC1, value="x"), "must have the fields"),
    "gain zero": (
        at("frozen", FC1, "gain", value=0),
        "has gain 0; expected one above 0",
    ),
    "gain text": (at("frozen", FC1, "gain", value="1"), "must have the fields"),
    "padding out of range": (at("frozen", FC1, "padding", value=5), "has padding 5;"),
    "padding negative": (
        at("frozen", FC1, "padding", value=-1),
        "has padding -1; expe",
    ),
    "digest short": (
        at("frozen", FC1, "sha256", value="ab"),
        "digest of the frozen ten",
    ),
    "digest upper case": (at("frozen", FC1, "sha256", value="AB" * 32), "is malformed"),
    "digest with line": (
        at("frozen", FC1, "sha256", value="a" * 64 + "\n"),
        "malformed",
    ),
    "tied to nothing": (
        at("tied", "x", value="y"),
        "'x' cannot be tied to 'y': the latter must be a masked layer",
    ),
    "tied to a list": (at("tied", "x", value=[]), "'x' cannot be tied to []"),
    "masked and tied": (at("tied", LAYER, value=EMBEDDING), "cannot be tied to"),
    "role without mask": (
        at(
            "frozen",
            "idle",
            value={
                "shape": [2**60, 2**60],
                "gain": 1,
                "padding": None,
                "sha256": "0" * 64,
            },
        ),
        "the frozen tensor 'idle' has no mask",
    ),
    "mask without payload": (
        at("masks", "x", value={"role": FC1, "kept": 9, "coding": "bits"}),
        "payload 'mask/x' is missing",
    ),
    "payload without mask": (
        without("masks", LAYER),
        "'mask/decoder.layers.0.fc1' belong",
    ),
    "bpe unknown": (at("bpe", value="gpt"), "its bpe 'gpt' is unknown"),
    "bpe a list": (at("bpe", value=["fastbpe"]), "its bpe ['fastbpe'] is unknown"),
    "bpe not stated": (at("bpe", value=None), "payload 'bpe' belongs to nothing"),
    "hostile name": (
        at("masks", "\x1b[31m\n" * 999, value={}),
        "its mask of '\\x1b[31m\\n\\x1b",
    ),
    "surrogate": (at("config", "x", value="\ud800"), "its config is not valid JSON"),
}


@pytest.mark.parametrize("case", TABLES)
def test_wrong_tables_are_refused_though_digests_are_right(case, content, refusal):
    change, message = TABLES[case]
    sentence = refusal(with_tables(content, change))
    assert any(part in sentence for part in message.split("|")), sentence


def test_the_crafted_files_above_would_be_read_if_their_tables_were_right(
    content, read
):
    assert same(read(with_tables(content, lambda tables: None)), make())
    name = "dictionary/source"
    text = make().dictionaries["source"].encode()
    assert same(read(with_payload(content, name, text)), make())


def float32(*values):
    return np.array(values, "<f4").tobytes()


MASK = f"mask/{LAYER}"
SIGNS = f"signs/{LAYER}"
PAYLOADS = {
    "unused bits": (
        (MASK, b"\xff\x01\0\0\x80"),
        "unused bits of the last byte are not",
    ),
    "mask too short": (
        (MASK, b"\xff\x01\0\0"),
        "4 bytes were found, 35 positions need 5",
    ),
    "mask too long": ((MASK, b"\xff\x01\0\0\0\0"), "6 bytes were found, 35 positions"),
    "mask keeps less": ((MASK, b"\xff\0\0\0\0"), "8 positions are kept, 9 were stated"),
    "mask of halves": ((MASK, b"\xff\x01\0\0", "F16"), f"'{MASK}' is not of bytes"),
    "mask of a square": ((MASK, b"\xff\x01\0\0", None, (2, 2)), "is not of bytes"),
    "too few signs": ((SIGNS, b"\xff"), "1 bytes were found, 9 positions need 2"),
    "unused bits of signs": ((SIGNS, b"\xff\x02"), "unused bits of the last byte are"),
    "signs of halves": ((SIGNS, b"\xff\x01", "F16"), f"'{SIGNS}' is not of bytes"),
    "signs of no mask": (("signs/x", b"\xff"), "'signs/x' belongs to nothing"),
    "mask missing": ((MASK, None), f"payload '{MASK}' is missing"),
    "values missing": (
        (f"values/{IMPORTED}x", float32(1), "F32"),
        "belongs to nothing",
    ),
    "too few values": (
        (f"values/{IMPORTED}", float32(1, 2), "F32"),
        "one value for each",
    ),
    "values of a square": (
        (f"values/{IMPORTED}", float32(*range(6)), "F32", (2, 3)),
        "one value for each",
    ),
    "values of bytes": ((f"values/{IMPORTED}", b"123456", "U8"), "is not of numbers"),
    "values not a number": (
        (f"values/{IMPORTED}", float32(1, 2, 3, 4, 5, np.nan), "F32"),
        "has a NaN or infinity",
    ),
    "values of a shared role": (
        (f"values/{FC1}", float32(*range(9)), "F32"),
        "one mask",
    ),
    "dense infinite": (
        ("dense/scale", float32(np.inf), "F32", ()),
        "has a NaN or infin",
    ),
    "dense of bytes": (
        ("dense/scale", b"1234", "U8"),
        "'dense/scale' is not of numbers",
    ),
    "dense of unknown type": (("dense/scale", b"1234", "F8"), "is malformed"),
    "dense of nine dimensions": (
        ("dense/scale", float32(1), "F32", [1] * 9),
        "entry of payload 'dense/scale' is malformed",
    ),
    "dense of impossible dimensions": (
        ("dense/scale", b"", "F32", [0, 10**15, 10**15]),
        "is malformed",
    ),
    "dense negative": (("dense/scale", float32(1), "F32", [-1, -1]), "is malformed"),
    "dense of other length": (
        ("dense/scale", float32(1), "F32", [2]),
        "length of its sha",
    ),
    "dictionary not text": (("dictionary/source", b"\xff\xfe"), "is not text in UTF-8"),
    "dictionary of floats": (("dictionary/source", float32(1), "F32"), "not of bytes"),
    "side that leaves": (
        ("dictionary/../x", b"x"),
        "'dictionary/../x' belongs to nothing",
    ),
    "side without name": (("dictionary/", b"x"), "belongs to nothing"),
    "unknown payload": (("surprise", b"x"), "payload 'surprise' belongs to nothing"),
    "bpe missing": (("bpe", None), "payload 'bpe' is missing"),
    "bpe of floats": (("bpe", float32(1), "F32"), "'bpe' is not of bytes"),
}


@pytest.mark.parametrize("case", PAYLOADS)
def test_wrong_payloads_are_refused_though_digests_are_right(case, content, refusal):
    arguments, message = PAYLOADS[case]
    assert message in refusal(with_payload(content, *arguments))


def test_an_imported_tensor_has_one_mask(content, refusal):
    row = {"role": IMPORTED, "kept": 6, "coding": "bits"}
    two = with_tables(content, at("masks", "x", value=row))
    two = with_payload(two, "mask/x", b"\x3f\0\0")
    assert "one value for each kept position of one mask" in refusal(two)


def header_cases(header):
    metadata = header["__metadata__"]
    entry = header["dense/scale"]

    def replaced(**more):
        return {**header, "__metadata__": {**metadata, **more}}

    def moved(**more):
        return {**header, "dense/scale": {**entry, **more}}

    missing = {k: v for k, v in metadata.items() if k != "tied"}
    return {
        "metadata missing": ({"dense/scale": entry}, "not a ticket but another safet"),
        "metadata a list": ({**header, "__metadata__": []}, "not a ticket but another"),
        "metadata incomplete": (
            {**header, "__metadata__": missing},
            "metadata must have",
        ),
        "metadata with more": (replaced(more="x"), "metadata must have the fields"),
        "metadata not text": (replaced(config={}), "metadata must have the fields"),
        "JSON wrong": (replaced(config="{"), "its config is not valid JSON"),
        "JSON empty": (replaced(config=""), "its config is not valid JSON"),
        "JSON doubled": (replaced(config='{"a":1,"a":1}'), "config is not valid JSON"),
        "JSON deep": (replaced(config="[" * 10**6), "its config is not valid JSON"),
        "JSON deep object": (
            replaced(config='{"a":' * 10**5),
            "config is not valid JSON",
        ),
        "JSON long integer": (replaced(config="9" * 10**6), "config is not valid JSON"),
        "JSON overflow": (
            replaced(config='{"a":1e999}'),
            "its config is not valid JSON",
        ),
        "JSON constant": (replaced(config='{"a":NaN}'), "its config is not valid JSON"),
        "payloads a list": (replaced(payloads="[]"), "payloads is not a JSON object"),
        "payloads others": (replaced(payloads="{}"), "not those that it states"),
        "digest short": (replaced(sha256="0"), "it is damaged: it has no digest"),
        "digest empty": (replaced(sha256=""), "it is damaged: it has no digest"),
        "entry a list": ({**header, "x": []}, "entry of payload 'x' must have the"),
        "entry with more": (moved(x=1), "must have the fields"),
        "offsets of three": (moved(data_offsets=[0, 4, 4]), "is malformed"),
        "offsets of text": (moved(data_offsets=["0", "4"]), "is malformed"),
        "offsets truth": (moved(data_offsets=[False, 4]), "is malformed"),
        "offsets negative": (moved(data_offsets=[-4, 0]), "is not where it must be"),
        "offsets reversed": (moved(data_offsets=[4, 0]), "not have the length of its"),
        "shape an object": (moved(shape={}), "must have the fields"),
        "shape with fraction": (moved(shape=[1.0]), "is malformed"),
        "shape of lists": (moved(shape=[[1]]), "is malformed"),
        "overlap": (moved(data_offsets=[0, 4]), "is not where it must be"),
    }


HEADERS = list(header_cases({"__metadata__": {}, "dense/scale": {}}))


@pytest.mark.parametrize("case", HEADERS)
def test_a_malformed_header_is_refused(case, content, refusal):
    header, data = split(content)
    changed, message = header_cases(header)[case]
    assert message in refusal(join(changed, data, resign=False))


def test_bytes_after_the_last_payload_are_refused(content, refusal):
    assert "it is damaged: 79 bytes of payload, not 78" in refusal(content + b"\0")
    header, data = split(content)
    assert "bytes of payload, not" in refusal(join(header, data + b"\0"))


def test_a_header_of_other_bytes_than_text_is_refused(content, refusal):
    header, data = split(content)
    for damaged in (
        content.replace(b'\\"tiny', b'\\"t\xffny'),
        content[:8] + b"{" + content[8:].replace(b"}", b"]", 1),
    ):
        assert damaged != content
        assert "its header is not valid JSON" in refusal(damaged)
    doubled = json.dumps(header)[:-1] + ', "bpe": ' + json.dumps(header["bpe"]) + "}"
    file = join(header, data, resign=False, encode=lambda header: doubled)
    assert "its header is not valid JSON" in refusal(file)


def test_a_bomb_is_refused_before_memory_is_taken(content, refusal):
    huge = [2**31, 2**31]
    kept = round(0.25 * 2**62)

    def claim(tables):
        tables["frozen"][FC1]["shape"] = huge
        for layer in (LAYER, "decoder.layers.1.fc1"):
            tables["masks"][layer].update(kept=kept, coding="ans")

    assert "bytes are too few for 4611686018427387904 positions" in refusal(
        with_tables(content, claim)
    )

    def claim_bits(tables):
        claim(tables)
        tables["masks"][LAYER]["coding"] = "bits"

    assert "5 bytes were found" in refusal(with_tables(content, claim_bits))


# Fuzzing: reading refuses with a sentence, or gives the ticket that the file describes


def said(content):
    """All that a file says, whatever its layout."""
    header, data = split(content)
    metadata = header.pop("__metadata__")
    tables = {key: metadata[key] for key in metadata.keys() - {"sha256", "version"}}
    tables = {k: v if k == "format" else json.loads(v) for k, v in tables.items()}
    payloads = {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }
    return tables, payloads


def written(ticket, folder):
    write_ticket(ticket, folder / "again.ticket", force=True)
    return (folder / "again.ticket").read_bytes()


def test_every_truncation_is_refused(content, tmp_path):
    path = tmp_path / "cut.ticket"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(TicketError) as caught:
            read_ticket(path)
        checked_sentence(str(caught.value))


def test_every_flipped_bit_is_refused(content, tmp_path):
    path = tmp_path / "flip.ticket"
    total = len(content) * 8
    for bit in random.Random(1).sample(range(total), min(total, 4000)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(TicketError) as caught:
            read_ticket(path)
        checked_sentence(str(caught.value))


def test_random_splices_are_refused(content, tmp_path):
    path = tmp_path / "splice.ticket"
    chance = random.Random(2)
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            start, end = sorted(chance.choices(range(len(damaged) + 1), k=2))
            end = min(end, start + chance.choice((0, 1, 8, 64, 2000)))
            source = chance.randrange(len(content))
            length = chance.choice((0, 1, 8, 64))
            noise = bytes(chance.randrange(256) for _ in range(length))
            damaged[start:end] = chance.choice(
                (noise, content[source : source + length], b"\0" * length)
            )
        if bytes(damaged) == content:
            continue
        path.write_bytes(damaged)
        with pytest.raises(TicketError) as caught:
            read_ticket(path)
        checked_sentence(str(caught.value))


VALUES = (
    *(None, True, False, 0, 1, -1, 7, 0.5, -0.0, 1e300, 2**31, 2**63, 10**19, 10**40),
    *(
        float("nan"),
        float("-inf"),
        "",
        "x",
        "1",
        "bits",
        "ans",
        FC1,
        EMBEDDING,
        IMPORTED,
    ),
    *("\ud800", "\0\n", [], [1], [5, 7], [7, 5], [2**40, 2**40], {}, {"a": 1}, [[[]]]),
)


def places(value, path=()):
    """All paths into nested JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, key))


def mutate(value, chance):
    path = chance.choice(list(places(value)))
    place = value
    for key in path[:-1]:
        place = place[key]
    action = chance.random()
    if action < 0.6:
        place[path[-1]] = copy.deepcopy(chance.choice(VALUES))
    elif action < 0.75:
        del place[path[-1]]
    elif action < 0.9:
        other = value
        for key in chance.choice(list(places(value))):
            other = other[key]
        place[path[-1]] = copy.deepcopy(other)
    elif isinstance(place, dict):
        place[chance.choice(("x", FC1, LAYER, ""))] = place.pop(path[-1])
    else:
        place.append(chance.choice(VALUES))


def test_mutated_tables_with_right_digests_are_refused_or_read_as_they_say(
    content, tmp_path
):
    path = tmp_path / "fuzz.ticket"
    chance = random.Random(3)
    refused, total = 0, 3000

    def change(tables):
        whole = copy.deepcopy(tables)
        for _ in range(chance.choice((1, 1, 1, 2))):
            mutate(whole, chance)
        return {name: whole.get(name) for name in tables}

    for _ in range(total):
        path.write_bytes(with_tables(content, change))
        try:
            after = read_ticket(path)
        except TicketError as error:
            checked_sentence(str(error))
            refused += 1
        else:
            assert said(written(after, tmp_path)) == said(path.read_bytes())
    assert 0.7 * total < refused < total


def test_mutated_headers_with_right_digests_are_refused_or_read_as_they_say(
    content, tmp_path
):
    path = tmp_path / "fuzz.ticket"
    chance = random.Random(4)
    header, data = split(content)
    for _ in range(2000):
        changed = copy.deepcopy(header)
        entries = {k: v for k, v in changed.items() if k != "__metadata__"}
        mutate(entries, chance)
        changed = {"__metadata__": changed["__metadata__"], **entries}
        try:
            file = join(copy.deepcopy(changed), data)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            file = join(changed, data, resign=False)
        path.write_bytes(file)
        try:
            after = read_ticket(path)
        except TicketError as error:
            checked_sentence(str(error))
        else:
            assert said(written(after, tmp_path)) == said(path.read_bytes())


def test_random_payloads_with_right_digests_are_refused_or_read_as_they_say(
    content, tmp_path
):
    path = tmp_path / "fuzz.ticket"
    before = make(keep=0.1, shape=(30, 40))
    write_ticket(before, path)
    content = path.read_bytes()
    name = f"mask/{LAYER}"
    start, end = split(content)[0][name]["data_offsets"]
    original = split(content)[1][start:end]
    chance = random.Random(5)
    for _ in range(800):
        payload = bytearray(original)
        for _ in range(chance.randint(1, 3)):
            payload[chance.randrange(len(payload))] = chance.randrange(256)
        if chance.random() < 0.2:
            del payload[chance.randrange(len(payload)) :]
        path.write_bytes(with_payload(content, name, bytes(payload)))
        try:
            after = read_ticket(path)
        except TicketError as error:
            checked_sentence(str(error))
        else:
            assert said(written(after, tmp_path)) == said(path.read_bytes())
