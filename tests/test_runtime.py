"""The engine without torch and fairseq: the same weights, symbols and translations."""

import contextlib
import copy
import io
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from conftest import ROOT
from fairseq.data import Dictionary, encoders
from stock import build_roberta, translation_task
from test_convert import (
    VARIANTS,
    checkpoint_of,
    dictionaries_of,
    trained_model,
)

import onelayer_lottery
from onelayer_lottery.checkpoint.reading import save_checkpoint
from onelayer_lottery.compat import fast_path_names
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.conversion.ticket_tensors import first_names
from onelayer_lottery.conversion.to_checkpoint import baked_checkpoint
from onelayer_lottery.conversion.to_model import baked_model
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.inference.engines import (
    load_classifier,
    load_language_model,
    load_ticket,
)
from onelayer_lottery.inference.fairseq_classifier import (
    Classifier as FairseqClassifier,
)
from onelayer_lottery.inference.fairseq_translator import (
    Translator as FairseqTranslator,
)
from onelayer_lottery.runtime.classifier import Classifier
from onelayer_lottery.runtime.ctranslate2_model import model_bin
from onelayer_lottery.runtime.translator import Translator
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.text.dictionary import read_symbols
from onelayer_lottery.text.subwords import build_bpe
from onelayer_lottery.ticket.format import Bpe, TicketError, read_ticket, write_ticket

GOLDEN = ROOT / "tests" / "golden" / "0.1.0"
RESERVOIR = {"arch": "transformer_reservoir_tiny", "reservoir_layers": "encoder:1"}
SORTS = {
    **VARIANTS,
    "scale of a tensor": {"mask_scale": "tensor"},
    "norm of embeddings": {"layernorm_embedding": True},
    "no positions": {"no_token_positional_embeddings": True},
    "gelu": {"activation_fn": "gelu"},
    "two widths": {"encoder_embed_dim": 24, "encoder_attention_heads": 4},
    "pre-norm decoder": {"decoder_normalize_before": True},
    "no final norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    "embeddings not scaled": {"no_scale_embedding": True},
    "trained embeddings": {"mask_train": "embed"},
    "reservoirs": RESERVOIR,
    "shared reservoirs": {
        **RESERVOIR,
        "reservoir_layers": "encoder:0,1/decoder:1",
        "mask_share": "layers",
    },
    "masked reservoirs": {**RESERVOIR, "reservoir_mask": "all"},
}


def ticket_of(**flags):
    joined = flags.get("share_all_embeddings", False)
    task = translation_task(40, 40 if joined else 30, joined=joined)
    model = trained_model(task, **flags)
    state = checkpoint_of(model)
    return ticket_from_checkpoint(state, dictionaries=dictionaries_of(task))


def imported(precision):
    return read_ticket(GOLDEN / f"{precision}.ticket")


@pytest.fixture(params=[*SORTS, "imported", "imported-half"])
def ticket(request):
    """A ticket of every sort that CTranslate2 can run."""
    if request.param in SORTS:
        return ticket_of(**SORTS[request.param])
    return imported(request.param)


def test_the_weights_are_those_of_the_baked_model(ticket):
    ours = ticket_model(ticket).weights
    model, _ = baked_model(ticket)
    theirs = set(first_names(model)) - fast_path_names(model)
    assert set(ours) == theirs
    for name in theirs:
        layer, _, key = name.rpartition(".")
        parameter = getattr(model.get_submodule(layer), key)
        assert np.array_equal(ours[name], parameter.detach().numpy()), name


def test_the_probabilities_are_those_of_fairseq(ticket):
    translator = Translator(ticket)
    model, _ = baked_model(ticket)
    chance = np.random.default_rng(1)
    words = [min(len(ticket_model(ticket).source), 40)] * 3
    sources = [
        [*chance.integers(4, w, n).tolist(), 2] for w, n in zip(words, (1, 5, 9))
    ]
    targets = [chance.integers(4, 20, n).tolist() for n in (7, 2, 12)]
    names = translator._names
    found = translator._engine.score_batch(
        [[names[symbol] for symbol in source] for source in sources],
        [[names[symbol] for symbol in target] for target in targets],
    )
    for source, target, result in zip(sources, targets, found):
        before = torch.tensor([[2, *target]])
        with torch.no_grad():
            out = model(torch.tensor([source]), torch.tensor([len(source)]), before)
            rows = model.get_normalized_probs(out, log_probs=True)[0]
        wanted = [float(row[symbol]) for row, symbol in zip(rows, [*target, 2])]
        assert result.log_probs == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("beam", [5, 1])
