"""Sentence pairs end to end: the scripts of examples/glue and the real commands."""

import json
import os
import random
import re
import subprocess
import zipfile
from pathlib import Path
from typing import NamedTuple

import grammar
import pytest
from conftest import ROOT, USER_DIR, Fairseq
from warm import warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GLUE = ROOT / "examples" / "glue"
SMALL = """
    --encoder-embed-dim 32 --encoder-ffn-embed-dim 48 --encoder-attention-heads 2
    --encoder-layers 2 --log-format simple --log-interval 1
""".split()


def script(name, *words, status=0, stdin=None, **variables):
    program = ["bash", GLUE / name] if name.endswith(".sh") else [warm("python")]
    program += [] if name.endswith(".sh") else [GLUE / name]
    path = os.pathsep.join([str(warm("python").parent), os.environ["PATH"]])
    done = subprocess.run(
        [*map(str, program), *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        input=stdin,
        env={
            **os.environ,
            **{"OMP_NUM_THREADS": "1", "PATH": path, "PYTHONPATH": str(ROOT)},
            **{"PYTHON": str(warm("python")), **variables},
        },
        timeout=500,
        check=False,
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-3000:]
    assert status == 0 or "Traceback" not in done.stderr
    return done


def lottery(*words, status=0, stdin=None):
    done = subprocess.run(
        [str(warm("python")), "-m", "onelayer_lottery.cli", *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        input=stdin,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def pairs(count, labels=("0", "1")):
    """Rows: the last label for a sentence with itself, others for two sentences."""
    sentences = [pair[1] for pair in grammar.sentence_pairs(count + 1, seed=7)]
    draw = random.Random(1)
    rows = []
    for first, other in zip(sentences, sentences[1:]):
        label = draw.choice(labels)
        rows.append((label, first, first if label == labels[-1] else other))
    return rows


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def prepare(task, source, out, *flags, **options):
    sized = [] if "--bpe" in flags else ["--subwords", 200]
    return script(
        "prepare.sh", task, "--source", source, "--out", out, *sized, *flags, **options
    )


class Trained(NamedTuple):
    folder: Path
    fairseq: Fairseq
    data: Path  # data-bin
    log: str
    rows: list  # of the validation data

    @property
    def checkpoint(self):
        return self.folder / "model" / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    """QQP from TSV without a header: prepared, trained for six updates."""
    folder = tmp_path_factory.mktemp("glue")
    rows = pairs(260)
    write(folder / "tsv" / "train.tsv", rows[:200])
    write(folder / "tsv" / "dev.tsv", rows[200:])
    short = ["--max-positions", 64, "--long", "cut", "--sentences"]
    prepare("QQP", folder / "tsv", folder / "QQP", *short)
    data = folder / "QQP" / "data-bin"
    log = train("QQP", data, folder / "model")
    return Trained(folder, Fairseq(folder), data, log, rows[200:])


def train(task, data, save_dir, *flags, updates=6, arch="roberta_onelayer_random_tiny"):
    done = script(
        *("train.sh", task, data, save_dir, *SMALL, *flags),
        **{"UPDATES": str(updates), "WARMUP": "2", "LR": "1e-3", "POSITIONS": "64"},
        ARCH=arch,
    )
    return done.stdout + done.stderr


def sums(path):
    from onelayer_lottery.checkpoint.reading import load_checkpoint

    return load_checkpoint(path)["model"]


def test_head_and_positions_are_trained_and_the_rest_is_masked(trained):
    found = re.findall(r"\| planted (.*)", trained.log)
    assert found[0].endswith("|train:positions,head")
    assert re.match(r"classification_heads\S+\.0 masks .* 1,122 values", found[1])


def test_training_goes_on_where_it_was_stopped(trained):
    import torch

    # The schedule is that of six updates; the flag at the end stops after three.
    folder = trained.folder / "again"
    train("QQP", trained.data, folder, "--max-update", 3)
    log = train("QQP", trained.data, folder)
    assert "Loaded checkpoint" in log
    whole, parts = sums(trained.checkpoint), sums(folder / "checkpoint_last.pt")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.fixture(scope="module")
def ticket(trained):
    path = trained.folder / "model.ticket"
    bpe = trained.folder / "QQP" / "subwords" / "spm.model"
    said = lottery("ticket", trained.checkpoint, path, "--bpe", bpe).stdout
    assert "14 masks, 50.0% of" in said
    return path


VALIDATE = """
    --task sentence_prediction --criterion sentence_prediction --num-classes 2
    --init-token 0 --separator-token 2 --max-positions 64 --valid-subset valid
    --batch-size 30 --required-batch-size-multiple 1 --num-workers 0 --cpu
""".split()


def test_ticket_restored_and_baked_model_agree_with_the_checkpoint(trained, ticket):
    restored, baked = trained.folder / "restored.pt", trained.folder / "baked.pt"
    lottery("restore", ticket, restored)
    assert "roberta_base, fp32" in lottery("bake", ticket, baked).stdout
    reports = [
        json.loads(script("evaluate.py", path, trained.data, "--json").stdout)
        for path in (trained.checkpoint, ticket, restored, baked)
    ]
    assert all(report == reports[0] for report in reports)
    right = reports[0]["valid"]["right"]
    # Stock fairseq, which has never heard of this package.
    done = trained.fairseq.run(
        *("fairseq-validate", trained.data, "--path", baked, *VALIDATE), user_dir=False
    )
    found = float(re.search(r"\| accuracy ([\d.]+)", done.log).group(1))
    assert found == pytest.approx(100 * right / 60, abs=0.06)


def test_classify_prints_label_and_probability_of_each_pair(trained, ticket):
    lines = "".join(f"{first}\t{second}\n" for _, first, second in trained.rows)
    done = lottery("classify", ticket, stdin=lines)
    found = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(found) == 60
    assert all(label in "01" and 0.5 <= float(p) <= 1 for label, p in found)
    right = sum(label == row[0] for (label, _), row in zip(found, trained.rows))
    report = json.loads(script("evaluate.py", ticket, trained.data, "--json").stdout)
    assert report["valid"]["right"] == right


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one sentence", "line 2 has 1 columns; give two sentences separated by a tab"),
        ("a\tb\tc", "line 2 has 3 columns; give two sentences"),
        ("a\t ", "sentence 2 of line 2 is empty"),
    ],
)
def test_classify_refuses_a_bad_line(ticket, line, message):
    done = lottery("classify", ticket, stdin=f"a dog\ta cat\n{line}\n", status=1)
    assert message in done.stderr


def test_classify_cuts_too_long_a_pair_and_says_so(ticket):
    done = lottery("classify", ticket, stdin=f"{'a dog ' * 60}\ta cat\n")
    assert "is longer than the 64 that the model reads" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_a_ticket_of_pairs_does_not_translate(ticket):
    done = lottery("translate", ticket, stdin="a\n", status=1)
    assert "is of the task sentence_prediction, not translation; use classify" in (
        done.stderr
    )


def test_inspect_shows_ticket_and_checkpoint(trained, ticket):
    for path in (ticket, trained.checkpoint):
        done = lottery("inspect", path)
        assert "encoder.sentence_encoder.layers.*.self_attn.out_proj " in done.stdout
        assert "14 masks keep" in done.stdout


def test_the_checkpoint_is_averaged(trained):
    mean = trained.folder / "mean.pt"
    lottery("average", trained.checkpoint, trained.checkpoint, "-o", mean)
    script("evaluate.py", mean, trained.data)


def test_the_embeddings_of_a_dense_roberta_are_imported(trained):
    dense = trained.folder / "dense" / "checkpoint_last.pt"
    train("QQP", trained.data, dense.parent, arch="roberta", updates=1)
    log = train(
        *("QQP", trained.data, trained.folder / "imported"),
        *("--encoder-embed-path", dense),
        updates=1,
    )
    assert re.search(r"found (\d+) of \1 symbols, 0 missing", log)
    assert "found 66 of 66 positions" in log


def test_a_model_trained_on_masked_words_is_a_start_for_both(trained):
    sentences = trained.folder / "QQP" / "sentences"
    save = trained.folder / "pretrained"
    script("pretrain.sh", sentences, save, *SMALL, UPDATES="3", WARMUP="1")
    assert (save / "dict.txt").read_bytes() == (sentences / "dict.txt").read_bytes()
    path = save / "checkpoint_best.pt"
    train(
        *("QQP", trained.data, trained.folder / "tuned"),
        *("--finetune-from-model", path),
        arch="roberta",
        updates=1,
    )
    tuned = sums(trained.folder / "tuned" / "checkpoint_last.pt")
    name = "encoder.sentence_encoder.embed_tokens.weight"
    apart = (tuned[name] - sums(path)[name]).abs().max()
    assert apart <= 1.01e-3  # one update at 1e-3 from there, and not a new draw
    log = train(
        *("QQP", trained.data, trained.folder / "from-pretrained"),
        *("--encoder-embed-path", path),
        updates=1,
    )
    assert re.search(r"found (\d+) of \1 symbols, 0 missing", log)
    done = script("pretrain.sh", trained.folder, save, status=1)
    assert "dict.txt is missing: make" in done.stderr


def test_a_regression_trains_and_is_evaluated(trained):
    folder = trained.folder / "regression"
    rows = [(str(len(first) / 50), first, second) for _, first, second in pairs(80)]
    write(folder / "tsv" / "train.tsv", rows[:60])
    write(folder / "tsv" / "dev.tsv", rows[60:])
    short = ["--max-positions", 64, "--long", "cut"]
    prepare("STS-B", folder / "tsv", folder, "--regression", *short)
    train("STS-B", folder / "data-bin", folder / "model", updates=2)
    path = folder / "model" / "checkpoint_last.pt"
    done = script("evaluate.py", path, folder / "data-bin")
    assert re.search(r"valid: Pearson's r -?[\d.]+, mean squared error", done.stdout)
    lottery("ticket", path, folder / "model.ticket")
    said = lottery("classify", folder / "model.ticket", stdin="a\tb\n").stdout
    assert re.fullmatch(r"-?\d+\.\d{4}\n", said)
    done = script("evaluate.py", trained.checkpoint, folder / "data-bin", status=1)
    assert "is of a regression, " in done.stderr
    assert "was trained for classes" in done.stderr


@pytest.mark.parametrize("mode", ["eos", "complete"])
def test_masked_words_train_and_become_a_ticket(trained, mode):
    pieces, data = trained.folder / "QQP" / "pieces", trained.folder / "words"
    if not data.exists():
        trained.fairseq.run(
            *("fairseq-preprocess", "--only-source", "--destdir", data),
            *("--trainpref", pieces / "train.input0"),
            *("--validpref", pieces / "valid.input0"),
            user_dir=False,
        )
    save = trained.folder / f"words-{mode}"
    trained.fairseq.run(
        *("fairseq-train", data, "--save-dir", save, "--task", "masked_lm"),
        *("--criterion", "masked_lm", "--arch", "roberta_onelayer_random_tiny"),
        *("--tokens-per-sample", 64, "--sample-break-mode", mode, *SMALL),
        *("--optimizer", "adam", "--lr", 1e-3, "--batch-size", 16, "--max-update", 2),
        *("--required-batch-size-multiple", 1, "--num-workers", 0, "--cpu"),
    )
    if mode == "eos":  # stock fairseq cannot read that with NumPy 2
        return
    made, baked = save / "model.ticket", save / "baked.pt"
    lottery("ticket", save / "checkpoint_last.pt", made)
    lottery("bake", made, baked)
    done = trained.fairseq.run(
        *("fairseq-validate", data, "--path", baked, "--task", "masked_lm"),
        *("--criterion", "masked_lm", "--batch-size", 16, "--num-workers", 0, "--cpu"),
        *("--required-batch-size-multiple", 1),
        user_dir=False,
    )
    assert re.search(r"valid on 'valid' subset \| loss \d", done.log)
    said = lottery("classify", made, stdin="a\tb\n", status=1).stderr
    assert "is of the task masked_lm, not sentence_prediction" in said


# Preparation


def test_glue_archives_are_read_by_their_headers(tmp_path):
    labels = ("contradiction", "neutral", "entailment")
    rows = pairs(90, labels)
    header = "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"

    def content(chosen):
        lines = (f"{n}\tx\t{s}\t{t}\t-\t{g}\n" for n, (g, s, t) in enumerate(chosen))
        return header + "".join(lines)

    source = tmp_path / "MNLI.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("MNLI/train.tsv", content(rows[:60]))
        archive.writestr("MNLI/dev_matched.tsv", content(rows[60:75]))
        archive.writestr("MNLI/dev_mismatched.tsv", content(rows[75:]) + "7\tcut\n")
        archive.writestr("MNLI/original/train.tsv", "other")
        unlabelled = "index\tsentence1\tsentence2\n0\ta\tb\n"
        archive.writestr("MNLI/test.tsv", unlabelled)
    done = prepare("MNLI", source, tmp_path / "out", status=1)
    assert "line 17 of MNLI/dev_mismatched.tsv has 2 columns, expected 6" in done.stderr
    flags = ["--skip-bad", "--max-positions", 64, "--long", "cut"]
    done = prepare("MNLI", source, tmp_path / "out", *flags)
    assert "left out 1 bad rows" in done.stderr
    assert "test.tsv has no labels: it is left out" in done.stderr
    assert "valid1: 15 pairs" in done.stdout
    data = tmp_path / "out" / "data-bin"
    train("MNLI", data, tmp_path / "model", updates=1)
    checkpoint = tmp_path / "model" / "checkpoint_last.pt"
    said = script("evaluate.py", checkpoint, data).stdout
    for name in ("matched (valid): accuracy", "mismatched (valid1): acc", *labels):
        assert name in said
    labels = (data / "label" / "dict.txt").read_text()
    (data / "label" / "dict.txt").write_text(labels.split("\n")[0] + "\n")
    done = script("evaluate.py", checkpoint, data, status=1)
    assert "dict.txt has 1 classes, " in done.stderr
    (data / "label" / "dict.txt").unlink()
    done = script("evaluate.py", checkpoint, data, status=1)
    assert f"the label dictionary {data / 'label' / 'dict.txt'} is missing" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        ("1\tone sentence", [], "line 3 of {0} has 2 columns, expected 3 (label, sent"),
        ("maybe\ta\tb", [], "line 3 of {0} has the unknown label 'maybe'; known are 0"),
        ("1\ta\t ", [], "line 3 of {0}: sentence 2 is empty; mend it, or leave such"),
        ("\ta\tb", [], "line 3 of {0}: the label is empty"),
        (
            "1\t" + "x y " * 40 + "\tb",
            ["--max-positions", "40"],
            "symbols, more than --max-positions 40; raise it, or pass --long cut",
        ),
        ("x\ta\tb", ["--regression"], "the label 'x' is not a number, as --regression"),
        ("1\ta\tb", ["--columns", "1,2"], "--columns 1,2: give three, as LABEL,S1,S2"),
        ("1\ta\tb", ["--columns", "1,2,9"], "--columns 1,2,9: {0} has 3 columns"),
        ("1\ta\tb", ["--columns", "a,b,c"], "{0} has no column a, b, c; its header is"),
        ("1\ta\tb", ["--bpe", "gpt2"], "--bpe gpt2 needs encoder.json, vocab.bpe"),
    ],
)
def test_bad_rows_and_flags_are_refused_with_a_sentence(line, flags, message, tmp_path):
    rows = pairs(60)
    write(tmp_path / "tsv" / "dev.tsv", rows[40:])
    path = tmp_path / "tsv" / "train.tsv"
    write(path, [*rows[:2], tuple(line.split("\t")), *rows[2:40]])
    done = prepare("QQP", tmp_path / "tsv", tmp_path / "out", *flags, status=1)
    assert message.format(path) in done.stderr
    assert len(done.stderr.strip().splitlines()[-1]) < 400


