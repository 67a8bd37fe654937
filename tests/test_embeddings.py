"""Importing embeddings: files of every kind, matched by symbol; what is refused."""

import copy
import json
import struct
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq import utils
from stock import batch, build_tiny, translation_task
from test_convert import checkpoint_of, dictionaries_of, text_of

from onelayer_lottery.cli import main
from onelayer_lottery.conversion.from_checkpoint import (
    ticket_from_checkpoint,
)
from onelayer_lottery.conversion.to_checkpoint import checkpoint_from_ticket
from onelayer_lottery.conversion.to_model import baked_model
from onelayer_lottery.core.frozen import frozen_weight
from onelayer_lottery.embeddings.checkpoint_file import dictionary_symbols
from onelayer_lottery.embeddings.reading import read_vectors
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.ticket.format import read_ticket, write_ticket

WIDTH = 16


@pytest.fixture
def task():
    return translation_task(40, 30)


@pytest.fixture
def dense(task, tmp_path):
    """A dense checkpoint with its dictionaries beside it."""
    torch.manual_seed(5)
    model = build_tiny("transformer", task, share_decoder_input_output_embed=True)
    save(tmp_path / "dense.pt", model, task)
    return tmp_path / "dense.pt", model


def save(path, model, task, **tasks):
    names = {"source_lang": "de", "target_lang": "en", "data": "", **tasks}
    torch.save({"cfg": {"task": names}, "model": model.state_dict()}, path)
    sides = (("de", task.source_dictionary), ("en", task.target_dictionary))
    for language, symbols in sides:
        (path.parent / f"dict.{language}.txt").write_text(text_of(symbols))


def build_with(task, encoder=None, decoder=None, **flags):
    paths = {
        "encoder_embed_path": encoder and str(encoder),
        "decoder_embed_path": decoder and str(decoder),
    }
    return build_tiny(task=task, **paths, **{"mask_preset": "paper-text", **flags})


def without_padding(matrix):
    matrix = matrix.detach().clone()
    matrix[1] = 0
    return matrix


def test_each_side_of_a_checkpoint_is_imported_scaled_and_masked(task, dense):
    path, source = dense
    model = build_with(task, path, path, mask_keep=0.25)
    for side in ("encoder", "decoder"):
        ours = getattr(model, side).embed_tokens
        theirs = without_padding(getattr(source, side).embed_tokens.weight)
        torch.testing.assert_close(ours.masked.frozen.weight, 2 * theirs)
        assert int((ours.weight != 0).sum()) <= round(0.25 * theirs.numel())
    assert model.decoder.output_projection.masked is model.decoder.embed_tokens.masked
    full = build_with(task, path, mask_keep=0.25, mask_fan="full")
    expected = without_padding(source.encoder.embed_tokens.weight)
    assert torch.equal(full.encoder.embed_tokens.masked.frozen.weight, expected)


def test_the_side_can_be_chosen(task, dense):
    path, source = dense
    same = translation_task(30, 30)
    model = build_with(same, path, embed_path_side="decoder", mask_fan="full")
    expected = without_padding(source.decoder.embed_tokens.weight)
    assert torch.equal(model.encoder.embed_tokens.masked.frozen.weight, expected)


def test_a_shuffled_dictionary_gives_the_same_model(task, dense, tmp_path):
    path, source = dense
    symbols = task.source_dictionary.symbols
    order = [0, 1, 2, 3, *reversed(range(4, len(symbols)))]
    shuffled = copy.deepcopy(source)
    with torch.no_grad():
        shuffled.encoder.embed_tokens.weight.copy_(
            source.encoder.embed_tokens.weight[order]
        )
    folder = tmp_path / "shuffled"
    folder.mkdir()
    save(folder / "dense.pt", shuffled, task)
    lines = "".join(f"{symbols[row]} 1\n" for row in order[4:])
    (folder / "dict.de.txt").write_text(lines)
    ours = build_with(task, folder / "dense.pt").state_dict()
    theirs = build_with(task, path).state_dict()
    assert list(ours) == list(theirs)
    for name in ours:
        if not name.endswith("_float_tensor"):
            assert torch.equal(ours[name], theirs[name]), name