def test_translations_and_scores_are_those_of_fairseq(trained, fairseq, beam):
    state = torch.load(trained / "checkpoint_last.pt", weights_only=False)
    from onelayer_lottery.conversion.tasks import find_dictionaries

    ticket = ticket_from_checkpoint(
        state, dictionaries=find_dictionaries(state, beside=fairseq.folder / "data-bin")
    )
    lines = (fairseq.folder / "test.spm.de").read_text("utf-8").splitlines()[:10]
    ours, theirs = Translator(ticket), FairseqTranslator(ticket)
    sources = [ours.encode(line) for line in lines]
    found, wanted = (engine.search(sources, beam=beam) for engine in (ours, theirs))
    for result, best in zip(found, wanted):
        assert result.symbols[:199] == best.symbols[:199]
        if len(best.symbols) < 200:  # at the limit, fairseq forces the end
            # Both forbid an empty line, CTranslate2 before the softmax: the same
            # order of lines, with scores that are higher by a constant.
            assert 0 <= result.score - best.score < 0.05


@pytest.mark.parametrize("compute", ["float32", "int8"])
@pytest.mark.parametrize(
    "flags",
    [
        {"mask_train": "norm,bias,positions"},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        {"layernorm_embedding": True, "activation_fn": "gelu"},
        {"share_all_embeddings": True},
    ],
)
def test_the_file_of_ctranslate2_is_that_of_its_own_converter(tmp_path, flags, compute):
    from ctranslate2.converters import FairseqConverter

    learned = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    ticket = ticket_of(**flags, **learned)
    baked = baked_checkpoint(ticket, dtype=torch.float32)
    save_checkpoint(baked, tmp_path / "a.pt", force=False)
    for side, language in (("source", "de"), ("target", "en")):
        (tmp_path / f"dict.{language}.txt").write_text(ticket.dictionaries[side])
    converter = FairseqConverter(str(tmp_path / "a.pt"), str(tmp_path))
    converter.convert(str(tmp_path / "stock"), quantization=compute)
    ours = model_bin(ticket_model(ticket), compute=compute, largest=127)
    assert ours == (tmp_path / "stock" / "model.bin").read_bytes()


def test_sinusoidal_positions_are_fairseqs():
    from fairseq.modules import SinusoidalPositionalEmbedding

    from onelayer_lottery.runtime.positions import sinusoids

    for width in (4, 7, 16):
        table = SinusoidalPositionalEmbedding.get_embedding(66, width, 1)[2:]
        assert sinusoids(64, width) == pytest.approx(table.numpy(), abs=1e-5)


# Sentence pairs


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"pooler_activation_fn": "gelu", "mask_scale": "row"},
        {"encoder_normalize_before": True, "layernorm_embedding": False},
        {"untie_weights_roberta": True, "mask_train": "positions,head"},
    ],
)
def test_scores_of_pairs_are_those_of_fairseq(flags):
    from test_roberta import changed
    from test_roberta import ticket_of as pairs_ticket

    ticket = pairs_ticket(changed(build_roberta(**flags)))
    pairs = [("w1 w2 w3", "w4"), ("w5", "w6 w7 w8 w9 w10"), ("w1", "unknown words")]
    theirs = FairseqClassifier(ticket).scores(pairs)
    assert Classifier(ticket).scores(pairs) == pytest.approx(theirs, abs=1e-4)


# Text


@pytest.mark.parametrize(
    "text",
    [
        "a 5\nb 3\n",
        "a 5\nb 3",
        "",
        "a 5\na 3 #fairseq:overwrite\nb 1\n",
        "two words 5\n 4\n",
        "<pad> 1 #fairseq:overwrite\n",
        "a\u00a0b 5\nc 1\r\n",
    ],
)
def test_a_dictionary_is_read_as_fairseq_reads_it(text):
    theirs = Dictionary()
    theirs.add_from_file(io.StringIO(text))
    ours = read_symbols(text)
    assert ours.words == theirs.symbols
    line = "a b  two words <pad> \u00a0c\ta nothing </s> "
    encoded = theirs.encode_line(line, add_if_not_exist=False, append_eos=False)
    assert ours.encode(line) == encoded.tolist()
    everything = range(len(ours))
    assert ours.decode(everything) == theirs.string(torch.tensor(everything))


@pytest.mark.parametrize("text", ["a\n", "a x\n", "a 1\na 2\n", "\n", "a 1\n\nb 2\n"])
def test_a_dictionary_that_fairseq_refuses_is_refused(text):
    with pytest.raises((RuntimeError, ValueError)):
        Dictionary().add_from_file(io.StringIO(text))
    with pytest.raises(LotteryError, match="it cannot be read"):
        read_symbols(text)


