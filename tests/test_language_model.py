"""Language models through the real commands: training, tickets, scoring, text."""

import json
import re
import shutil

import ctranslate2
import pytest
import torch
from conftest import USER_DIR
from ctranslate2.converters.fairseq import set_transformer_decoder
from ctranslate2.specs import TransformerDecoderModelSpec
from fairseq.models import ARCH_MODEL_REGISTRY
from test_end_to_end import assert_same_tensors, hydra_train, tensors

from onelayer_lottery import load_language_model
from onelayer_lottery.cli import main
from onelayer_lottery.conversion.to_model import working_model
from onelayer_lottery.runtime.language_model import Sampling
from onelayer_lottery.runtime.positions import sinusoids
from onelayer_lottery.ticket.format import read_ticket, write_ticket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TASK = ("--task", "language_modeling", "--tokens-per-sample", 16)
SIZES = (
    *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 48, "--decoder-layers", 2),
    *("--decoder-attention-heads", 4, "--dropout", 0),
)
TRAINING = (
    *("--optimizer", "adam", "--lr", 3e-3, "--batch-size", 8, "--max-update", 4),
    *("--required-batch-size-multiple", 1, "--num-workers", 0, "--cpu"),
    *("--log-format", "simple", "--log-interval", 1, "--disable-validation"),
)
ONELAYER = ("--arch", "transformer_lm_onelayer_random_tiny", "--mask-preset", "best")
RESERVOIR = ("--arch", "transformer_lm_reservoir_tiny", "--reservoir-layers")
# Name: how it cuts its text, and its model. Every break mode, both engines.
MODELS = {
    "onelayer": ("none", ()),
    "reservoir": ("eos", (*RESERVOIR, "decoder:1", "--reservoir-type", "cnn")),
    "masked": (
        "complete",
        (*RESERVOIR, "decoder:0", "--reservoir-mask", "all", "--add-bos-token"),
    ),
}


class Trained:
    """A trained model: its checkpoint, its ticket, and its loss by fairseq-eval-lm."""

    def __init__(self, fairseq, name):
        breaks, model = MODELS[name]
        self.flags = (*TASK, "--sample-break-mode", breaks)
        if "--add-bos-token" in model:
            self.flags += ("--add-bos-token", "--max-target-positions", 64)
        elif breaks == "eos":
            self.flags += ("--max-target-positions", 40)
        model = [flag for flag in model or ONELAYER if flag != "--add-bos-token"]
        self.fairseq, self.folder = fairseq, fairseq.folder / f"lm-{name}"
        train(fairseq, self.folder, *self.flags, *model)
        self.checkpoint = self.folder / "checkpoint_last.pt"
        self.ticket = self.folder / "model.ticket"
        words = ["ticket", self.checkpoint, self.ticket, "--data", "lm-bin"]
        words[-1] = fairseq.folder / words[-1]
        words += ["--bpe", fairseq.folder / "spm.model"]
        assert main([*map(str, words)]) == 0

    def evaluated(self, path, **options):
        """Bits per symbol and the number of symbols of the validation text."""
        done = self.fairseq.run(
            *("fairseq-eval-lm", "lm-bin", "--path", path, "--gen-subset", "valid"),
            *(*self.flags, "--required-batch-size-multiple", 1, "--cpu"),
            **options,
        )
        bits = re.search(r"Loss \(base 2\): ([\d.]+)", done.log)
        symbols = re.search(r"Evaluated ([\d,]+) tokens", done.log)
        return float(bits[1]), int(symbols[1].replace(",", ""))

    def score(self, ticket, engine, text):
        done = self.fairseq.run(
            *("onelayer-lottery", "score", ticket, "--engine", engine),
            stdin=text,
            user_dir=False,
        )
        return done.out.splitlines()


def train(fairseq, save_dir, *flags, **options):
    words = ("fairseq-train", "lm-bin", "--save-dir", save_dir)
    return fairseq.run(*words, *SIZES, *TRAINING, *flags, **options)


@pytest.fixture(scope="module")
def data(fairseq):
    fairseq.run(
        *("fairseq-preprocess", "--only-source", "--destdir", "lm-bin"),
        *("--trainpref", "train.spm.en", "--validpref", "valid.spm.en"),
        user_dir=False,
    )
    return fairseq


@pytest.fixture(scope="module")
def models(data):
    made = {}

    def model(name):
        if name not in made:
            made[name] = Trained(data, name)
        return made[name]

    return model