def test_missing_symbols_are_drawn_counted_and_limited(task, dense, tmp_path, caplog):
    path, _ = dense
    larger = translation_task(42, 30)
    with caplog.at_level("INFO"):
        model = build_with(larger, path, mask_keep=0.25)
    assert "found 40 of 42 symbols, 2 missing: w36, w37" in caplog.text
    drawn = frozen_weight(1, "encoder.embed_tokens", shape=(42, WIDTH), keep=0.25)
    frozen = model.encoder.embed_tokens.masked.frozen.weight
    torch.testing.assert_close(frozen[40:], drawn[40:])
    message = refusal(translation_task(60, 30), path)
    assert "lacks 20 of the 60 symbols of the task, more than --embed-missing 0.05" in (
        message
    )
    build_with(translation_task(60, 30), path, embed_missing=0.5)


def refusal(task, path, **flags):
    with pytest.raises(SystemExit) as stop:
        build_with(task, path, **flags)
    message = str(stop.value)
    assert "\n" not in message
    return message


def test_all_embeddings_shared_take_one_matrix(tmp_path):
    joined = translation_task(40, joined=True)
    torch.manual_seed(5)
    source = build_tiny("transformer", joined, share_all_embeddings=True)
    save(tmp_path / "dense.pt", source, joined)
    model = build_with(
        joined,
        tmp_path / "dense.pt",
        share_all_embeddings=True,
        mask_fan="full",
    )
    expected = without_padding(source.encoder.embed_tokens.weight)
    assert torch.equal(model.encoder.embed_tokens.masked.frozen.weight, expected)
    assert model.decoder.embed_tokens is model.encoder.embed_tokens


@pytest.mark.parametrize("header", [True, False], ids=["word2vec", "glove"])
def test_text_files_with_and_without_header_are_read(task, tmp_path, header):
    symbols = [s for s in task.source_dictionary.symbols if not s.startswith("<")]
    vectors = torch.randn(len(symbols), WIDTH)
    lines = [f"{len(symbols)} {WIDTH}"] if header else []
    for symbol, row in zip(symbols, vectors.tolist()):
        lines.append(f"{symbol} {' '.join(map(repr, row))}")
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    model = build_with(
        task, tmp_path / "vectors.txt", mask_fan="full", embed_missing=0.2
    )
    frozen = model.encoder.embed_tokens.masked.frozen.weight
    assert torch.equal(frozen[4:], vectors)


def safetensors(path, **arrays):
    header, data, end = {}, b"", 0
    for name, array in arrays.items():
        content = array.astype(np.float32).tobytes()
        offsets = [end, end + len(content)]
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": offsets}
        data, end = data + content, end + len(content)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_the_matrix_of_a_safetensors_file_is_read(task, tmp_path, caplog):
    matrix = np.random.RandomState(0).randn(40, WIDTH)
    path = safetensors(tmp_path / "one.safetensors", embeddings=matrix)
    model = build_with(task, path, mask_fan="full")
    expected = without_padding(torch.from_numpy(matrix).float())
    assert torch.equal(model.encoder.embed_tokens.masked.frozen.weight, expected)
    assert "its 40 rows are taken in the task's order" in caplog.text


def test_old_checkpoints_language_models_and_roberta_are_read(task, tmp_path):
    matrix = torch.randn(40, WIDTH)
    (tmp_path / "dict.txt").write_text(text_of(task.source_dictionary))
    for name, side in (
        ("decoder.embed_tokens.weight", "encoder"),
        ("encoder.sentence_encoder.embed_tokens.weight", "decoder"),
        ("decoder.embed_out", "decoder"),
    ):
        state = {"args": Namespace(task="any"), "model": {name: matrix.half()}}
        torch.save(state, tmp_path / "old.pt")
        vectors = read_vectors(tmp_path / "old.pt", side)
        assert torch.equal(vectors.matrix, matrix.half().float())
        assert vectors.symbols == task.source_dictionary.symbols


def test_embeddings_are_used_whole_or_trained_when_asked(task, dense):
    path, source = dense
    whole = build_with(task, path, path, mask_embed="dense")
    trained = build_with(task, path, path, mask_train="embed")
    for model, learns in ((whole, False), (trained, True)):
        expected = without_padding(source.decoder.embed_tokens.weight)
        weight = model.decoder.embed_tokens.weight
        assert torch.equal(weight.detach(), expected)
        assert model.decoder.output_projection.weight is weight
        model(**batch())[0].square().sum().backward()
        assert (weight.grad is not None) == learns
    half = whole.half()
    assert half.decoder.output_projection.weight is half.decoder.embed_tokens.weight


