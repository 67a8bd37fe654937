"""Exports: models of other libraries that compute what the ticket does."""

import json
import os
import subprocess
import venv
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
from stock import build_roberta
from test_roberta import changed
from test_roberta import ticket_of as pairs_ticket
from test_runtime import subword_models, ticket_of

from onelayer_lottery.cli import main
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.exports.ctranslate2_folder import ctranslate2_files
from onelayer_lottery.exports.folder import write_folder
from onelayer_lottery.exports.fsmt import _merges
from onelayer_lottery.exports.huggingface import huggingface_files
from onelayer_lottery.inference.fairseq_classifier import Classifier
from onelayer_lottery.inference.fairseq_translator import Translator
from onelayer_lottery.ticket.format import Bpe, Moses, TextSteps, write_ticket


@pytest.fixture(scope="session")
def subwords(tmp_path_factory):
    return dict(subword_models(tmp_path_factory.mktemp("subwords")))


def with_subwords(ticket, subwords, kind="sentencepiece"):
    ticket.bpe = Bpe(kind, subwords[kind])
    return ticket


@pytest.mark.parametrize("compute", ["float32", "int8"])
def test_a_folder_of_ctranslate2_is_that_of_its_own_converter(tmp_path, compute):
    from ctranslate2.converters import FairseqConverter

    flags = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    ticket = ticket_of(**flags)
    write_ticket(ticket, tmp_path / "a.ticket")
    words = ["export", tmp_path / "a.ticket", tmp_path / "ours", "--to", "ctranslate2"]
    assert main([*map(str, words), "--compute", compute]) == 0
    words = ["export", tmp_path / "a.ticket", tmp_path / "a.pt", "--to", "fairseq"]
    assert main([*map(str, words)]) == 0
    for side, language in (("source", "de"), ("target", "en")):
        (tmp_path / f"dict.{language}.txt").write_text(ticket.dictionaries[side])
    converter = FairseqConverter(str(tmp_path / "a.pt"), str(tmp_path))
    converter.convert(str(tmp_path / "stock"), quantization=compute)
    stock = {path.name: path.read_bytes() for path in (tmp_path / "stock").iterdir()}
    ours = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    if compute == "int8":  # ours rounds to 64 steps, which no CPU sums up wrongly
        assert len(stock.pop("model.bin")) == len(ours["model.bin"])
    assert {name: ours[name] for name in stock} == stock
    assert b"A translator from de to en" in ours["README.md"]
    engine = ctranslate2.Translator(str(tmp_path / "ours"))
    (found,) = engine.translate_batch([["w1", "w2"]], beam_size=2)
    assert found.hypotheses[0]


def test_a_shared_dictionary_is_written_once():
    files = ctranslate2_files(ticket_of(share_all_embeddings=True))
    assert "shared_vocabulary.json" in files


@pytest.mark.parametrize(
    ("files", "flags", "reasons"),
    [
        (
            ctranslate2_files,
            {"activation_fn": "linear", "no_cross_attention": True},
            ["CTranslate2 cannot", "its activation is linear", "not attend to the enc"],
        ),
        (
            huggingface_files,
            {"encoder_normalize_before": True, "layernorm_embedding": True},
            [
                "its subwords of none",
                "it before",
                "does not normalise embeddings",
                "takes raw text by Moses, this model words as they are",
            ],
        ),
    ],
)
def test_all_reasons_of_a_refusal_are_given_at_once(files, flags, reasons):
    with pytest.raises(LotteryError) as error:
        files(ticket_of(**flags))
    for reason in reasons:
        assert reason in str(error.value)


def moses_ticket(steps=None, *, codes=b"h u 5\nhu n 4\nhun d</w> 3\n", **flags):
    """A ticket of German text whose subwords are in its dictionary."""
    ticket = ticket_of(**flags)
    ticket.text = steps or TextSteps(Moses("de", "en", dashes=True))
    kind = "subword_nmt" if codes.startswith(b"#") else "fastbpe"
    ticket.bpe = Bpe(kind, codes)
    words = iter("hund hun@@ d er ruht . , @-@ &quot; E@@ i@@ n H@@ u@@".split())
    named = {}  # by text: a joined dictionary stays one
    for side, text in ticket.dictionaries.items():
        if text not in named:
            named[text] = "".join(
                f"{next(words, line.split()[0])} 1\n" for line in text.splitlines()
            )
        ticket.dictionaries[side] = named[text]
    return ticket


@pytest.mark.parametrize(
    ("steps", "codes", "reasons"),
    [
        (
            TextSteps(Moses("de", "en", dashes=False), lower=True),
            b"a b 1\n",
            ["its training data were not (--moses words)", "lower-cases before it"],
        ),
        (TextSteps(lower=True), b"a b 1\n", ["raw text by Moses, this model lower"]),
        (None, b"#version: 0.1\na b\n", ["version 0.2, its codes not"]),
    ],
)
def test_text_that_fsmt_would_split_otherwise_is_refused(steps, codes, reasons):
    with pytest.raises(LotteryError) as error:
        huggingface_files(moses_ticket(steps, codes=codes))
    for reason in reasons:
        assert reason in str(error.value)


