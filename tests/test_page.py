"""The page's program in Node: the same answers as onelayer-lottery, or one sentence."""

import json
import math
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from conftest import ROOT
from page import (
    GOLDEN,
    PAGE,
    javascript,
    needs_node,
    random_lines,
    random_ticket,
    run_page_program,
)
from test_runtime import run_without

from onelayer_lottery.cli import main
from onelayer_lottery.cli.page import _MOST_BYTES
from onelayer_lottery.page.assemble import assemble
from onelayer_lottery.page.build import MODULES, page
from onelayer_lottery.page.moses import LEFT_OUT, moses_tables
from onelayer_lottery.ticket.container import encode_container, open_container
from onelayer_lottery.ticket.format import (
    Bpe,
    Moses,
    TextSteps,
    read_ticket,
    write_ticket,
)

KINDS = {
    "xavier-uniform": dict(init="xavier-uniform"),
    "kaiming-normal": dict(init="kaiming-normal"),
    "signed-constant": dict(init="signed-constant"),
    "normal-0.02": dict(init="normal-0.02", keep=0.9),
    "entropy-coded": dict(keep=0.1, encoder_ffn_embed_dim=64, decoder_ffn_embed_dim=64),
    "largest seed": dict(seed=(1 << 63) - 1),
    "signed": dict(signed=True),
    "scales": dict(scales="row-column"),
    "one scale": dict(scales="tensor"),
    "imported": dict(imported=True),
    "pre-norm": dict(encoder_normalize_before=True, decoder_normalize_before=True),
    "learned positions": dict(encoder_learned_pos=True, decoder_learned_pos=True),
    "no positions": dict(no_token_positional_embeddings=True),
    "normed embeddings": dict(layernorm_embedding=True, no_scale_embedding=True),
    "untied output": dict(share_decoder_input_output_embed=False),
    "unequal widths": dict(decoder_embed_dim=12, decoder_output_dim=12),
    "odd widths": dict(encoder_ffn_embed_dim=13, decoder_ffn_embed_dim=7),
    "narrow output": dict(decoder_output_dim=6, share_decoder_input_output_embed=False),
    "gelu": dict(activation_fn="gelu"),
}


def answers_of_python(path, lines, beam):
    from onelayer_lottery.inference.engines import load_ticket

    return load_ticket(path, engine="fairseq").translate(lines, beam=beam)


@needs_node
@pytest.mark.parametrize("kind", KINDS)
def test_every_sort_of_ticket_translates_as_in_python(kind, tmp_path):
    ticket, path = random_ticket(**KINDS[kind]), tmp_path / "model.ticket"
    write_ticket(ticket, path)
    lines = random_lines(ticket, 6)
    for beam in (5, 1):
        found = run_page_program(path, lines, beam)
        assert found.returncode == 0, found.stderr
        assert found.stdout.splitlines() == answers_of_python(path, lines, beam)


@needs_node
@pytest.mark.parametrize(
    "name", [p.stem for p in sorted(GOLDEN.glob("*.ticket")) if p.stem != "roberta"]
)
def test_tickets_of_older_versions_translate_as_in_python(name):
    path = GOLDEN / f"{name}.ticket"
    lines = random_lines(read_ticket(path), 3)
    found = run_page_program(path, lines)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == answers_of_python(path, lines, 5)


@needs_node
def test_pairs_are_labelled_as_in_python():
    from onelayer_lottery.inference.engines import load_classifier

    path = GOLDEN / "roberta.ticket"
    lines = random_lines(read_ticket(path), 12)
    pairs = list(zip(lines[::2], lines[1::2]))
    expected = load_classifier(path).classify(pairs)
    found = run_page_program(path, ["\t".join(pair) for pair in pairs])
    labels = [line.split("\t") for line in found.stdout.splitlines()]
    assert [label for label, _ in labels] == [row.label for row in expected]
    for (_, share), row in zip(labels, expected):
        assert float(share) == pytest.approx(row.probability, abs=2e-4)


ODD = [
    "Ein Hund läuft.",
    "  zwei   Räume\u00a0mit\tTab  ",
    "ﬁne Ⅳ ½ ① ｆｕｌｌ e\u0301",
    "ein ☃ 漢字 🙂🙂 Schnee",
    "",
    "\u200bnull\u200b breit",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<s> <unk> ▁ unter_strich",
]