def test_embeddings_can_be_trained_from_random_ones(task):
    model = build_tiny(task=task, mask_train="embed")
    drawn = frozen_weight(1, "encoder.embed_tokens", shape=(40, WIDTH))
    assert torch.equal(
        model.encoder.embed_tokens.weight.detach(), without_padding(drawn)
    )


@pytest.mark.parametrize(
    "flags",
    [{}, {"mask_embed": "dense"}, {"mask_train": "embed"}, {"mask_keep": 0.3}],
    ids=["masked", "dense", "trained", "keep 0.3"],
)
def test_a_checkpoint_and_a_ticket_carry_the_embeddings(task, dense, tmp_path, flags):
    path, _ = dense
    model = build_with(task, path, path, **flags).eval()
    state = checkpoint_of(model)
    path.unlink()
    arguments = vars(state["cfg"]["model"])
    assert arguments["embeddings_inside"] is True
    again = build_tiny(task=task, **{k: v for k, v in arguments.items() if k != "arch"})
    again.load_state_dict(state["model"])
    sample = batch()
    with torch.no_grad():
        expected = model(**sample)[0]
        assert torch.equal(again.eval()(**sample)[0], expected)
        ticket = ticket_from_checkpoint(state, dictionaries=dictionaries_of(task))
        assert "dense.pt" not in str(ticket.config)
        write_ticket(ticket, tmp_path / "model.ticket")
        ticket = read_ticket(tmp_path / "model.ticket")
        assert torch.equal(baked_model(ticket)[0](**sample)[0], expected)
        restored = checkpoint_from_ticket(ticket)
        flags_inside = dict(restored["cfg"]["model"])
        names = ("arch", "_name", "task", "data", "source_lang", "target_lang")
        for name in (*names, "left_pad_source"):
            flags_inside.pop(name, None)
        third = build_tiny(task=task, **flags_inside)
        third.load_state_dict(restored["model"])
        assert torch.equal(third.eval()(**sample)[0], expected)


def test_half_precision_halves_the_values_in_a_ticket(task, dense):
    path, _ = dense
    state = checkpoint_of(build_with(task, path, path))
    half = ticket_from_checkpoint(state, embeddings=torch.float16)
    values = half.frozen["encoder.embed_tokens"].values
    assert values.dtype == np.float16
    assert values.shape == (round(0.5 * 40 * WIDTH),)


def test_exported_text_is_read_by_stock_fairseq_to_the_bit(task, dense, tmp_path):
    path, source = dense
    for side, symbols in (
        ("encoder", task.source_dictionary),
        ("decoder", task.target_dictionary),
    ):
        out = tmp_path / f"{side}.txt"
        command = ["embeddings", str(path), "--side", side, "-o", str(out)]
        assert main(command) == 0
        parsed = utils.parse_embedding(str(out))
        matrix = getattr(source, side).embed_tokens.weight
        assert list(parsed) == symbols.symbols
        for row, symbol in enumerate(symbols.symbols):
            assert torch.equal(parsed[symbol], matrix[row])


class Hostile:
    def __reduce__(self):
        return print, ("this code must not run",)


