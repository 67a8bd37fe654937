"""Files of embeddings that lie about what they hold are refused with a sentence."""

import json
import os
import struct
from argparse import Namespace

import pytest
import torch

from onelayer_lottery.embeddings.checkpoint_file import read_positions
from onelayer_lottery.embeddings.reading import read_vectors
from onelayer_lottery.errors import LotteryError

NAME = "encoder.embed_tokens.weight"
POSITIONS = "encoder.embed_positions.weight"


def refusal(path, read=lambda path: read_vectors(path, "encoder")):
    with pytest.raises(LotteryError) as caught:
        read(path)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 1000
    return said


def entry(shape=(2, 2), offsets=(0, 16), dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


FLAT = entry([4])
SAFETENSORS = {
    "negative shape": ({"m": entry([-2, -2])}, "the shape of m is [-2, -2]; "),
    "empty shape": ({"m": entry([0, 10**30], [0, 0])}, "the shape of m is [0, 1000"),
    "float shape": ({"m": entry([2.0, 2])}, "the shape of m is [2.0, 2]; "),
    "bool shape": ({"m": entry([True, 4])}, "the shape of m is [True, 4]; "),
    "text shape": ({"m": entry("22")}, "the shape of m is '22'; "),
    "no shape": ({"m": {"dtype": "F32"}}, "the shape of m is None; "),
    "huge shape": ({"m": entry([2**40, 2**40])}, "16 bytes do not hold the shape of m"),
    "negative offsets": (
        {"m": entry((2, 2), [-16, 0])},
        "the offsets of m are [-16, 0",
    ),
    "backward offsets": ({"m": entry((2, 2), [16, 0])}, "the offsets of m are [16, 0]"),
    "float offsets": (
        {"m": entry((2, 2), [0, 16.0])},
        "the offsets of m are [0, 16.0]",
    ),
    "bool offsets": ({"m": entry((2, 2), [False, 16])}, "the offsets of m are [False,"),
    "text offsets": ({"m": entry((2, 2), ["0", "16"])}, "the offsets of m are ['0', "),
    "three offsets": ({"m": entry((2, 2), [0, 8, 16])}, "the offsets of m are [0, 8, "),
    "huge offsets": ({"m": entry((2, 2), [0, 10**18])}, "it is cut short"),
    "offsets outside": ({"m": entry((2, 2), [8, 24])}, "it is cut short"),
    "unknown type": ({"m": entry(dtype="I64")}, "the type of m is 'I64'; give F32"),
    "list as type": ({"m": entry(dtype=["F32"])}, "the type of m is ['F32']; give F32"),
    "no entries": ({}, "it has 0 matrices, not one"),
    "only metadata": ({"__metadata__": {}}, "it has 0 matrices, not one"),
    "bad vector beside": ({"m": entry(), "v": 5}, "its entry v is 5, not an object"),
    "text entry": ({"m": "x"}, "its entry m is 'x', not an object"),
    "list": (b'{"m": [1, 2]}', "its entry m is [1, 2], not an object"),
    "twice": (b'{"m": {}, "m": {}}', "its header has m twice"),
    "deep": (b'{"m": ' + b"[" * 100_000, "its header is not JSON"),
    "many digits": (b'{"m": ' + b"9" * 100_000 + b"}", "its header is not JSON"),
    "cut JSON": (b'{"m": ', "its header is not JSON"),
    "no UTF-8": (b'{"\xff": 1}', "its header is not JSON"),
}


@pytest.mark.parametrize("case", SAFETENSORS)
def test_a_damaged_safetensors_file_is_refused(case, tmp_path):
    header, sentence = SAFETENSORS[case]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    said = refusal(path)
    assert said.startswith(f"cannot read {path} as safetensors: {sentence}")


def test_a_large_header_is_not_read(tmp_path):
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 30) + b"{")
        file.truncate(2 << 30)  # sparse
    assert "its header has 1,073,741,824 bytes, more than 4,194,304" in refusal(path)


def test_vectors_beside_the_matrix_are_left_out(tmp_path):
    text = json.dumps({"b": FLAT, "m": entry([2, 2], [16, 32])}).encode()
    path = tmp_path / "m.safetensors"
    data = struct.pack("<8f", *range(8))
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    assert read_vectors(path, "encoder").matrix.tolist() == [[4, 5], [6, 7]]


TEXT = {
    "only a header": ("3 4\n", "has no embeddings"),
    "huge dimension": (
        "3 99999999999\na 1 2\n",
        "line 1 of FILE says that vectors have 99999999999 numbers; give at most",
    ),
    "digits without end": (
        f"3 {'9' * 5000}\na 1 2\n",
        "line 1 of FILE says that vectors have 9999999",
    ),
    "another dimension": (
        "1 300\na 1 2\n",
        "line 2 of FILE has 2 numbers, the others have 300; it may be cut short",
    ),
    "too large": ("a 1e999 2\n", "row 0 (a) of the embeddings in FILE is not finite"),
    "underscore": ("a 1_0 2\n", "line 1 of FILE is not a vector: '1_0' is not a num"),
    "other digits": ("a ١ 2\n", "line 1 of FILE is not a vector: '١' is not a number"),
    "superscript": ("3 ²\na 1\n", "line 1 of FILE is not a vector: '²' is not a numb"),
    "hexadecimal": ("a 0x1 2\n", "line 1 of FILE is not a vector: '0x1' is not a num"),
    "two points": ("a 1..2 2\n", "line 1 of FILE is not a vector: '1..2' is not a nu"),
    "words": ("a nan 2\n", "line 1 of FILE is not a vector: 'nan' is not a number"),
    "no vector": ("word\n", "line 1 of FILE has 0 numbers; give a symbol and its vec"),
    "NUL": ("a 1\0 2\n", "line 1 of FILE is not a vector: '1\\x00' is not a number"),
}