@needs_node
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bpe", {}),
        ("unigram", {}),
        ("unigram", {"byte_fallback": True}),
        ("bpe", {"byte_fallback": True, "normalization_rule_name": "identity"}),
        ("bpe", {"user_defined_symbols": ["<ein>", "Hund"]}),
        ("unigram", {"add_dummy_prefix": False, "remove_extra_whitespaces": False}),
    ],
)
def test_sentencepiece_is_the_same_as_its_library(kind, options, tmp_path):
    import grammar

    lines = [side for pair in grammar.sentence_pairs(120, seed=2) for side in pair]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=420 if "byte_fallback" in options else 160,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    model = tmp_path / "spm.model"
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    text = lines[:80] + ODD
    program = """
        import {readFileSync} from 'node:fs';
        import {SentencePiece} from './sentencepiece.mjs';
        const [path, lines] = JSON.parse(readFileSync(0, 'utf8'));
        const model = new SentencePiece(new Uint8Array(readFileSync(path)));
        console.log(JSON.stringify(lines.map(line => model.encode(line))));
    """
    found = json.loads(javascript(program, json.dumps([str(model), text])))
    assert found == [" ".join(library.encode(line, out_type=str)) for line in text]


@needs_node
@pytest.mark.parametrize("kind", ["fastbpe", "subword_nmt"])
def test_codes_split_words_as_their_libraries_do(kind, tmp_path):
    from onelayer_lottery.text.subwords import build_bpe

    pairs = ["l o", "lo w</w>", "e r</w>", "n e", "ne w", "o w", "t h", "th e</w>"]
    if kind == "fastbpe":
        codes = "".join(f"{pair} {9 - n}\n" for n, pair in enumerate(pairs))
    else:
        codes = "#version: 0.2\n" + "".join(pair + "\n" for pair in pairs)
    bpe = Bpe(kind, codes.encode())
    library = build_bpe(bpe)
    text = ["low lower newer the", " wow  now ", "ö 🙂 lololow", "a"]
    program = """
        import {readFileSync} from 'node:fs';
        import {subwordsOf} from './subwords.mjs';
        const [kind, codes, lines] = JSON.parse(readFileSync(0, 'utf8'));
        const model = subwordsOf({kind, content: new TextEncoder().encode(codes)});
        const parts = lines.map(line => model.encode(line));
        console.log(JSON.stringify([parts, parts.map(line => model.decode(line))]));
    """
    parts, whole = json.loads(javascript(program, json.dumps([kind, codes, text])))
    expected = [library.encode(line).split() for line in text]
    assert [line.split() for line in parts] == expected
    assert whole == [library.decode(line) for line in parts]


RAW = [
    "Ein Hund (z. B. ein „Dackel“) läuft, springt & bellt ...",
    "Dr. Müller kauft 1,5 kg Äpfel für 3 %, am 3. Mai, Nr. 5.",
    "Das ist's: Müller-Wagen – aus St.-Pauli – `heute' ''nicht''!?",
    "It's John's and the Jones' dog, isn't it? No. 5, No. one, U.S. army.",
    "L'homme qu'il « voit », dit-il ; « c'est 1\u00a0000 » !",
    "<b>zwei</b> [drei] | vier {fünf} #6 @sieben $8 €9 ¿diez?",
    "....\"....\" DOTDOTMULTI .. DOTMULTI.' a.' b...c,d 5,300 x,5 6,",
    "&amp; &quot; &lt;i&gt; &#91; a @-@ b ' c ' \" d \" e `` f ''",
    "漢字 カナ 漢. 한국 ½ ② e\u0301 \u094d' Ⅳ İI ΣΑΣ \u200b \x01\x1c\x85\u2028z.",
    "",
    " \t ",
]