def bad_files(task, path, folder):
    def write(name, content):
        target = folder / name
        (target.write_bytes if isinstance(content, bytes) else target.write_text)(
            content
        )
        return target

    def matrix(name, value, key="encoder.embed_tokens.weight"):
        torch.save({"model": {key: value}}, folder / name)
        return folder / name

    nan = torch.zeros(40, WIDTH)
    nan[7, 3] = float("nan")
    torch.save({"model": Hostile()}, folder / "hostile.pt")
    numbers = " ".join(["1.5"] * WIDTH)
    one = np.zeros((40, WIDTH))
    return {
        "wrong dimension": (
            matrix("narrow.pt", torch.zeros(40, 8)),
            "has embeddings of dimension 8, the model is of 16",
        ),
        "missing file": (folder / "gone.pt", "does not exist"),
        "truncated": (
            write("cut.pt", path.read_bytes()[:3000]),
            "it is damaged, or not a fairseq checkpoint",
        ),
        "ragged": (
            write("ragged.txt", f"a {numbers}\nb 1 2\n"),
            "line 2 of RAGGED has 2 numbers, the others have 16; it may be cut short",
        ),
        "duplicate": (
            write("twice.txt", f"a {numbers}\na {numbers}\n"),
            "has the symbol a of line 1 again",
        ),
        "no number": (write("word.txt", "a 1 x\n"), "line 1 of WORD is not a vector"),
        "nan": (matrix("nan.pt", nan), "'encoder.embed_tokens.weight' has a NaN or"),
        "folder": (folder, "is a folder; give a file of embeddings"),
        "no embeddings": (
            matrix("other.pt", torch.zeros(40, 8), "fc.weight"),
            "has no encoder embeddings; it holds fc.weight",
        ),
        "hostile": (
            folder / "hostile.pt",
            "which is not data: it may run code when read, and was not read; pass"
            " --trust-checkpoint",
        ),
        "rows": (
            matrix("rows.pt", torch.zeros(41, WIDTH)),
            "has 41 rows of embeddings, its dictionary 40 symbols",
        ),
        "two matrices": (
            safetensors(folder / "two.safetensors", a=one, b=one),
            "it has 2 matrices, not one",
        ),
        "cut safetensors": (
            write(
                "cut.safetensors",
                safetensors(folder / "whole.safetensors", a=one).read_bytes()[:-4],
            ),
            "it is cut short",
        ),
        "bytes": (write("bytes.bin", b"\xff\xfe\x00\x01" * 9), "nor text in UTF-8"),
        "empty": (write("empty.txt", ""), "has no embeddings"),
    }


CASES = (
    "wrong dimension,missing file,truncated,ragged,duplicate,no number,nan,folder,"
    "no embeddings,hostile,rows,two matrices,cut safetensors,bytes,empty"
).split(",")


@pytest.mark.parametrize("case", CASES)
def test_bad_files_are_refused_with_a_sentence(case, task, dense, tmp_path, capsys):
    path, expected = bad_files(task, dense[0], tmp_path)[case]
    (tmp_path / "dict.en.txt").unlink()  # one dictionary beside: no doubt which
    message = refusal(task, path)
    assert message.startswith("--encoder-embed-path: ")
    name = expected.split(" of ")[-1].split(" ")[0] if expected[-1].isupper() else ""
    wanted = expected.replace(path.stem.upper(), str(path))
    assert wanted in message, name
    assert "this code must not run" not in capsys.readouterr().out


def test_a_trusted_checkpoint_may_hold_anything(tmp_path):
    torch.save(
        {"model": {"encoder.embed_tokens.weight": torch.ones(3, 2)}, "x": Hostile()},
        tmp_path / "odd.pt",
    )
    with pytest.raises(LotteryError, match="pass --trust-checkpoint"):
        read_vectors(tmp_path / "odd.pt", "encoder")
    assert read_vectors(tmp_path / "odd.pt", "encoder", trust=True).matrix.shape == (
        3,
        2,
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"mask_embed": "dense"}, "--mask-embed dense: no embeddings are imported"),
        ({"embed_dict": "d.txt"}, "--embed-dict: no embeddings are imported"),
        (
            {"mask_embed": "dense", "mask_train": "embed", "encoder_embed_path": "x"},
            "--mask-embed dense fixes the embeddings that --mask-train embed trains",
        ),
        (
            {
                "share_all_embeddings": True,
                "encoder_embed_path": "a",
                "decoder_embed_path": "b",
            },
            "--share-all-embeddings has one matrix for both sides",
        ),
        ({"embed_missing": 2.0}, "--embed-missing is 2.0; give a fraction in [0, 1]"),
    ],
)
def test_flags_of_embeddings_that_contradict_are_refused(task, flags, sentence):
    with pytest.raises(SystemExit) as stop:
        build_tiny(task=task, **flags)
    assert str(stop.value).startswith(sentence)


def test_a_malformed_dictionary_is_named(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("word\n")
    with pytest.raises(LotteryError, match=r"dict\.txt: it cannot be read: 'word'"):
        dictionary_symbols(path)