def test_hostile_text_of_an_export_is_refused():
    with pytest.raises(LotteryError, match="fastbpe is not text in UTF-8"):
        huggingface_files(moses_ticket(codes=b"\xff"))
    pairs = pairs_ticket(build_roberta())
    pairs.bpe = Bpe("gpt2", b"no zero byte")
    with pytest.raises(LotteryError, match="gpt2 is not of two files"):
        huggingface_files(pairs)
    pairs.bpe = None
    del pairs.dictionaries["label"]
    with pytest.raises(LotteryError, match="has no dictionary of labels"):
        huggingface_files(pairs)


def test_a_symbol_twice_and_the_shape_are_refused_at_once(subwords):
    ticket = with_subwords(ticket_of(encoder_normalize_before=True), subwords)
    ticket.dictionaries["source"] += "w0 1 #fairseq:overwrite\n"
    with pytest.raises(LotteryError) as error:
        huggingface_files(ticket)
    assert "it before" in str(error.value)
    assert "its dictionary of the source has a symbol twice" in str(error.value)


def test_a_classifier_is_no_folder_of_ctranslate2():
    with pytest.raises(LotteryError, match="it is neither a translator nor"):
        ctranslate2_files(pairs_ticket(build_roberta()))


def test_a_classifier_of_another_layout_is_refused():
    ticket = pairs_ticket(build_roberta(encoder_normalize_before=True))
    ticket.config["task"]["init_token"] = None
    with pytest.raises(LotteryError) as error:
        huggingface_files(ticket)
    assert "encoder_normalize_before True" in str(error.value)
    assert "do not begin with <s>" in str(error.value)


