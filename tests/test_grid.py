"""Grid files: what they expand to, and what is refused before it is expanded."""

import resource
import sys
import time

import pytest

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.sweep.commands import task_of
from onelayer_lottery.experiments.sweep.flags import check_flags
from onelayer_lottery.experiments.sweep.grid import read_grid

BASE = "base: {arch: transformer}\n"
ONE = BASE + "variants: {a: {}}\n"

# What Python says of an open bracket: less before version 3.10.
UNCLOSED = "its flags ('{}' was never closed"
if sys.version_info < (3, 10):
    UNCLOSED = "its flags (unexpected EOF while parsing"


@pytest.fixture
def data(tmp_path):
    """A folder that looks like prepared data."""
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    for name in ("train.de-en.de.idx", "train.de-en.en.idx", "inner/reference.en"):
        (folder / name).write_text("")
    (tmp_path / "outside.en").write_text("")
    for language in ("de", "en"):
        (folder / f"dict.{language}.txt").write_text("a 1\n")
    return folder


@pytest.fixture
def read(data, tmp_path):
    """Reads a grid file with the text that is given."""

    def read(text, *, check=False):
        path = tmp_path / "grid.yaml"
        path.write_text(text, "utf-8")
        grid = read_grid(path, data=data)
        if check:
            check_flags(grid)
        return grid

    return read


@pytest.fixture
def refusal(read):
    """The sentence with which a grid file is refused."""

    def refusal(text, **options):
        with pytest.raises(LotteryError) as caught:
            read(text, **options)
        return str(caught.value)

    return refusal


def multiplying_aliases(item, join):
    lines = [f"x0: &x0 {item}"]
    for level in range(1, 10):
        aliases = ", ".join([f"*x{level - 1}"] * 10)
        lines.append(f"x{level}: &x{level} {join(aliases)}")
    return "\n".join(lines) + "\n" + ONE


