"""From a trained checkpoint to a ticket and back, by the real commands."""

import json
import os
import re
import resource
import signal
import subprocess

import pytest
import torch
from conftest import SPLITS
from warm import real, warm

import onelayer_lottery
from onelayer_lottery.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def tool(*words, start=warm, **options):
    """Run onelayer-lottery as a process of its own."""
    command = [start("onelayer-lottery"), *words]
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        **options,
    )


def answering(ticket):
    """Start translate, its input left open, and wait for its first answer."""
    process = subprocess.Popen(
        [
            str(real("onelayer-lottery")),
            "translate",
            str(ticket),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell lets what it runs in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    process.stdin.write(b"der hund singt .\n")
    process.stdin.flush()
    assert process.stdout.readline()
    return process


def hypotheses(outcome):
    """(score, tokens) of each sentence, in order."""
    found = {}
    for line in outcome.lines("H"):
        number, score, tokens = re.match(r"H-(\d+)\t(\S+)\t(.*)", line).groups()
        found[int(number)] = (float(score), tokens)
    return [found[number] for number in range(SPLITS["test"])]


@pytest.fixture(scope="module")
def mean(fairseq, trained):
    """An averaged checkpoint."""
    path = fairseq.folder / "averaged.pt"
    assert main(["average", "--last", "2", str(trained), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def ticket(fairseq, mean):
    path = fairseq.folder / "model.ticket"
    data, bpe = fairseq.folder / "data-bin", fairseq.folder / "spm.model"
    done = tool("ticket", mean, path, "--bpe", bpe, "--data", data)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        rf"wrote {path}: 34 masks, 50\.0% of 0\.1M kept, 0\.\d+ MB"
        r" \(checkpoint \d MB\)\n",
        done.stdout,
    )
    return path


def test_checkpoint_restored_baked_and_ticket_translate_the_same(
    fairseq, mean, ticket, capsys
):
    folder = fairseq.folder
    assert main(["restore", str(ticket), str(folder / "restored.pt")]) == 0
    assert main(["bake", str(ticket), str(folder / "baked.pt")]) == 0
    data = ["--data", str(folder / "data-bin")]
    assert main(["bake", str(mean), str(folder / "baked-too.pt"), *data]) == 0
    assert "transformer, fp32" in capsys.readouterr().out
    original = hypotheses(fairseq.generate("data-bin", mean))
    restored = hypotheses(fairseq.generate("data-bin", "restored.pt"))
    baked = hypotheses(fairseq.generate("data-bin", "baked.pt", user_dir=False))
    for other in (restored, baked):
        assert [tokens for _, tokens in other] == [tokens for _, tokens in original]
        for (ours, _), (theirs, _) in zip(other, original):
            assert ours == pytest.approx(theirs, abs=1e-5)
    ours, theirs = (
        torch.load(folder / n)["model"] for n in ("baked.pt", "baked-too.pt")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_raw_text_is_translated_with_the_subword_model_inside(fairseq, mean, ticket):
    lines = (fairseq.folder / "test.de").read_text("utf-8").splitlines()
    lines[3:3] = ["", "   "]
    text = "".join(line + "\n" for line in lines)
    done = tool("translate", ticket, "--beam", 2, input=text)
    assert done.returncode == 0, done.stderr
    translations = done.stdout.split("\n")[:-1]
    assert len(translations) == len(lines)
    assert translations[3:5] == ["", ""]
    plain = [line for line in lines if line.strip()]
    expected = fairseq.run(
        *("fairseq-interactive", "data-bin", "-s", "de", "-t", "en", "--cpu"),
        *("--path", mean, "--beam", 2, "--bpe", "sentencepiece"),
        *("--sentencepiece-model", "spm.model", "--buffer-size", 50),
        *("--batch-size", 50),
        stdin="".join(line + "\n" for line in plain),
    )
    wanted = [line.split("\t")[2] for line in expected.lines("D")]
    assert [line for line in translations if line] == [w for w in wanted if w]
    python = onelayer_lottery.load_ticket(ticket).translate(lines, beam=2)
    assert python == translations
    assert done.stderr == ""


def test_a_line_is_answered_before_the_next_one_comes(ticket):
    process = subprocess.Popen(
        [
            str(real("onelayer-lottery")),
            "translate",
            str(ticket),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    with process:
        for line in ("der hund singt .", "", "die frau schläft ."):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer.endswith("\n")
            assert (answer == "\n") == (line == "")
        process.stdin.close()
    assert process.returncode == 0


def test_a_carriage_return_does_not_make_two_lines_of_one(ticket):
    done = tool("translate", ticket, "--beam", 1, input="der hund\rsingt\nja\r\n")
    assert done.stdout.count("\n") == 2


def test_the_tool_ends_when_its_reader_leaves_though_input_may_come(ticket):
    process = answering(ticket)
    process.stdout.close()
    process.stdin.write(b"der hund singt .\n")
    process.stdin.flush()  # and it stays open
    assert process.wait(60) == 1
    assert b"Traceback" not in process.stderr.read()


def test_an_interrupt_ends_the_tool_while_it_waits(ticket):
    process = answering(ticket)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert b"Traceback" not in process.stderr.read()


def test_fairseqs_python_interface_loads_a_baked_model(fairseq, ticket):
    from fairseq.models.transformer import TransformerModel

    out = fairseq.folder / "for-python.pt"
    assert main(["bake", str(ticket), str(out)]) == 0
    data = str(fairseq.folder / "data-bin")
    model = TransformerModel.from_pretrained(str(fairseq.folder), out.name, data)
    assert isinstance(model.translate("▁der ▁hund", beam=1, max_len_b=5), str)


def test_a_line_that_is_too_long_is_cut_and_told(ticket):
    done = tool("translate", ticket, "--beam", 1, input="der hund " * 900 + "\nja\n")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 2
    assert (
        "is longer than the 1024 that the model reads; its end is left" in done.stderr
    )


def test_a_restored_model_can_be_trained_on(fairseq, ticket):
    restored = fairseq.folder / "again.pt"
    main(["restore", str(ticket), str(restored)])
    flags = ["--finetune-from-model", restored, "--max-update", 2]
    log = fairseq.train("data-bin", "trained-on", *flags).log
    assert "num_updates: 2 >= max_update: 2" in log


def test_half_precision_is_half_as_large(fairseq, ticket):
    for dtype in ("fp32", "fp16"):
        out = str(fairseq.folder / f"{dtype}.pt")
        assert main(["bake", str(ticket), out, "--dtype", dtype]) == 0
    sizes = [
        (fairseq.folder / f"{dtype}.pt").stat().st_size for dtype in ("fp32", "fp16")
    ]
    assert sizes[1] < 0.6 * sizes[0]
    done = fairseq.generate("data-bin", "fp16.pt", user_dir=False)
    assert len(done.lines("H")) == SPLITS["test"]


def test_inspect_counts_a_ticket_and_its_checkpoint_alike(mean, ticket, capsys):
    reports = []
    for path in (mean, ticket):
        assert main(["inspect", str(path), "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    for report, path in zip(reports, (mean, ticket)):
        assert report.pop("file_bytes") == path.stat().st_size
    assert reports[0] == reports[1]
    totals = reports[1]["totals"]
    assert totals["masks"] == 34
    assert totals["kept"] * 2 == totals["positions"] == totals["mask_bytes"] * 8
    assert reports[1]["roles"]["decoder.layers.*.fc1"]["layers"] == 2
    assert 0.2 < reports[1]["roles"]["decoder.layers.*.fc1"]["overlap"] < 0.5
    assert reports[1]["roles"]["encoder.embed_tokens"]["overlap"] is None
    main(["inspect", str(ticket)])
    text = capsys.readouterr().out
    assert "34 masks keep" in text
    assert "params (no mask)" in text


def test_nothing_is_left_when_the_disk_is_full(fairseq, mean, ticket, tmp_path):
    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    data = fairseq.folder / "data-bin"
    for words in (
        ("ticket", mean, tmp_path / "out.ticket", "--data", data),
        ("restore", ticket, tmp_path / "out.pt"),
        ("bake", ticket, tmp_path / "out.pt"),
    ):
        done = tool(*words, start=real, preexec_fn=small_files)
        assert done.returncode == 1
        assert "cannot write" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_a_killed_export_leaves_the_old_file(fairseq, mean, tmp_path):
    out = tmp_path / "model.ticket"
    out.write_bytes(b"precious")
    data = fairseq.folder / "data-bin"
    command = [real("onelayer-lottery"), "ticket", mean, out]
    command += ["--force", "--data", data]
    for delay in (0.5, 1.5, 2.5):
        process = subprocess.Popen([str(word) for word in command])
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        whole = out.read_bytes()
        assert whole == b"precious" or onelayer_lottery.load_ticket(out)


def test_a_reader_that_leaves_early_is_no_error_of_ours(ticket):
    command = (
        f"yes 'der hund singt .' | head -500 | onelayer-lottery translate {ticket}"
    )
    environment = {
        **os.environ,
        "PATH": f"{real('bin').parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1"],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ticket", "DENSE", "OUT"], "it has no masks: it is a checkpoint of a dense"),
        (["ticket", "MEAN", "OUT", "--data", "NOWHERE"], "give their folder as --data"),
        (["ticket", "MEAN", "OUT", "--bpe", "NOWHERE"], "cannot read --bpe"),
        (
            ["ticket", "MEAN", "OUT", "--bpe", "JUNK"],
            "the subword model cannot be read as sentencepiece",
        ),
        (
            ["ticket", "MEAN", "OUT", "--embeddings", "fp16"],
            "has no imported or unmasked embeddings; leave it out",
        ),
        (["ticket", "NOWHERE", "OUT"], "is not a file; give a fairseq checkpoint"),
        (["ticket", "TICKET", "OUT"], "is damaged, or not a fairseq checkpoint"),
        (["restore", "MEAN", "OUT"], "is not a ticket"),
        (["translate", "MEAN"], "is not a ticket"),
        (["inspect", "NOWHERE"], "is not a file; give a ticket or a checkpoint"),
        (["bake", "TICKET", "TICKET"], "exists, pass --force to replace it"),
        (["restore", "TICKET", "MEAN"], "exists, pass --force to replace it"),
    ],
)
def test_bad_input_ends_with_a_sentence(
    words, message, fairseq, mean, ticket, tmp_path, capsys
):
    dense = fairseq.folder / "dense-again"
    if "DENSE" in words and not dense.exists():
        fairseq.train("data-bin", dense, "--arch", "transformer", user_dir=False)
    places = {
        "MEAN": mean,
        "TICKET": ticket,
        "OUT": tmp_path / "out",
        "DENSE": dense / "checkpoint_last.pt",
        "NOWHERE": tmp_path / "nowhere",
        "JUNK": tmp_path / "junk.model",
    }
    places["JUNK"].write_bytes(b"junk")
    if "NOWHERE" in words and "--data" in words:
        moved = torch.load(mean)
        moved["cfg"]["task"]["data"] = "gone"
        torch.save(moved, tmp_path / "moved.pt")
        places["MEAN"] = tmp_path / "moved.pt"
    arguments = [str(places.get(word, word)) for word in words]
    if "MEAN" in words and {"--bpe", "--embeddings"} & set(words):
        arguments += ["--data", str(fairseq.folder / "data-bin")]
    assert main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()