@needs_node
@pytest.mark.parametrize(
    ("source", "target", "dashes"),
    [
        ("de", "en", False),
        ("en", "de", True),
        ("fr", "it", True),
        ("cs", "fr", False),
        ("xx", "ga", False),
        ("es", "zh", True),
    ],
)
def test_tokens_of_moses_are_those_of_sacremoses(source, target, dashes):
    import grammar
    import sacremoses

    generator = random.Random(source)
    marks = [*" .,'\"`-:;%&()[]", "..", "\u00a0", "d'", "'s", "1", "ab", "Z.B.", "«"]
    noise = ["".join(generator.choices(marks, k=9)) for _ in range(1500)]
    codes = [chr(n) for n in range(32, 0x1F000) if not 0xD800 <= n < 0xE000]
    every = ["a" + "".join(codes[i : i + 99]) for i in range(0, len(codes), 99)]
    pairs = grammar.sentence_pairs(100, seed=3)
    lines = [*RAW, *noise, *every, *(side for pair in pairs for side in pair)]
    if sacremoses.__version__ < "0.2":  # it undoes its own marks in another order
        lines = [line for line in lines if "DOTMULTI" not in line]
    program = """
        import {readFileSync} from 'node:fs';
        import {Moses} from './moses.mjs';
        const [settings, tables, lines] = JSON.parse(readFileSync(0, 'utf8'));
        const moses = new Moses(settings, tables);
        const both = line => [moses.encode(line), moses.decode(line)];
        console.log(JSON.stringify(lines.map(both)));
    """
    moses = Moses(source, target, dashes=dashes)
    given = json.dumps([moses.__dict__, moses_tables(moses), lines])
    found = json.loads(javascript(program, given))
    normalise = sacremoses.MosesPunctNormalizer(lang=source).normalize
    tokenize = sacremoses.MosesTokenizer(lang=source).tokenize
    detokenize = sacremoses.MosesDetokenizer(lang=target).detokenize
    for line, (tokens, text) in zip(lines, found):
        expected = tokenize(
            normalise(line), aggressive_dash_splits=dashes, return_str=True
        )
        assert tokens == expected, line
        assert text == detokenize(line.split()), line


TEXTS = {
    "lower": TextSteps(lower=True),
    "moses": TextSteps(Moses("de", "en", dashes=False)),
    "both": TextSteps(Moses("de", "en", dashes=True), lower=True),
}


@needs_node
@pytest.mark.parametrize("kind", TEXTS)
def test_tickets_that_take_raw_text_translate_as_in_python(kind, tmp_path):
    text, path = TEXTS[kind], tmp_path / "model.ticket"
    ticket = random_ticket(text=text)
    write_ticket(ticket, path)
    lines = [line.title() + "!" for line in random_lines(ticket, 6)] + RAW
    found = run_page_program(path, lines, text=text)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == answers_of_python(path, lines, 5)


@needs_node
@pytest.mark.parametrize(
    ("of", "target", "sentence"),
    [
        ("ja", "en", "Moses' rules of ja, which no page has"),
        ("en", "fi", "Moses' rules of fi, which no page has"),
        ("en", "de", "rules of en, which this page does not hold; make a page of"),
    ],
)
def test_rules_that_a_page_has_not_are_named(of, target, sentence, tmp_path):
    path = tmp_path / "model.ticket"
    write_ticket(random_ticket(text=TextSteps(Moses(of, target, dashes=False))), path)
    found = run_page_program(path, ["a"])
    assert found.returncode == 1
    assert sentence in found.stderr
    assert len(found.stderr.splitlines()) == 1


@needs_node
@pytest.mark.parametrize(
    "text",
    ["." * 10**6, " " * 10**6 + "a", "DOT" * 10**6],
    ids=["dots", "spaces", "marks"],  # pytest puts them into the environment
)
def test_a_line_of_a_megabyte_is_tokenised_at_once(text):
    program = """
        import {readFileSync} from 'node:fs';
        import {Moses} from './moses.mjs';
        const [settings, tables, line] = JSON.parse(readFileSync(0, 'utf8'));
        const moses = new Moses(settings, tables), started = performance.now();
        moses.decode(moses.encode(line));
        console.log(performance.now() - started);
    """
    moses = Moses("de", "en", dashes=True)
    given = json.dumps([moses.__dict__, moses_tables(moses), text])
    assert float(javascript(program, given)) < 10_000


@needs_node
@pytest.mark.parametrize("cut", [0, 7, 300, -1])
def test_a_truncated_ticket_is_refused_in_one_sentence(cut, tmp_path):
    path = tmp_path / "damaged.ticket"
    path.write_bytes((GOLDEN / "plain.ticket").read_bytes()[:cut])
    found = run_page_program(path, ["die"])
    assert found.returncode == 1
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1
    assert "Error" not in found.stderr