TOO_MUCH = {
    "a large file": (
        "# " + "x" * 200_000 + "\n" + ONE,
        "grid.yaml is larger than 131,072 bytes, more than a grid needs",
    ),
    "many seeds": (
        f"seeds: [{', '.join(map(str, range(20_000)))}]\n" + ONE,
        "it has 20,000 runs, a grid at most 10,000: shorten its lists, or make several",
    ),
    "a large product": (
        BASE
        + "variants:\n  a:\n"
        + "".join(f"    flag-{n}: {list(range(10))}\n" for n in range(9)),
        "it has 1,000,000,000 runs",
    ),
    "many variants": (
        BASE + "variants:\n" + "".join(f"  v{n}: {{}}\n" for n in range(10_001)),
        "it has 10,001 runs",
    ),
    "many flags": (
        "base: {arch: transformer}\nvariants:\n  a:\n"
        + "".join(f"    f{n}: 1\n" for n in range(600)),
        "variant a has 601 flags; give at most 500",
    ),
    "aliases of lists": (
        multiplying_aliases("[lol, lol]", "[{}]".format),
        "its aliases stand for more than 1,000,000 characters",
    ),
    "aliases of mappings": (
        multiplying_aliases("{a: b}", "{{<<: [{}]}}".format),
        "its aliases stand for more than 1,000,000 characters",
    ),
    "deep lists": ("a: " + "[" * 5000, "is nested more than 20 deep"),
    "deep blocks": ("- " * 5000, "is nested more than 20 deep"),
    "deep aliases": (
        "k:\n- &k0 {a: b}\n"
        + "".join(f"- &k{n} {{<<: *k{n - 1}}}\n" for n in range(1, 3000))
        + ONE,
        "is nested more than 20 deep",
    ),
    "an alias of itself": ("a: &a [*a]\n" + ONE, "line 1: it contains itself"),
    "a merge of itself": ("a: &a {<<: *a}\n" + ONE, "line 1: it contains itself"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
@pytest.mark.timeout(60)
def test_too_much_is_refused_before_it_is_expanded(case, refusal):
    text, sentence = TOO_MUCH[case]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refusal(text)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sentence in said
    assert "\n" not in said
    assert after - before < 200e3  # KB


@pytest.mark.timeout(60)
def test_as_many_runs_as_are_allowed_are_expanded_in_little_time(read):
    start = time.process_time()
    grid = read(
        f"seeds: {list(range(5000))}\n"
        "base: {arch: transformer}\nvariants: {a: {}, b: {teacher: '${a}'}}\n"
    )
    assert len({run.id for run in grid.runs}) == 10_000
    assert grid.runs[-1].needs == (grid.runs[4999].id,)
    assert time.process_time() - start < 30


def test_the_commands_of_a_run_do_not_look_at_all_other_runs(read, tmp_path):
    grid = read(f"seeds: {list(range(3000))}\n" + ONE)
    start = time.process_time()
    for run in grid.runs[:20]:
        task_of(run, grid, out=tmp_path, cpu=True)
    assert time.process_time() - start < 1


BAD = {
    "variants: [a]": "variants is not a mapping of names to values",
    "variants: {a: []}": "variant a is not a mapping of flags to values",
    "variants: {a: {}}\nbase: [a]": "base is not a mapping of names to values",
    "variants: {a: {arch: null}}": "variant a: arch is None; give the name of an",
    "variants: {a: {arch: 5}}": "variant a: arch is 5; give the name of an",
    "variants: {a: {arch: [x, yes]}}": "variant a: arch is True; give the name of an",
    "variants: {a: {arch: [[x]]}}": "variant a: arch holds a list or a mapping; give",
    "variants: {a: {arch: {x: y}}}": "variant a: arch holds a list or a mapping; give",
    "variants: {a: {lr: [{x: y}]}}": "variant a: lr holds a list or a mapping; give",
    "variants: {a: {label: {x: y}}}": "variant a: label is {'x': 'y'}; give text",
    "variants: {a: {table1: [x]}}": "variant a: table1 is ['x']; give one of iwslt/",
    "variants: {a: {'': x}}": "variant a: '' is not the name of a flag",
    "variants: {a: {'lr x': 1}}": "variant a: 'lr x' is not the name of a flag",
    "variants: {a: {seeds: [-1]}}": "variant a: seed -1 is not a whole number from 0",
    "variants: {a: {seeds: [4294967296]}}": "a: seed 4294967296 is not a whole number",
    "variants: {a: {seeds: [{x: y}]}}": "variant a: seed {'x': 'y'} is not a whole",
    "title: {x: y}": "title is {'x': 'y'}; give text",
    "corpus: [x]": "corpus is ['x']; give text",
    "data: [x]": "data is ['x']; give text",
    "generate: 5": "generate is 5; give flags of fairseq-generate, or no",
    "generate: [beam]": "generate is ['beam']; give flags of fairseq-generate, or no",
    "generate: yes": "generate is True; give flags of fairseq-generate, or no",
    "generate: {beam: [1, 2]}": "generate: beam is a list; give one value",
    "generate: {beam: {x: y}}": "generate: beam holds a list or a mapping; give",
    "average: 10001": "average is 10001; give a whole number from 1 to 10000",
    "average: []": "average is []; give a whole number from 1 to 10000",
    "gpus: 1.5": "gpus is 1.5; give a whole number from 1 to 10000",
    "figure: .inf": "figure is inf; give a whole number from 1 to 10000",
    "figure: " + "9" * 100_000: "line 1: a number has 100,000 digits",
    "figure: 0x" + "f" * 100_000: "line 1: a number has 100,002 digits",
    "x" * 201 + ": 1": "line 1: a name has 201 characters; give at most 200",
    "figure: 99999999999999999999": "figure is 99999999999999999999; give a whole",
    "1: x": "unknown key 1; known are",
    "? [a, b]\n: c": "line 1: a key is a list or a mapping; give a name",
    "? {a: b}\n: c": "line 1: a key is a list or a mapping; give a name",
    "2001-01-01: x": "unknown key 2001-01-01; known are",
    "variants: {a: {lr: 2001-01-01}}": "line 1: 2001-01-01 is read as a timestamp; put",
    "title: 2001-99-99": "line 1: 2001-99-99 is read as a timestamp; put it in quotes",
    "title: !!binary YQ==": "line 1: YQ== is read as a binary; put it in quotes",
    "title: !!set {a}": "line 1: a mapping is read as a set; leave out its tag",
    "title: !!int x": "line 1: x is not a value of the type int",
    "title: !!bool x": "line 1: x is not a value of the type bool",
    "title: !!python/name:os.system x": "line 1: x is read as a python/name:os.system",
    "variants: {a: {lr: .nan}}": "line 1: .nan is not a number",
    'variants: {a: {lr: "1\\0"}}': "line 1: '1\\x00' has a control character",
    'variants: {a: {"l\\er": 1}}': "line 1: 'l\\x1br' has a control character",
    'variants: {a: {lr: "1\\n2"}}': "line 1: '1\\n2' has a control character",
    'title: "\\ud800"': "line 1: '\\ud800' has a control character",
    "title: \0": "special characters are not allowed",
    "reference: /etc/passwd": "reference /etc/passwd is not a file name inside the",
    "reference: ../outside.en": "reference ../outside.en is not a file name inside",
    "reference: inner/../../outside.en": "is not a file name inside the data folder",
    "reference: inner": "reference inner is not a file; it is looked for in",
    "reference: " + "x" * 5000: "File name too long",
    "reference: [x]": "reference is ['x']; give text",
    "- a": "grid.yaml holds no mapping: give data, base and variants",
    "5": "grid.yaml holds no mapping: give data, base and variants",
    "": "grid.yaml holds no mapping: give data, base and variants",
    "a: *b": "grid.yaml, line 1: found undefined alias 'b'",
    "a: 1\n---\nb: 2": "line 2: but found another document",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:40])
def test_a_careless_grid_is_refused_with_a_sentence(text, refusal):
    whole = text if text[:1] in ("", "-", "5") else f"{text}\n"
    if whole.endswith("\n"):
        whole += "" if "base:" in text else BASE
        whole += "" if "variants:" in text else "variants: {a: {}}\n"
    said = refusal(whole, check=True)
    assert BAD[text] in said
    assert "\n" not in said
    assert len(said) < 6000


def test_a_data_folder_whose_name_is_too_long_is_refused(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(ONE + f"data: {'x' * 5000}\n")
    with pytest.raises(LotteryError, match="File name too long"):
        read_grid(path)


def test_keys_are_read_as_they_are_typed(read):
    grid = read(BASE + "variants: {0.50: {}, yes: {}, 010: {label: 8}, null: {}}\n")
    assert [v.name for v in grid.variants] == ["0.50", "yes", "010", "null"]
    assert [v.label for v in grid.variants] == ["0.50", "yes", "8", "null"]


def test_merged_mappings_and_aliases_are_expanded(read):
    grid = read(
        """
base: {arch: &arch transformer}
variants:
  a: &a {lr: 1, dropout: 0.1, label: first}
  b: &b {<<: *a, lr: [2, 3]}
  c: {<<: [*b, *a], arch: *arch, dropout: null}
"""
    )
    assert [(run.variant, run.train) for run in grid.runs] == [
        ("a", {"arch": "transformer", "lr": "1", "dropout": "0.1"}),
        ("b", {"arch": "transformer", "lr": "2", "dropout": "0.1"}),
        ("b", {"arch": "transformer", "lr": "3", "dropout": "0.1"}),
        ("c", {"arch": "transformer", "lr": "2"}),
        ("c", {"arch": "transformer", "lr": "3"}),
    ]
    assert {variant.label for variant in grid.variants} == {"first"}


def test_architectures_are_crossed_like_other_values(read):
    grid = read("variants: {a: {arch: [transformer, lstm]}}\n")
    assert [run.train["arch"] for run in grid.runs] == ["transformer", "lstm"]


def test_a_reference_may_be_in_a_folder_of_the_data(read, data):
    grid = read(ONE + "reference: inner/reference.en\n")
    assert grid.reference == data / "inner" / "reference.en"


def test_the_data_are_read_once_for_all_variants(read, monkeypatch):
    from onelayer_lottery.experiments.sweep import grid

    digest, seen = grid.data_digest, []
    monkeypatch.setattr(
        grid, "data_digest", lambda folder: seen.append(folder) or digest(folder)
    )
    read(BASE + "variants: {a: {}, b: {}, c: {}}\n")
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("(1,", UNCLOSED.format("(")),
        ("nan", "its flags (name 'nan' is not defined)"),
        ("1/0", "its flags (division by zero)"),
        ("().x", "its flags ('tuple' object has no attribute 'x')"),
        ("[0] * 10 ** 15", "its flags (MemoryError)"),
        ("float('x')", "argument --weight-softmax: invalid eval_bool value"),
        ("[1][5]", "its flags (list index out of range)"),
        ("x" + "+x" * 9000, "its flags ("),
        ("(lambda f: f(f))(lambda f: f(f))", "its flags (maximum recursion depth"),
        ("__import__('sys').exit(3)", "its flags"),
    ],
)
def test_values_that_fairseq_cannot_evaluate_are_told(value, said, refusal):
    flags = f'{{arch: lightconv, weight-softmax: "{value}"}}'
    sentence = refusal(f"variants: {{a: {flags}}}\n", check=True)
    assert f"variant a: {said}" in sentence


@pytest.mark.parametrize("flag", ["lr", "update-freq"])
def test_lists_that_fairseq_cannot_read_are_told(flag, refusal):
    flags = f"{{arch: transformer, optimizer: adam, {flag}: '[1,'}}"
    sentence = refusal(f"variants: {{a: {flags}}}\n", check=True)
    assert f"variant a: {UNCLOSED.format('[')}" in sentence


def test_a_flag_that_prints_help_is_refused_in_silence(refusal, capfd):
    said = refusal("variants: {a: {arch: transformer, help: yes}}\n", check=True)
    assert "variant a: its flags" in said
    assert capfd.readouterr().out == ""