@pytest.fixture(scope="module")
def onelayer(models):
    return models("onelayer")


def totals(lines):
    found = re.search(
        r"total: (\d+) lines, (\d+) symbols, (\d+) characters;"
        r" ([\d.]+) bits per symbol, ([\d.]+) bits per character",
        re.sub(r"(?<=\d),(?=\d)", "", lines[-1]),
    )
    return [float(value) for value in found.groups()]


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("onelayer", "ctranslate2"),
        ("onelayer", "fairseq"),
        ("masked", "ctranslate2"),
        ("reservoir", "fairseq"),
    ],
)
def test_score_is_what_fairseq_eval_lm_computes(models, name, engine):
    model = models(name)
    text = (model.fairseq.folder / "valid.en").read_text(encoding="utf-8")
    lines = model.score(model.ticket, engine, text)
    count, symbols, characters, per_symbol, per_character = totals(lines)
    bits, evaluated = model.evaluated(model.checkpoint)
    assert characters == len(text)
    if name != "masked":  # there fairseq counts <s> too, which begins each block
        assert symbols == evaluated
    assert per_symbol == pytest.approx(bits, abs=1.01e-4)
    assert count == len(lines) - 1 == text.count("\n")
    of_lines = [line.split("\t") for line in lines[:-1]]
    assert sum(float(line[0]) for line in of_lines) == pytest.approx(
        per_character * characters, rel=1e-4
    )
    assert sum(int(line[1]) for line in of_lines) == symbols


def test_restored_and_baked_checkpoints_have_the_same_loss(onelayer):
    for command, options in (("restore", {}), ("bake", {"user_dir": False})):
        path = onelayer.folder / f"{command}.pt"
        assert main([command, str(onelayer.ticket), str(path)]) == 0
        found = onelayer.evaluated(path, **options)
        assert found == onelayer.evaluated(onelayer.checkpoint)


def test_both_engines_continue_a_prompt_alike(onelayer):
    texts = {}
    for engine in ("ctranslate2", "fairseq"):
        model = load_language_model(onelayer.ticket, engine=engine)
        texts[engine] = [
            model.continue_text("the dog", symbols=30, seed=seed) for seed in (1, 2)
        ]
    assert texts["ctranslate2"] == texts["fairseq"]
    first, second = texts["fairseq"]
    assert first != second
    assert first.startswith("the dog")


def test_continue_prints_samples_of_each_line(onelayer):
    done = onelayer.fairseq.run(
        *("onelayer-lottery", "continue", onelayer.ticket, "--samples", 2),
        *("--symbols", 3, "--sampling-topk", 5),
        stdin="the man\nthe woman\n",
        user_dir=False,
    )
    parts = done.out.split("---\n")
    assert len(parts) == 4
    assert [part.startswith("the man") for part in parts] == [True] * 2 + [False] * 2


def test_the_greedy_continuation_is_that_of_fairseq_interactive(models):
    model = models("reservoir")
    done = model.fairseq.run(
        *("fairseq-interactive", "lm-bin", "--path", model.checkpoint, *model.flags),
        *("--beam", 1, "--max-len-b", 20, "--cpu"),
        stdin="\u2581the\n",
    )
    theirs = done.lines("H")[0].split("\t")[2].split()
    ours = load_language_model(model.ticket).continue_text(
        "the", symbols=20, sampling=Sampling(topk=1)
    )
    pieces = "".join(theirs).replace("\u2581", " ").strip()
    assert pieces.startswith(ours) or ours.startswith(pieces)


def test_a_folder_of_ctranslate2_is_what_its_own_converter_makes(onelayer, tmp_path):
    """Its parts: the whole one reads no checkpoint of fairseq's language models."""
    words = ["export", onelayer.ticket, tmp_path / "ours", "--to", "ctranslate2"]
    assert main([*map(str, words)]) == 0
    model, task = working_model(read_ticket(onelayer.ticket))
    spec = TransformerDecoderModelSpec.from_config(2, 4)
    with torch.no_grad():
        set_transformer_decoder(
            spec.decoder, model.decoder, with_encoder_attention=False
        )
    # NumPy's sines and torch's differ in the last bit.
    spec.decoder.position_encodings.encodings = sinusoids(16, 32)
    spec.register_vocabulary(task.source_dictionary.symbols)
    spec.validate()
    spec.optimize(quantization=None)
    (tmp_path / "stock").mkdir()
    spec.save(str(tmp_path / "stock"))
    stock, ours = (tmp_path / name / "model.bin" for name in ("stock", "ours"))
    assert stock.read_bytes() == ours.read_bytes()
    assert "A language model" in (tmp_path / "ours" / "README.md").read_text("utf-8")
    engine = ctranslate2.Generator(str(tmp_path / "ours"))
    (found,) = engine.generate_batch([["</s>", "\u2581the"]], max_length=5)
    assert found.sequences[0]