@needs_node
def test_every_flipped_byte_is_noticed(tmp_path):
    content = bytearray((GOLDEN / "plain.ticket").read_bytes())
    path = tmp_path / "damaged.ticket"
    program = """
        import {readFileSync} from 'node:fs';
        import {Refusal} from './refusal.mjs';
        import {readTicket} from './ticket.mjs';
        const whole = new Uint8Array(readFileSync(readFileSync(0, 'utf8')));
        for (let at = 0; at < whole.length; at += 97) {
          const bytes = whole.slice();
          bytes[at] ^= 16;
          try {
            await readTicket(bytes);
            console.log(`byte ${at} may be anything`);
          } catch (error) {
            if (!(error instanceof Refusal)) console.log(`byte ${at}: ${error.stack}`);
          }
        }
    """
    path.write_bytes(content)
    assert javascript(program, str(path)) == ""


@needs_node
def test_hostile_tickets_of_the_fuzzer_end_in_a_sentence():
    tickets = sorted((ROOT / "fuzz" / "regressions").rglob("*.ticket"))
    assert tickets
    for path in tickets:
        found = run_page_program(path, ["a\tb"])
        assert "    at " not in found.stderr, path


@needs_node
def test_memory_beyond_the_limit_is_refused_and_not_taken():
    program = """
        import {readFileSync} from 'node:fs';
        import {Memory} from './memory.mjs';
        const memory = await Memory.create(readFileSync('kernels.wasm'));
        for (const count of [2 ** 32, 2 ** 29])
          try { memory.take(count); } catch (error) { console.log(error.message); }
        console.log(memory.memory.buffer.byteLength);
    """
    *sentences, size = javascript(program).splitlines()
    assert len(sentences) == 2
    assert all("more than the 1024 MB" in sentence for sentence in sentences)
    assert int(size) == 65536


