"""README and docs: their commands run or parse, their links and paths exist.

The commands of README and docs/training.md run as written, but for a smaller model and
one update. All others are given to the real parsers.
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Iterator, List, NamedTuple

import pytest
from conftest import ROOT, SPLITS, USER_DIR, Fairseq
from warm import real, warm

from onelayer_lottery.cli import main
from onelayer_lottery.cli.program import _parser

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
PATH = r"(?<![\w/])(?:onelayer_lottery|examples)/[\w/.-]*\w(?![\w$])"
SMALLER = """
    --max-update 1 --cpu --num-workers 0
    --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --encoder-layers 1
    --decoder-embed-dim 32 --decoder-ffn-embed-dim 32 --decoder-layers 1
""".split()


class Block(NamedTuple):
    """A fenced block of a page: what it is, and its lines."""

    language: str
    text: str

    def commands(self) -> List[str]:
        """The lines as a shell reads them: those that end in a backslash go on."""
        return self.text.replace("\\\n", " ").splitlines()


def blocks(page: Path) -> List[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(*parts) for parts in found]


def words_of(start: str, page: Path) -> Iterator[List[str]]:
    """The words after ``start`` of each command in a page's blocks and inline code."""
    code = [line for block in blocks(page) for line in block.commands()]
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    code += [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", text)]
    for line in code:
        for command in re.findall(rf"(?<![\w/-]){start} ([^|;<>#]+)", line):
            words = [word for word in shlex.split(command) if word != "..."]
            yield [str(USER_DIR) if w == "onelayer_lottery" else w for w in words]


def command(start: str, page: str) -> List[str]:
    return next(words_of(start, ROOT / page))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_preprocess_train_and_generate_work_as_written(fairseq, tmp_path):
    """In a folder of their own: a checkpoint of another test would be resumed from."""
    for split in SPLITS:
        for language in ("de", "en"):
            shutil.copy(fairseq.folder / f"{split}.{language}", tmp_path)
    for name in ("fairseq-preprocess", "fairseq-train", "fairseq-generate"):
        words = command(name, "docs/training.md")
        extra = {"fairseq-train": SMALLER, "fairseq-generate": ["--cpu"]}.get(name, [])
        done = Fairseq(tmp_path).run(name, *words, *extra, user_dir=False)
    assert len(done.lines("H")) == SPLITS["test"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_session_of_the_readme_runs_in_shell_and_python(fairseq, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split in SPLITS:
        for language in ("de", "en"):
            name = f"{split}.{language}"
            (text / name).write_text((fairseq.folder / name).read_text("utf-8"))
    session = [b for b in blocks(ROOT / "README.md") if "fairseq-train" in b.text]
    lines = session[0].commands()
    assert lines[0].startswith("python examples/demo/grammar.py ")
    bins = ":".join(str(start("python").parent) for start in (warm, real))
    script = ["set -e", f"export PATH={bins}:$PATH OMP_NUM_THREADS=1"]
    for line in lines[1:]:
        line = line.replace("--user-dir onelayer_lottery", f"--user-dir {USER_DIR}")
        small = line.startswith("fairseq-train")
        script.append(f"{line} {' '.join(SMALLER)}" if small else line)
    for page in ("README.md", "docs/tickets.md"):
        for number, block in enumerate(blocks(ROOT / page)):
            if block.language == "python":
                name = f"{Path(page).stem}{number}.py"
                (tmp_path / name).write_text(block.text, encoding="utf-8")
                script.append(f"python {name}")
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len((tmp_path / "test.en").read_text().splitlines()) == SPLITS["test"]
    assert '"name": "BLEU"' in done.stdout
    assert len(re.findall(r"^\['.*'\]$", done.stdout, re.MULTILINE)) == 2
    assert re.search(r"^encoder.layers.0.fc1 0.5$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_of_a_page_is_one(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for words in words_of("onelayer-lottery", page):
        if len(words) == 1:  # a word about the command
            with pytest.raises(SystemExit, match=r"^0$"):
                _parser().parse_args([*words, "--help"])
        else:
            _parser().parse_args(words)
    for words in words_of("python", page):
        if words[0].endswith(".py"):
            assert Path(words[0]).is_file(), words[0]
    targets = re.findall(r"^([a-z]+):", Path("Makefile").read_text(), re.MULTILINE)
    for words in words_of("make", page):
        assert words[0] in targets, words[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_fairseq_accepts_every_training_and_generation_of_a_page(page):
    from fairseq import options

    import onelayer_lottery.plugin  # noqa: F401  registers the architectures

    for name, parser in (
        ("fairseq-train", options.get_training_parser),
        ("fairseq-generate", options.get_generation_parser),
    ):
        for words in words_of(name, page):
            if str(USER_DIR) in words:  # else a word about the command
                # "..." stands for the flags of the command above it.
                if name == "fairseq-train" and "--arch" not in words:
                    words += ["--arch", "transformer_onelayer_random_small"]
                options.parse_args_and_arch(parser(), words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_python_of_a_page_names_what_there_is(page):
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, str(page), "exec")
            for line in re.findall(r"^from onelayer_lottery.*", block.text, re.M):
                exec(line, {})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        path = (page.parent / file) if file else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target
    for name in re.findall(PATH, text):
        assert (ROOT / name).exists(), name


def anchors(page: Path) -> List[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w -]", "", heading.lower()) for heading in headings)
    return [heading.replace(" ", "-") for heading in kept]


def test_the_page_of_flags_is_current(capsys):
    assert main(["flags", "--markdown"]) == 0
    page = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    assert page == capsys.readouterr().out, (
        "run onelayer-lottery flags --markdown > docs/flags.md"
    )


def test_the_page_of_flags_has_every_flag_with_its_default():
    from dataclasses import fields

    from onelayer_lottery.planting.reservoir_config import ReservoirConfig

    page = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    for field in fields(ReservoirConfig):
        if not field.name.startswith("_"):
            flag = "--" + field.name.replace("_", "-")
            rows = re.findall(rf"^\| `{flag}` \| (.*?) \|", page, re.MULTILINE)
            assert rows, flag
            default = "" if field.default is False else str(field.default)
            assert rows[-1].strip("`") == default


def test_an_architecture_beside_markdown_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["flags", "transformer_random_tiny", "--markdown"])
    assert "leave ARCH out" in capsys.readouterr().err


def test_the_index_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        if path.name != "README.md":
            assert f"({path.name})" in index, path.name
            assert f"(docs/{path.name})" in readme, path.name


def test_every_command_is_documented(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    ([a-z-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert "average" in commands
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md"))
    for name in commands:
        assert f"onelayer-lottery {name}" in pages, name