@pytest.mark.parametrize("case", TEXT)
def test_a_careless_text_file_is_refused(case, tmp_path):
    content, sentence = TEXT[case]
    path = tmp_path / "vectors.txt"
    path.write_text(content, "utf-8")
    assert sentence.replace("FILE", str(path)) in refusal(path)


@pytest.mark.timeout(20)
def test_a_line_without_end_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "vectors.txt"
    with path.open("wb") as file:
        file.write(b"a 1 2\nb ")
        file.truncate(8 << 30)  # sparse: zeros
    assert f"line 2 of {path} has more than 1,048,576 characters" in refusal(path)


def test_a_one_dimensional_vector_is_no_header(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("word 7\nother 8\n")
    assert read_vectors(path, "encoder").matrix.tolist() == [[7], [8]]


def saved(path, *, tensor=None, **state):
    values = {NAME: torch.ones(5, 2) if tensor is None else tensor}
    torch.save({"model": values, **state}, path)
    return path


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(5),
        torch.ones(5, 2, 2),
        torch.ones(5, 2, dtype=torch.int64),
        torch.ones(0, 2),
    ],
    ids=str,
)
def test_embeddings_that_are_no_matrix_are_refused(value, tmp_path):
    path = tmp_path / "model.pt"
    shown = f"is {value.dtype} of shape {tuple(value.shape)}, not a matrix of numbers"
    assert refusal(saved(path, tensor=value)).startswith(f"{NAME} of {path} {shown}")
    torch.save({"model": {POSITIONS: value}}, path)
    said = refusal(path, read_positions)
    assert said.startswith(f"{POSITIONS} of {path} {shown}")


@pytest.mark.parametrize("model", [5, [NAME], torch.ones(3), None], ids=str)
def test_a_model_that_is_no_mapping_is_refused(model, tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"model": model}, path)
    assert refusal(path) == f"{path} is not a fairseq checkpoint: it holds no model"


ODD = [5, [[1]], "x", torch.ones(3), {"a": 1}, None, True, b"x"]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_a_configuration_of_any_type_finds_no_dictionary(odd, tmp_path):
    states = [
        {"cfg": odd},
        {"args": odd},
        {"cfg": {"task": odd}},
        {"cfg": {"task": {"data": odd, "source_lang": odd}}},
        {"args": Namespace(data=[odd], source_lang=odd)},
    ]
    for state in states:
        path = saved(tmp_path / "model.pt", **state)
        assert read_vectors(path, "encoder").symbols is None


@pytest.mark.parametrize(
    "data", ["a\0b", "x" * 5000, "x/" * 3000, "~", "\udcff", "/proc/self/mem", ""]
)
def test_a_data_folder_of_any_name_finds_no_dictionary(data, tmp_path):
    task = {"data": data, "source_lang": "de"}
    path = saved(tmp_path / "model.pt", cfg={"task": task})
    assert read_vectors(path, "encoder").symbols is None


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with dictionaries, and files that no checkpoint may have read."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "dict.de.txt").write_text("wort 1\n")
    (folder / "dict.en.txt").write_text("word 1\n")
    (folder / "secret.txt").write_text("secret 1\n")
    (folder / "dict.-x.txt").write_text("secret 1\n")
    (folder / f"dict.{'x' * 65}.txt").write_text("secret 1\n")
    os.mkfifo(folder / "dict.fifo.txt")
    return folder


def test_the_folder_of_the_data_is_searched_by_language(elsewhere, tmp_path):
    task = {"data": f"{elsewhere}:other", "source_lang": "de"}
    path = saved(tmp_path / "model.pt", cfg={"task": task})
    assert read_vectors(path, "encoder").symbols[4:] == ["wort"]


@pytest.mark.parametrize("language", ["../secret", "/../secret", "-x", "x" * 65, "a\0"])
@pytest.mark.timeout(20)
def test_a_language_of_another_form_names_no_file(language, elsewhere, tmp_path):
    task = {"data": str(elsewhere), "source_lang": language}
    path = saved(tmp_path / "model.pt", cfg={"task": task})
    said = refusal(path)
    assert said.startswith(f"{path} does not say which of dict.de.txt, dict.en.txt is")


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(elsewhere, tmp_path):
    for name in ("dict.de.txt", "dict.en.txt"):
        (elsewhere / name).unlink()
    task = {"data": str(elsewhere), "source_lang": "fifo"}
    path = saved(tmp_path / "model.pt", cfg={"task": task})
    assert read_vectors(path, "encoder").symbols is None
