"""The text inside a ticket: raw text in and out, as its training data were made."""

import sys

import pytest
from conftest import ROOT
from test_runtime import run_without, ticket_of

from onelayer_lottery.cli import main
from onelayer_lottery.runtime.translator import Translator
from onelayer_lottery.text.pipeline import (
    describe_text,
    needed_libraries,
    text_pipeline,
)
from onelayer_lottery.ticket.format import (
    Bpe,
    Moses,
    TextSteps,
    TicketError,
    read_ticket,
    write_ticket,
)

sys.path.insert(0, str(ROOT / "examples" / "prepare"))

CODES = b"d e 9\nde r</w> 8\nh u 5\nhu n 4\nhun d</w> 3\n"
STEPS = TextSteps(Moses("de", "en", dashes=False), lower=True)


def with_text(steps=STEPS, *, codes=CODES):
    ticket = ticket_of()
    ticket.text = steps
    ticket.bpe = Bpe("fastbpe", codes) if codes else None
    return ticket


@pytest.mark.parametrize("lower", [True, False])
def test_raw_text_becomes_what_the_recipes_train_on(lower):
    import corpus

    moses = Moses("de", "en", dashes=not lower)
    pipeline = text_pipeline(with_text(TextSteps(moses, lower), codes=b""))
    for line in (
        "Der Hund (ein „Dackel“) schläft & träumt.",
        "Das ist z. B. ein Müller-Wagen, 3,5 % teurer!",
        "<b>  zwei   Wörter</b>\t'",
    ):
        assert pipeline.encode(line) == corpus.moses("de", lower=lower)(line)


def test_a_translation_is_joined_and_detokenised():
    pipeline = text_pipeline(with_text())
    assert pipeline.encode("Der Hund, er ruht.") == "der hund , e@@ r r@@ u@@ h@@ t ."
    words = "it &apos;s a well @-@ kn@@ own dog , isn &apos;t it ?"
    assert pipeline.decode(words) == "it's a well-known dog, isn't it?"


@pytest.mark.parametrize(
    "steps", [STEPS, TextSteps(lower=True), TextSteps(Moses("en", "de", dashes=True))]
)
def test_the_steps_are_written_and_read(tmp_path, steps):
    write_ticket(with_text(steps), tmp_path / "a.ticket")
    assert b'"version":"2"' in (tmp_path / "a.ticket").read_bytes()
    assert read_ticket(tmp_path / "a.ticket").text == steps


def test_a_ticket_without_steps_is_of_the_first_version(tmp_path):
    write_ticket(with_text(None), tmp_path / "a.ticket")
    assert b'"version":"1"' in (tmp_path / "a.ticket").read_bytes()
    assert read_ticket(tmp_path / "a.ticket").text is None


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (TextSteps(), "its text has no step"),
        (TextSteps(lower=1), "its text must have the fields moses, lower"),
        (TextSteps(Moses("../x", "en", dashes=True)), "language '../x' is not a code"),
        (TextSteps(Moses("de", "en", dashes=0)), "text's moses must have the fields"),
        (TextSteps("de"), "its text must have the fields moses, lower"),
    ],
)
def test_steps_that_make_no_sense_are_refused(tmp_path, steps, message):
    with pytest.raises(TicketError, match=message.replace("..", r"\.\.")):
        write_ticket(with_text(steps), tmp_path / "a.ticket")
    assert not list(tmp_path.iterdir())


def test_the_command_records_the_steps(trained, fairseq, tmp_path):
    words = ["ticket", trained / "checkpoint_last.pt", tmp_path / "a.ticket"]
    words += [
        "--data",
        fairseq.folder / "data-bin",
        "--bpe",
        fairseq.folder / "spm.model",
    ]
    assert main([*map(str, words), "--moses", "dashes", "--lower"]) == 0
    ticket = read_ticket(tmp_path / "a.ticket")
    assert ticket.text == TextSteps(Moses("de", "en", dashes=True), lower=True)
    assert needed_libraries(ticket) == ["sacremoses", "sentencepiece"]
    assert "lower case; subwords of sentencepiece" in describe_text(ticket)
    (found,) = Translator(ticket).translate(["Der Hund schläft."], beam=1)
    assert "&apos;" not in found


def test_without_sacremoses_a_sentence_names_it(tmp_path):
    write_ticket(with_text(codes=b""), tmp_path / "a.ticket")
    for command in ("translate", "verify"):
        done = run_without(command, tmp_path / "a.ticket", block=("sacremoses",))
        assert done.returncode == 1
        assert b"is not installed: pip install sacremoses" in done.stderr
    done = run_without("verify", tmp_path / "a.ticket")
    assert b"it needs ctranslate2, sacremoses" in done.stdout