def test_hydra_trains_a_language_model(onelayer):
    text = """
common: {cpu: true, user_dir: USER_DIR, log_format: simple}
task: {_name: language_modeling, data: DATA, tokens_per_sample: 16}
model:
  _name: transformer_lm_onelayer_random_tiny
  mask_preset: best
  decoder_layers: 2
  decoder_embed_dim: 32
  decoder_ffn_embed_dim: 48
criterion: {_name: cross_entropy}
dataset: {batch_size: 8, required_batch_size_multiple: 1, num_workers: 0}
optimization: {max_update: 2, lr: [0.001]}
optimizer: {_name: adam}
lr_scheduler: {_name: fixed}
checkpoint: {save_dir: SAVE}
"""
    text = text.replace("DATA", str(onelayer.fairseq.folder / "lm-bin"))
    text = text.replace("SAVE", str(onelayer.fairseq.folder / "lm-hydra"))
    hydra_train(onelayer.fairseq, text)
    bits, _ = onelayer.evaluated(
        onelayer.fairseq.folder / "lm-hydra" / "checkpoint_last.pt"
    )
    assert bits > 0


def test_embeddings_are_imported_and_a_teacher_is_distilled(onelayer):
    fairseq, dense = onelayer.fairseq, onelayer.fairseq.folder / "lm-dense"
    stock = (
        *("--arch", "transformer_lm", "--share-decoder-input-output-embed"),
        *("--decoder-input-dim", 32, "--decoder-output-dim", 32),
        "--decoder-normalize-before",
    )
    train(fairseq, dense, *TASK, *stock)
    teacher = dense / "checkpoint_last.pt"
    train(
        *(fairseq, fairseq.folder / "lm-student", *TASK, *ONELAYER),
        *("--decoder-embed-path", teacher, "--criterion", "distillation"),
        *("--label-smoothing", 0.1, "--teacher", teacher, "--teacher-weight", 0.5),
    )
    for name in ("lm-student", "lm-dense-start"):
        if name == "lm-dense-start":
            train(
                *(fairseq, fairseq.folder / name, *TASK, *ONELAYER),
                *("--mask-start", teacher),
            )
        folder = fairseq.folder / name
        words = ["ticket", folder / "checkpoint_last.pt", folder / "model.ticket"]
        words += ["--data", fairseq.folder / "lm-bin"]
        assert main([*map(str, words)]) == 0
        assert read_ticket(folder / "model.ticket").masks


def test_averages_of_language_models_become_tickets(onelayer):
    folder = onelayer.folder
    shutil.copyfile(onelayer.checkpoint, folder / "checkpoint1.pt")
    shutil.copyfile(onelayer.checkpoint, folder / "checkpoint2.pt")
    mean = folder / "mean.pt"
    assert main(["average", "--last", "2", str(folder), "-o", str(mean)]) == 0
    assert_same_tensors(tensors(mean), tensors(onelayer.checkpoint))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((*ONELAYER, "--adaptive-input"), "--adaptive-input has embeddings"),
        (
            (*ONELAYER, "--character-embeddings"),
            "--character-embeddings computes embeddings by layers",
        ),
        ((*ONELAYER, "--adaptive-softmax-cutoff", "9"), "--adaptive-softmax-cutoff"),
        (
            (*RESERVOIR, "decoder:0", "--reservoir-type", "bigru"),
            "would look ahead at words that are still to be predicted; give"
            " transformer, ffn or cnn",
        ),
        ((*RESERVOIR, "decoder:0,1"), "leaves no layer to be trained"),
    ],
)
def test_what_cannot_be_masked_is_refused(data, flags, sentence):
    done = train(data, data.folder / "refused", *TASK, *flags, status=None)
    assert done.status != 0
    assert sentence in done.log
    assert "Traceback" not in done.log


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        (("score",), "", "there is no line to score on standard input"),
        (
            ("score",),
            "the @ dog\n",
            "symbols that the model does not know: 'the @ dog'",
        ),
        (("continue", "--prompt", " "), "", "--prompt is empty: give it some words"),
        (("continue",), " \n", "the prompt is empty"),
        (("continue", "--prompt", "a @"), "", "symbols that the model does not know"),
        (("continue", "--symbols", "0"), "", "--symbols 0: give a number from 1 on"),
        (("continue", "--temperature", "0"), "", "--temperature 0.0: give a number"),
        (("translate",), "the dog\n", "of the task language_modeling, not translation"),
        (("page", "-o", "x.html"), "", "a page can only translate; use score or"),
        (("export", "x", "--to", "huggingface"), "", "are not exported to Hugging"),
    ],
)
def test_bad_input_is_answered_by_a_sentence(onelayer, command, text, sentence):
    name, *flags = command
    done = onelayer.fairseq.run(
        *("onelayer-lottery", name, onelayer.ticket, *flags),
        stdin=text,
        user_dir=False,
        status=None,
    )
    assert sentence in done.err
    assert "Traceback" not in done.err
    # A symbol that is not known is scored as <unk>, with a warning.
    assert (done.status == 0) == ("does not know" in sentence)