LINES = [
    "Ein Hund schläft.",
    "  two  spaces\tand a tab ",
    "l'été, naïve; 12,345 €!",
    "it's we'll THEY'VE",
    "日本語 と русский \U0001f600",
    "ab" * 300,
]


def subword_models(folder: Path):
    corpus = folder / "corpus"
    corpus.write_text("\n".join(LINES * 30) + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "spm"),
        vocab_size=120,
        model_type="bpe",
        minloglevel=2,
    )
    yield "sentencepiece", (folder / "spm.model").read_bytes()
    yield "fastbpe", b"a b 9\nab ab 8\nu n 5\nun d</w> 3\n"
    yield "subword_nmt", b"#version: 0.2\na b\nab ab\nu n\nun d</w>\n"
    from onelayer_lottery.text.byte_level import _letters

    letters = _letters()
    merges = ["a b", "ab ab", "Ġ a", "n d"]
    symbols = [*letters, *(merge.replace(" ", "") for merge in merges)]
    import json

    vocabulary = json.dumps({symbol: n for n, symbol in enumerate(symbols)})
    text = "\n".join(["#version: 0.2", *merges, ""])
    yield "gpt2", vocabulary.encode() + b"\0" + text.encode()


def test_subwords_are_those_of_fairseqs_encoders(tmp_path):
    for kind, content in subword_models(tmp_path):
        parts = content.split(b"\0", 1) if kind == "gpt2" else [content]
        flags = {
            "sentencepiece": ["sentencepiece_model"],
            "gpt2": ["gpt2_encoder_json", "gpt2_vocab_bpe"],
        }.get(kind, ["bpe_codes"])
        for flag, part in zip(flags, parts):
            (tmp_path / flag).write_bytes(part)
        paths = {flag: str(tmp_path / flag) for flag in flags}
        theirs = encoders.build_bpe(Namespace(bpe=kind, **paths))
        ours = build_bpe(Bpe(kind, content))
        for line in LINES:
            encoded = ours.encode(line)
            assert encoded == theirs.encode(line), kind
            assert ours.decode(encoded) == theirs.decode(encoded), kind
        if kind == "gpt2":
            assert ours.decode("<unk> 5") == theirs.decode("<unk> 5")


def test_a_word_of_a_megabyte_takes_no_time(tmp_path):
    for kind, content in subword_models(tmp_path):
        encoded = build_bpe(Bpe(kind, content)).encode("ab" * 500_000)
        assert len(encoded.split()) > 1000, kind


# Without torch and fairseq


def run_without(*words, stdin=b"", block=("torch", "fairseq")):
    """The command line in a process in which some libraries cannot be imported."""
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({block!r}))\n"
        "from onelayer_lottery.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        input=stdin,
        capture_output=True,
        check=False,
    )


def test_commands_run_without_torch_and_fairseq(tmp_path):
    text = b"die w1 .\n\nw2\n"
    done = run_without("translate", GOLDEN / "plain.ticket", "--beam", 2, stdin=text)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().split("\n")
    assert len(lines) == 4
    assert [bool(line) for line in lines] == [True, False, True, False]
    done = run_without("classify", GOLDEN / "roberta.ticket", stdin=b"w1\tw2\n")
    assert done.returncode == 0, done.stderr
    label, probability = done.stdout.decode().split("\t")
    assert label in "012"
    assert 0 < float(probability) <= 1
    for command in ("inspect", "verify"):
        done = run_without(command, GOLDEN / "plain.ticket")
        assert done.returncode == 0, done.stderr


def test_a_model_that_ctranslate2_cannot_run_falls_back_with_a_sentence():
    said = []
    translator = load_ticket(GOLDEN / "reservoir-ffn.ticket", warn=said.append)
    assert type(translator) is FairseqTranslator
    assert said == [
        "CTranslate2 cannot run this model: its reservoirs are of type ffn; using"
        " fairseq"
    ]
    ticket = GOLDEN / "reservoir-ffn.ticket"
    with pytest.raises(LotteryError, match="type ffn; give --engine fairseq"):
        load_ticket(ticket, engine="ctranslate2")
    done = run_without("translate", ticket)
    assert done.returncode == 1
    assert b"this needs torch and fairseq, not installed here" in done.stderr