def test_a_folder_is_replaced_only_with_force_and_whole(tmp_path):
    out = tmp_path / "out"
    write_folder(out, {"a": b"1", "b": b"2"})
    with pytest.raises(LotteryError, match="out exists, pass --force to replace it"):
        write_folder(out, {"a": b"3"})
    write_folder(out, {"a": b"3"}, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["a"]
    (tmp_path / "file").write_text("precious")
    with pytest.raises(LotteryError, match="is a file; give the name of a folder"):
        write_folder(tmp_path / "file", {}, force=True)
    with pytest.raises(LotteryError, match=r"cannot write .*: No such file"):
        write_folder(tmp_path / "no" / "out", {"a": b""})


def test_a_folder_survives_ctrl_c_between_its_renames(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_folder(out, {"old": b"old"})
    rename = os.replace

    def stopped(source, target):
        if Path(target) == out and not out.exists() and "old" not in str(source)[-4:]:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_folder(out, {"new": b"new"}, force=True)
    assert (out / "old").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_link_to_a_folder_is_replaced_and_leaves_nothing(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    write_folder(tmp_path / "out", {"new": b"new"}, force=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "real"]
    assert (tmp_path / "out" / "new").is_file()


def test_merges_keep_characters_that_look_like_ends_of_lines():
    codes = "h \x85u 5\nh\x85u \u2028n 4\n".encode()
    assert _merges(Bpe("fastbpe", codes)).decode() == "h \x85u\nh\x85u \u2028n\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "huggingface", "--compute", "int8"), "--compute is for --to ctrans"),
        (("--to", "ctranslate2", "--dtype", "fp16"), "--dtype is for --to fairseq"),
        (("--to", "onnx"), "invalid choice: 'onnx'"),
    ],
)
def test_options_of_another_target_are_misuse(capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        main(["export", "a.ticket", "out", *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


# The real transformers, in an environment that has this one's packages besides.


@pytest.fixture(scope="session")
def transformers(tmp_path_factory):
    """A Python with transformers: ONELAYER_TRANSFORMERS names one, or it is made."""
    given = os.environ.get("ONELAYER_TRANSFORMERS")
    if given:
        return given
    folder = tmp_path_factory.mktemp("transformers")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (library,) = (folder / "lib").glob("python*/site-packages")
    (library / "ours.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "transformers"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        pytest.skip(f"transformers cannot be installed: {done.stderr[-200:]}")
    return str(python)


def run(python, program, folder):
    done = subprocess.run(
        [python, "-c", program],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SHORT = {"max_source_positions": 12, "max_target_positions": 12}

_TRANSLATOR = """
import json, torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model, info = AutoModelForSeq2SeqLM.from_pretrained(".", output_loading_info=True)
assert not any(info.values()), info
tokenizer = AutoTokenizer.from_pretrained(".")
logits, generated = [], []
for source, target in json.load(open("pairs.json")):
    before = torch.tensor([[2, *target]])
    with torch.no_grad():
        # With its cache, FSMT masks no later symbols: it expects them one by one.
        sides = {"input_ids": torch.tensor([source]), "decoder_input_ids": before}
        rows = model(**sides, use_cache=False).logits[0]
    logits.append(rows.log_softmax(-1).tolist())
    generated.append(model.generate(torch.tensor([source]))[0].tolist())
lines = open("lines").read().splitlines()
print(json.dumps([
    type(model).__name__,
    logits,
    generated,
    tokenizer(lines)["input_ids"],
    tokenizer.batch_decode(generated, skip_special_tokens=True),
]))
"""


def check_translator(transformers, folder, ticket, lines):
    """Compare a ticket's folder with fairseq: all but the name of its class."""
    pairs = [([5, 6, 7, 2], [8, 9]), ([10, 2], [11, 12, 13, 2])]
    files = huggingface_files(ticket)
    files["pairs.json"] = json.dumps(pairs).encode()
    files["lines"] = "\n".join(lines).encode()
    write_folder(folder, files)
    name, logits, generated, symbols, text = run(transformers, _TRANSLATOR, folder)
    translator = Translator(ticket)
    for (source, target), rows in zip(pairs, logits):
        before = torch.tensor([[2, *target]])
        with torch.no_grad():
            out = translator.model(
                torch.tensor([source]), torch.tensor([len(source)]), before
            )
        wanted = translator.model.get_normalized_probs(out, log_probs=True)[0]
        assert np.array(rows) == pytest.approx(wanted.numpy(), abs=1e-4)
    found = translator.search([source for source, _ in pairs], beam=5)
    assert [row[1:] for row in generated] == [[*best.symbols, 2] for best in found]
    # A translator cuts lines that its model cannot read, a tokenizer does not.
    most = SHORT["max_source_positions"] - 1
    symbols = [[*row[:-1][:most], row[-1]] for row in symbols]
    assert symbols == [translator.encode(line) for line in lines]
    assert text == [translator._decode(best) for best in found]
    return name


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"mask_train": "norm,bias", "activation_fn": "gelu"},
        {"encoder_learned_pos": True, "decoder_learned_pos": True},
        {"share_decoder_input_output_embed": False, "mask_scale": "row-column"},
        {"share_all_embeddings": True},
    ],
)
def test_marian_computes_what_fairseq_does(transformers, tmp_path, subwords, flags):
    ticket = with_subwords(ticket_of(**SHORT, **flags), subwords)
    name = check_translator(transformers, tmp_path / "out", ticket, ["Ein Hund", "x"])
    assert name == "MarianMTModel"


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"mask_train": "positions", "decoder_learned_pos": True},
        {"share_decoder_input_output_embed": False},
        {"share_all_embeddings": True, "no_token_positional_embeddings": True},
    ],
)
@pytest.mark.parametrize("version", [b"", b"#version: 0.2\n"])
def test_fsmt_computes_what_fairseq_does(transformers, tmp_path, flags, version):
    codes = b"h u 5\nhu n 4\nhun d</w> 3\n"
    if version:
        codes = version + codes.replace(b" 5", b"").replace(b" 4", b"")
        codes = codes.replace(b" 3", b"")
    ticket = moses_ticket(codes=codes, **SHORT, **flags)
    lines = ["Ein hund, er ruht.", 'Der "Hund-Freund" (z. B.) & Co', "hun d hunde"]
    name = check_translator(transformers, tmp_path / "out", ticket, lines)
    assert name == "FSMTForConditionalGeneration"


_ROBERTA = """
import json, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model, info = AutoModelForSequenceClassification.from_pretrained(
    ".", output_loading_info=True
)
assert not any(info.values()), info
tokenizer = AutoTokenizer.from_pretrained(".")
found = []
for first, second in json.load(open("pairs.json")):
    tokens = tokenizer(first, second, return_tensors="pt")
    with torch.no_grad():
        found.append(model(**tokens).logits[0].tolist())
print(json.dumps([found, model.config.id2label]))
"""


@pytest.mark.slow
def test_roberta_computes_what_fairseq_does(transformers, tmp_path, subwords):
    from fairseq.data import Dictionary
    from test_convert import text_of
    from test_roberta import LABELS

    words = Dictionary()
    for number in range(260):
        words.add_symbol(str(number))
    text = text_of(words)
    from stock import sentence_task

    task = sentence_task(len(words) + 1)
    task.source_dictionary = words
    words.add_symbol("<mask>")
    model = changed(build_roberta(task=task, mask_train="positions,head"))
    ticket = pairs_ticket(model, {"source": text, "label": LABELS})
    with_subwords(ticket, subwords, "gpt2")
    pairs = [("ab abab", "an ab"), ("and", "a")]
    files = huggingface_files(ticket)
    files["pairs.json"] = json.dumps(pairs).encode()
    write_folder(tmp_path / "out", files)
    found, labels = run(transformers, _ROBERTA, tmp_path / "out")
    wanted = Classifier(ticket).scores(pairs)
    assert np.array(found) == pytest.approx(wanted, abs=1e-4)
    assert list(labels.values()) == ["no", "yes", "maybe"]