def test_a_translator_is_not_scored(trained, fairseq, capsys):
    ticket, data = fairseq.folder / "translator.ticket", fairseq.folder / "data-bin"
    checkpoint = trained / "checkpoint_last.pt"
    main(["ticket", str(checkpoint), str(ticket), "--data", str(data), "--force"])
    assert main(["score", str(ticket)]) == 1
    sentence = "is of the task translation, not language_modeling; use translate"
    assert sentence in capsys.readouterr().err


def test_a_line_longer_than_the_model_reads_is_scored_in_parts(models):
    model = models("reservoir")
    said = []
    ours = load_language_model(model.ticket)
    (score,) = ours.score(["the dog sees the cat " * 12], warn=said.append)
    assert score.symbols > 40
    assert re.search(r"line 1 has \d+ symbols, more than the 40 that", said[0])


def test_documents_are_not_scored(onelayer, tmp_path):
    ticket = read_ticket(onelayer.ticket)
    ticket.config["task"]["sample_break_mode"] = "complete_doc"
    write_ticket(ticket, tmp_path / "documents.ticket")
    model = load_language_model(tmp_path / "documents.ticket")
    with pytest.raises(Exception, match="score does not tell apart"):
        model.score(["the dog"])


def test_the_recipe_trains_on_the_characters_of_a_text(tmp_path, fairseq):
    text = (fairseq.folder / "train.en").read_text(encoding="utf-8")
    (tmp_path / "input.txt").write_text(text, encoding="utf-8")
    script = USER_DIR.parent / "examples" / "lm" / "prepare.py"
    out = tmp_path / "data"
    fairseq.run("python", script, tmp_path / "input.txt", "--out", out, user_dir=False)
    halves = [
        (out / "text" / f"{s}.txt").read_text("utf-8") for s in ("train", "valid")
    ]
    assert "".join(halves) == text
    assert len(halves[0]) == pytest.approx(0.9 * len(text), abs=100)
    grid = (USER_DIR.parent / "examples" / "lm" / "grid.yaml").read_text("utf-8")
    head, _ = re.sub(r"(max|total-num)-update: 2000", r"\1-update: 4", grid).split(
        "  transformer: "
    )
    head = head.replace("[1, 2, 3]", "1").replace("[0.3, 0.5, 0.7]", "0.5")
    head = re.sub(r"(embed|input|output)-dim: 128", r"\1-dim: 16", head)
    head = head.replace("updates: 100", "updates: 2")
    (tmp_path / "grid.yaml").write_text(head, encoding="utf-8")
    fairseq.run(
        *("onelayer-lottery", "sweep", tmp_path / "grid.yaml", "--jobs", 1),
        *("--data", out / "data-bin", "--out", tmp_path / "runs"),
        user_dir=False,
    )
    lines = (tmp_path / "runs" / "results.jsonl").read_text("utf-8").splitlines()
    results = [json.loads(line) for line in lines]
    assert [result["status"] for result in results] == ["finished"] * 2
    for result in results:
        assert result["bits_per_character"] == result["bits_per_symbol"]
        assert result["curve"][-1]["nll_loss"] == pytest.approx(
            result["bits_per_symbol"], abs=1e-3
        )


def test_every_architecture_has_the_shape_of_the_translation_one():
    names = [n for n in ARCH_MODEL_REGISTRY if n.startswith("transformer_lm_")]
    for kind in ("onelayer_random", "random", "reservoir"):
        for size in ("tiny", "small", "base"):
            assert f"transformer_lm_{kind}_{size}" in names