@pytest.mark.parametrize(
    ("block", "words", "message"),
    [
        (
            ("ctranslate2",),
            ("--engine", "ctranslate2"),
            "ctranslate2 is not installed: pip install onelayer_lottery[runtime]",
        ),
        (
            ("ctranslate2",),
            ("--compute", "int8"),
            "ctranslate2 is not installed: pip install onelayer_lottery[runtime]",
        ),
        (
            ("ctranslate2", "torch", "fairseq"),
            (),
            "without them ctranslate2: pip install onelayer_lottery[runtime]",
        ),
        ((), ("--engine", "fairseq", "--compute", "int8"), "--compute int8 is CTransl"),
    ],
)
def test_a_missing_library_is_named_with_the_way_to_install_it(block, words, message):
    done = run_without("translate", GOLDEN / "plain.ticket", *words, block=block)
    assert done.returncode == 1
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("export", "TICKET", "OUT", "--to", "fairseq"), "torch"),
        (("bake", "TICKET", "OUT"), "torch"),
        (("restore", "TICKET", "OUT"), "torch"),
        (("ticket", "TICKET", "OUT"), "torch"),
        (("average", "OUT", "-o", "OUT"), "torch"),
        (("embeddings", "OUT", "--side", "encoder", "-o", "OUT"), "torch"),
        (("flags",), "fairseq"),
        (("sweep", "OUT", "--out", "OUT"), "fairseq"),
    ],
)
def test_commands_that_need_torch_or_fairseq_say_so(tmp_path, words, missing):
    places = {"TICKET": GOLDEN / "plain.ticket", "OUT": tmp_path / "out"}
    done = run_without(*(places.get(word, word) for word in words))
    assert done.returncode == 1
    said = f"needs {missing}, not installed here: README.md says how, under Install"
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_missing_subword_library_is_named(tmp_path):
    ticket = ticket_of()
    ticket.bpe = dict(subword_models(tmp_path))["sentencepiece"]
    ticket.bpe = Bpe("sentencepiece", ticket.bpe)
    write_ticket(ticket, tmp_path / "a.ticket")
    done = run_without(
        "translate", tmp_path / "a.ticket", block=("torch", "fairseq", "sentencepiece")
    )
    assert done.returncode == 1
    assert b"not installed: pip install sentencepiece" in done.stderr


@pytest.mark.parametrize(
    ("flag", "value", "most"),
    [
        ("--threads", "-1", 1024),
        ("--threads", "100000", 1024),  # CTranslate2 would crash
        ("--batch-size", "-2", 1_000_000),
        ("--batch-size", "99999999999999999999", 1_000_000),
        ("--beam", "0", 1000),
        ("--beam", "1000000", 1000),  # CTranslate2 would not end
    ],
)
def test_numbers_that_make_no_sense_are_misuse(flag, value, most):
    done = run_without("translate", GOLDEN / "plain.ticket", flag, value)
    assert done.returncode == 2
    said = f"{flag} {value}: give a number from 1 to {most}"
    assert said.encode() in done.stderr


def test_numbers_that_make_no_sense_are_refused_in_python_too():
    path = GOLDEN / "plain.ticket"
    for load in (load_ticket, load_classifier, load_language_model):
        with pytest.raises(LotteryError, match="threads is 100000: give a number from"):
            load(path, threads=100_000)
    with pytest.raises(LotteryError, match="batch is -1: give a number from 1 to"):
        load_ticket(path, batch=-1)
    translator = load_ticket(path)
    for beam in (0, 1001, 2.5):
        with pytest.raises(LotteryError, match=f"beam is {beam}: give a number"):
            translator.translate(["a"], beam=beam)


# Bad input


def test_invalid_text_is_reported_with_its_line_and_the_rest_is_translated():
    text = b"w1\n\xff w2\nw3\n"
    done = run_without("translate", GOLDEN / "plain.ticket", "--beam", 1, stdin=text)
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 3
    assert b"line 2 is not text in UTF-8 at its byte 1" in done.stderr


def test_a_line_of_a_megabyte_is_cut_with_a_warning():
    text = b"w1 " * 350_000 + b"\nw2\n"
    done = run_without("translate", GOLDEN / "plain.ticket", "--beam", 1, stdin=text)
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 2
    assert b"a line of 350001 symbols is longer than the 1024" in done.stderr


def test_padding_and_ends_of_sentences_in_the_text_are_as_in_fairseq():
    ticket = ticket_of(max_target_positions=12)
    lines = ["w1 <pad> w2 </s>", "<pad>", "</s> </s>", "w1 w2 </s>"]
    ours, (_, dictionaries) = Translator(ticket), baked_model(ticket)
    for line in lines:
        wanted = dictionaries.source_dictionary.encode_line(
            line, add_if_not_exist=False
        ).tolist()
        assert ours.encode(line) == [symbol for symbol in wanted if symbol != 1]