@needs_node
def test_masks_of_a_model_larger_than_the_limit_are_not_decoded(tmp_path):
    container = open_container(GOLDEN / "plain.ticket")
    layer, row = next(iter(container.tables["masks"].items()))
    shape = [2**15, 2**14]
    container.tables["frozen"][row["role"]]["shape"] = shape
    kept = round(container.tables["settings"]["keep"] * math.prod(shape))
    container.tables["masks"][layer] = {**row, "kept": kept, "coding": "ans"}
    container.payloads[f"mask/{layer}"] = np.zeros(math.prod(shape) // 128, np.uint8)
    del container.tables["payloads"]
    path = tmp_path / "huge.ticket"
    path.write_bytes(encode_container(container.tables, container.payloads))
    assert "more than the 1024 MB" in run_page_program(path, ["a"]).stderr


def test_the_kernels_are_those_of_their_text(tmp_path):
    if shutil.which("wat2wasm") is None:
        pytest.skip("wat2wasm is not installed")
    assemble(tmp_path / "kernels.wasm")
    made = (tmp_path / "kernels.wasm").read_bytes()
    assert made == (PAGE / "kernels.wasm").read_bytes()


def test_every_module_of_the_worker_follows_those_that_it_imports():
    for number, name in enumerate(MODULES):
        text = (PAGE / f"{name}.mjs").read_text(encoding="utf-8")
        imported = re.findall(r"from '\./(\w+)\.mjs'", text)
        assert set(imported) <= set(MODULES[:number])


def test_the_page_forbids_all_requests_and_is_small():
    text = page(b"", title="<i>&")
    assert "default-src 'none'" in text
    assert "<i>" not in text.split("</title>")[0]
    assert not re.search(r"(src|href)\s*=", text)
    assert len(text.encode()) <= 60_000


def test_the_command_writes_a_page_without_torch(tmp_path):
    out = tmp_path / "page.html"
    program = f"""
import sys
sys.modules.update(torch=None, fairseq=None)
from onelayer_lottery.cli import main
sys.exit(main(["page", {str(GOLDEN / "plain.ticket")!r}, "-o", {str(out)!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_of_moses_tokens_needs_the_lists_of_sacremoses(tmp_path):
    path, out = tmp_path / "model.ticket", tmp_path / "page.html"
    write_ticket(random_ticket(text=TEXTS["moses"]), path)
    done = run_without("page", path, "-o", out, block=("sacremoses",))
    assert done.returncode == 1
    assert b"is not installed: pip install sacremoses" in done.stderr
    assert not out.exists()
    done = run_without("page", path, "-o", out)
    assert done.returncode == 0, done.stderr
    assert len(out.read_bytes()) - path.stat().st_size * 4 / 3 <= 60_000


def test_bad_input_is_refused_and_nothing_is_written(tmp_path, capsys):
    out, text = tmp_path / "page.html", tmp_path / "no.ticket"
    text.write_text("no ticket")
    assert main(["page", str(text), "-o", str(out)]) == 1
    assert "no.ticket" in capsys.readouterr().err
    golden = str(GOLDEN / "plain.ticket")
    missing = str(tmp_path / "missing.txt")
    assert main(["page", golden, "-o", str(out), "--examples", missing]) == 1
    assert "--examples" in capsys.readouterr().err
    pairs = str(GOLDEN / "roberta.ticket")
    for ticket, line, what in (
        (golden, "w1\tw2", "line 2 has 2 columns; this ticket takes one sentence"),
        (pairs, "w1", "line 2 has 1 column; this ticket takes two sentences"),
    ):
        text.write_text(f"\n{line}\n")
        assert main(["page", ticket, "-o", str(out), "--examples", str(text)]) == 1
        assert what in capsys.readouterr().err
    assert not out.exists()
    ticket = read_ticket(GOLDEN / "roberta.ticket")
    ticket.config["task"]["_name"] = "masked_lm"
    write_ticket(ticket, tmp_path / "masked.ticket")
    assert main(["page", str(tmp_path / "masked.ticket"), "-o", str(out)]) == 1
    assert "a page can only translate or classify" in capsys.readouterr().err
    assert not out.exists()
    out.write_text("mine")
    assert main(["page", golden, "-o", str(out)]) == 1
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "flags", "reasons"),
    [
        ("reservoir-ffn", {"reservoir_type": "cnn"}, ["reservoirs of type cnn"]),
        ("plain", {"cross_self_attention": True}, ["--cross-self-attention"]),
        (
            "reservoir-ffn",
            {"reservoir_type": "bigru", "cross_self_attention": True},
            ["reservoirs of type bigru", "--cross-self-attention"],
        ),
    ],
)
def test_no_page_is_made_of_what_it_cannot_compute(
    name, flags, reasons, tmp_path, capsys
):
    ticket, out = read_ticket(GOLDEN / f"{name}.ticket"), tmp_path / "page.html"
    ticket.config["model"].update(flags)
    write_ticket(ticket, tmp_path / "model.ticket")
    assert main(["page", str(tmp_path / "model.ticket"), "-o", str(out)]) == 1
    said = capsys.readouterr().err
    assert f"a page cannot hold this model: it has {'; it has '.join(reasons)}" in said
    assert not out.exists()


def test_no_page_is_made_of_a_large_model(tmp_path, capsys, monkeypatch):
    golden, out = str(GOLDEN / "plain.ticket"), tmp_path / "page.html"
    limit = (PAGE / "memory.mjs").read_text()
    assert f"MOST_BYTES = 2 ** {_MOST_BYTES.bit_length() - 1};" in limit
    monkeypatch.setattr("onelayer_lottery.cli.page._MOST_BYTES", 4 * 2752 - 1)
    assert main(["page", golden, "-o", str(out)]) == 1
    assert "a page cannot hold this model: it has 0.01 MB of weights" in (
        capsys.readouterr().err
    )
    assert not out.exists()


def test_no_page_is_made_for_languages_whose_rules_it_lacks(tmp_path, capsys):
    path, out = tmp_path / "zh.ticket", tmp_path / "page.html"
    steps = TextSteps(moses=Moses(source="zh", target="fi", dashes=False))
    write_ticket(random_ticket(text=steps), path)
    assert main(["page", str(path), "-o", str(out)]) == 1
    said = capsys.readouterr().err
    assert "it has Moses' tokens from zh; it has Moses' tokens to fi" in said
    program = (PAGE / "moses.mjs").read_text()
    theirs = re.search(r"LEFT_OUT = (.*);", program)[1].replace("'", '"')
    theirs = json.loads(re.sub(r"(source|target):", r'"\1":', theirs))
    assert theirs == {side: list(names) for side, names in LEFT_OUT.items()}