def test_the_subwords_of_gpt2_are_used_with_their_dictionary(tmp_path):
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    files = tmp_path / "gpt2"
    files.mkdir()
    letters = {letter: n for n, letter in enumerate(bytes_to_unicode().values())}
    (files / "encoder.json").write_text(json.dumps(letters))
    (files / "vocab.bpe").write_text("#version: 0.2\n")
    (files / "dict.txt").write_text("".join(f"{n} 1\n" for n in range(256)))
    rows = pairs(12)
    write(tmp_path / "tsv" / "train.tsv", rows[:8])
    write(tmp_path / "tsv" / "dev.tsv", rows[8:])
    flags = ["--bpe", "gpt2", "--gpt2-files", files]
    done = prepare("QQP", tmp_path / "tsv", tmp_path / "out", *flags)
    assert "data-bin: QQP, gpt2" in done.stdout
    found = (tmp_path / "out" / "data-bin" / "input1" / "dict.txt").read_text()
    assert found == (files / "dict.txt").read_text()
    pieces = (tmp_path / "out" / "pieces" / "train.input0").read_text().split("\n")[0]
    assert len(pieces.split()) == len(rows[0][1].encode())


def test_files_that_are_missing_or_odd_are_refused(tmp_path):
    source, out = tmp_path / "tsv", tmp_path / "out"
    done = prepare("QQP", source, out, status=1)
    assert "is neither a folder nor a zip archive" in done.stderr
    source.mkdir()
    done = prepare("QQP", source, out, status=1)
    assert "has no train.tsv; give the folder or the zip archive" in done.stderr
    (source / "train.tsv").write_text("")
    done = prepare("QQP", source, out, status=1)
    assert "train.tsv is empty" in done.stderr
    (source / "train.tsv").write_text("a\tb\n")
    done = prepare("QQP", source, out, status=1)
    assert "line 1 of" in done.stderr
    assert "expected 3 (label, sentence 1, sentence 2) or the header" in done.stderr
    done = script("train.sh", "QQP", source, out, status=1)
    assert "input0/dict.txt is missing" in done.stderr
    script("train.sh", status=2)


def test_fairseq_accepts_the_readme_and_the_grids():
    import yaml

    for number, classes in ((6, 2), (7, 3)):
        path = ROOT / "examples" / "grids" / "cpu" / f"figure{number}.yaml"
        grid = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert grid["figure"] == number
        assert grid["generate"] is False
        assert grid["base"]["num-classes"] == classes
    readme = (GLUE / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"examples/\S+\.(?:sh|py|yaml)", readme):
        assert (ROOT / name).is_file(), name
    assert USER_DIR.is_dir()