@pytest.mark.parametrize("value", [3e38, 1e20, -1e38])
@pytest.mark.parametrize("part", ["scales", "norm.weight", "bias"])
def test_weights_that_overflow_end_with_a_sentence(value, part):
    flags = {"mask_scale": "row", "mask_train": "norm,bias"}
    ticket = ticket_of(**flags, max_target_positions=12)
    for name in ticket.dense:
        if part in name:
            ticket.dense[name] = np.full_like(ticket.dense[name], value)
    # CTranslate2 4.5, the last for Python 3.8, translates some of them.
    survives = value == 1e20 and sys.version_info < (3, 9)
    breaks = pytest.raises(LotteryError, match=r"breaks down|32 bits cannot hold")
    with contextlib.suppress(LotteryError) if survives else breaks:
        Translator(ticket).translate(["w1 w2"])


def hostile(change):
    ticket = copy.deepcopy(ticket_of(mask_scale="row", mask_train="norm,bias"))
    change(ticket)
    return ticket


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.masks.pop("encoder.layers.1.fc1"), "no mask or weight for enc"),
        (
            lambda t: t.masks.update({"x.y": t.masks["encoder.layers.1.fc1"]}),
            "has a mask for x.y, which its architecture",
        ),
        (
            lambda t: t.dense.update({"x.weight": np.ones(3, np.float32)}),
            "has x.weight, which its model does not",
        ),
        (
            lambda t: t.dense.update(
                {"encoder.layers.0.fc1.bias": np.ones(3, np.float32)}
            ),
            r"fc1.bias has the shape \(3,\), its architecture asks for \(32,\)",
        ),
        (
            lambda t: t.dense.update(
                {"encoder.layers.0.fc1.masked.scales.0": np.ones((3, 1), np.float32)}
            ),
            r"scale of encoder.layers.0.fc1 has the shape \(3, 1\)",
        ),
        (
            lambda t: t.tied.update({"encoder.x": "encoder.embed_tokens"}),
            "ties encoder.x to encoder.embed_tokens, its model does not",
        ),
        (
            lambda t: t.config["model"].pop("encoder_layers"),
            "does not say its encoder_layers",
        ),
        (
            lambda t: t.config.update(arch="transformer_other"),
            "architecture transformer_other is not known here",
        ),
        (
            lambda t: t.dictionaries.update(source="w0 1\nw0 1\n"),
            "dictionary of its source: it cannot be read: it has 'w0' twice",
        ),
        (
            lambda t: t.dictionaries.update(source="w0 1\n"),
            "its architecture and dictionaries ask for",
        ),
        (lambda t: t.dictionaries.pop("target"), "no dictionary of its target"),
        (
            lambda t: setattr(next(iter(t.frozen.values())), "digest", "0" * 64),
            "drawn here differ from the ticket's",
        ),
        (lambda t: setattr(t, "stream", 0), "are of stream 0, this version draws"),
        (
            lambda t: t.config["task"].update(_name="masked_lm"),
            "contradicts itself: a transformer for masked_lm",
        ),
    ],
)
def test_a_ticket_that_contradicts_itself_is_refused(change, message):
    with pytest.raises(TicketError, match=message):
        Translator(hostile(change))


def test_a_changed_reservoir_is_noticed():
    ticket = ticket_of(**RESERVOIR)
    ticket.config["model"]["mask_gain"] = 2.0
    with pytest.raises(TicketError, match="reservoirs drawn here differ from those"):
        Translator(ticket)


def test_load_ticket_takes_ctranslate2_by_default():
    translator = onelayer_lottery.load_ticket(GOLDEN / "plain.ticket")
    assert type(translator) is Translator
    assert translator.translate(["", "die"], beam=1)[0] == ""
    with pytest.raises(LotteryError, match="engine is torch; give one of auto, ctrans"):
        onelayer_lottery.load_ticket(GOLDEN / "plain.ticket", engine="torch")


def test_int8_gives_almost_the_probabilities_of_float32():
    ticket = ticket_of(mask_init="signed-constant", mask_scale="row")
    found = []
    for compute in ("float32", "int8"):
        engine = Translator(ticket, compute=compute)._engine
        (result,) = engine.score_batch([["4", "5", "</s>"]], [["6", "7"]])
        found.append(result.log_probs)
    assert found[1] == pytest.approx(found[0], abs=0.1)
    assert found[1] != found[0]
