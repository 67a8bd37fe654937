"""The demo grammar writes a correct, leak-free and reproducible corpus."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"
sys.path.insert(0, str(DEMO))

import grammar  # noqa: E402
from grammar import (  # noqa: E402
    FUTURE,
    PAST,
    PERFECT,
    Both,
    Clause,
    Fixed,
    Pair,
    english,
    finish,
    german,
    modal,
    np,
    number_words,
    prepositional,
    pronoun,
    question,
    relative,
    statement,
    subordinate,
    verb,
)

DIGEST = "7451786deca9960a0ccec3f1a2d263b2ecaf1b630efd65e2495503b6a0724c75"

HE, ME, YOU, SHE, THEY, WE = map(pronoun, ("he", "i", "you", "she", "they", "we"))
ANNA = Fixed("anna", "anna")
WEIL = Pair("weil", "because")


@pytest.fixture(scope="module")
def sets():
    return grammar.corpus()


@pytest.fixture(scope="module")
def everything(sets):
    return [pair for sentences in sets.values() for pair in sentences]


def test_the_lexicon_has_at_least_three_hundred_lexemes():
    assert grammar.lexeme_count() >= 300


def test_no_table_lists_a_headword_twice():
    heads = [entry.german for entry in grammar.NOUNS + grammar.ADJECTIVES]
    assert len(heads) == len(set(heads))
    infinitives = [entry.infinitive for entry in grammar.VERBS]
    assert len(infinitives) == len(set(infinitives))


def test_the_sets_have_the_promised_sizes(sets):
    sizes = {name: len(sentences) for name, sentences in sets.items()}
    assert sizes == {"train": 20000, "valid": 1000, "test": 1000}


@pytest.mark.parametrize("name", ["valid", "test"])
@pytest.mark.parametrize("side", [0, 1])
def test_no_held_out_sentence_appears_in_train_on_either_side(sets, name, side):
    trained = {pair[side] for pair in sets["train"]}
    assert not [pair for pair in sets[name] if pair[side] in trained]


@pytest.mark.parametrize("side", [0, 1])
def test_every_sentence_has_one_translation_in_the_whole_corpus(everything, side):
    assert len({pair[side] for pair in everything}) == len(everything)


@pytest.mark.parametrize("name", ["valid", "test"])
@pytest.mark.parametrize("side", [0, 1])
def test_every_held_out_word_occurs_in_train(sets, name, side):
    trained = grammar.vocabulary(sets["train"], side)
    assert grammar.vocabulary(sets[name], side) <= trained


@pytest.mark.parametrize("side", [0, 1])
def test_the_vocabulary_is_small(everything, side):
    assert 800 < len(grammar.vocabulary(everything, side)) < 1600


def test_sentences_have_a_moderate_length(everything):
    for side in (0, 1):
        lengths = [len(pair[side].split()) for pair in everything]
        assert min(lengths) >= 4
        assert max(lengths) <= 25
        assert 9 <= sum(lengths) / len(lengths) <= 12


def test_the_text_is_lower_case_and_tokenised(everything):
    token = re.compile(r"[a-zäöüß]+|[a-z]+-[a-z]+|o'clock|[.,?]")
    for sentence in (side for pair in everything for side in pair):
        assert all(token.fullmatch(word) for word in sentence.split(" ")), sentence
        assert re.search(r"[a-zß] [.?]$", sentence), sentence
        assert ", ," not in sentence


def test_the_corpus_has_its_golden_digest(sets):
    lines = [
        f"{name}\t{de}\t{en}\n" for name, pairs in sets.items() for de, en in pairs
    ]
    assert hashlib.sha256("".join(lines).encode("utf-8")).hexdigest() == DIGEST


def test_another_seed_gives_another_corpus():
    first, second = (grammar.sentence_pairs(50, seed=seed) for seed in (1, 2))
    assert first != second
    assert first == grammar.sentence_pairs(50, seed=1)


def test_a_training_set_too_small_for_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="too few"):
        grammar.corpus(train=1, valid=5, test=5)


PHENOMENA = {
    "article contraction": (r"\b(im|am|zum|zur|ins|vom|beim) ", r"\bthe\b", 500),
    "dative plural": (r"\b(mit|von|bei) den \w+n\b", r"\b(with|of|from)\b", 30),
    "genitive": (r" des \w+(s|n) ", r" of the ", 100),
    "perfect with haben": (r"\b(hat|haben|habe|hast) .*\bge\w+", r"\bha(s|ve)\b", 1000),
    "perfect with sein": (r"\b(ist|sind|bin|bist) .*ge\w+en", r"\bha(s|ve)\b", 300),
    "future": (r"\b(werde|wirst|wird|werden)\b", r"\bwill\b", 1000),
    "modal verb": (r"\b(muss|musste|müssen|mussten)\b", r"\b(has|have|had) to\b", 100),
    "separable in a main clause": (r"\b(rief|ruft|holt|holte) .* (an|ab)\b", "", 50),
    "separable at the end": (r"\b(anruft|abholt|ankam|aufstand|einschlief)\b", "", 20),
    "separable participle": (r"\b(ab|an|auf|ein)ge\w+(t|en)\b", r"\bha(s|ve)\b", 100),
    "inversion": (r"^(gestern|morgen|heute) \w+ ", r"^(yester|tomor|to)", 300),
    "fronted object": (r"^(den|diesen|meinen|seinen) ", "", 100),
    "because clause": (r"\bweil\b", r"\bbecause\b", 100),
    "if clause": (r"\bwenn\b", r"\bif\b", 100),
    "although clause": (r"\bobwohl\b", r"\balthough\b", 100),
    "that clause": (r", dass\b", r"\bthat\b", 500),
    "whether clause": (r", ob\b", r"\bwhether\b", 100),
    "relative accusative": (r", den .* ,", r"\b(whom|that)\b", 100),
    "relative dative": (r", (dem|denen) ", r"\b(whom|that)\b", 50),
    "relative with preposition": (r", (in|auf|an) (dem|der|denen) ", r"which", 10),
    "number": (r"\b\w+und(zwan|drei|vier|fünf)\w+ig\b", r"(ty)-\w+", 100),
    "nicht": (r"\bnicht\b", r"\b(not|cannot)\b", 500),
    "kein": (r"\bkeine[nm]? ", r"\b(not|no|cannot)\b", 300),
    "question": (r"\?$", r"\?$", 1000),
    "do support": (r"\?$", r"^(do|does|did) ", 300),
    "question word": (r"^(wer|was|wen|wem|wo|wann|warum) ", r"^(wh)", 300),
    "possessive": (r"\bunser\w*\b", r"\bour\b", 1000),
    "pronoun": (r"\b(mich|mir)\b", r"\bme\b", 300),
    "existential": (r"\b(es gibt|gab es)\b", r"\bthere (is|are|was|were)\b", 100),
    "indefinite before a vowel": (r"\beine?\b", r"\ban [aeiou]", 100),
}


@pytest.mark.parametrize("name", sorted(PHENOMENA))
def test_the_corpus_shows_each_phenomenon(everything, name):
    german_pattern, english_pattern, least = PHENOMENA[name]
    found = [
        pair
        for pair in everything
        if re.search(german_pattern, pair[0]) and re.search(english_pattern, pair[1])
    ]
    assert len(found) >= least


@pytest.mark.parametrize(
    ("side", "wrong"),
    [
        (0, r"(?<!, )\b(in|an|zu|von|bei) dem\b"),
        (0, r"\b(zu der|in das|an das)\b"),
        (0, r"^(er|ich) (sind|haben|werden|hast|bist)\b"),
        (0, r"\b(ein|kein|mein|dein|sein|unser) \w+en (hund|mann|kind|frau)\b"),
        (1, r"\ba [aeiou]\w"),
        (1, r"\ban [^aeiou]"),
        (1, r"^(he|she|it) (do|have|are|were|am)\b"),
        (1, r"^(they|we|you) (does|has|is|was|am)\b"),
        (1, r"\b(can not|bes|haves|pianoes)\b"),
    ],
)
def test_no_sentence_has_a_tell_tale_error(everything, side, wrong):
    found = [pair for pair in everything if re.search(wrong, pair[side])]
    assert found == []


def plain(**parts) -> Pair:
    return finish(statement(Clause(**parts)))


def who(head: str, clause: Clause, case: str, by: Pair = grammar.NONE, many=False):
    modifier = relative(grammar.noun(head), many, clause, case, by)
    return np(head, "der", plural=many, modifier=modifier)


def gap(agreement: str = "3s") -> Fixed:
    return Fixed(agreement=agreement)


SLEEP, CALL, HELP = verb("schlafen"), verb("anrufen"), verb("helfen")
SEE, GO, GET_UP = verb("sehen"), verb("gehen"), verb("aufstehen")
YESTERDAY = Pair("gestern", "yesterday")
IN_THE_PARK = prepositional("in", "dat", "in", np("park", "der", "klein"))
INTO_THE_HOUSE = prepositional("in", "acc", "into", np("haus"))

EXAMPLES = [
    (
        plain(subject=np("hund", "ein", "klein"), verb=SEE, direct=np("katze", "ein")),
        "ein kleiner hund sieht eine katze .",
        "a small dog sees a cat .",
    ),
    (
        plain(
            subject=np("kind", "mein", "müde"),
            verb=verb("essen"),
            direct=np("apfel", "ein", "frisch"),
        ),
        "mein müdes kind isst einen frischen apfel .",
        "my tired child eats a fresh apple .",
    ),
    (
        plain(subject=ME, verb=verb("trinken"), direct=np("kaffee", "", "kalt")),
        "ich trinke kalten kaffee .",
        "i drink cold coffee .",
    ),
    (
        plain(subject=np("frau"), verb=HELP, indirect=np("junge", "der", "klug")),
        "die frau hilft dem klugen jungen .",
        "the woman helps the smart boy .",
    ),
    (
        plain(
            subject=np("lehrer", "dies", plural=True),
            verb=verb("geben"),
            tense=PAST,
            indirect=np("kind", "unser", plural=True),
            direct=np("buch", "", "teuer", plural=True, number=21),
        ),
        "diese lehrer gaben unseren kindern einundzwanzig teure bücher .",
        "these teachers gave our children twenty-one expensive books .",
    ),
    (
        plain(
            subject=np("student", "all", "faul", plural=True),
            verb=SLEEP,
            place=IN_THE_PARK,
        ),
        "alle faulen studenten schlafen im kleinen park .",
        "all lazy students sleep in the small park .",
    ),
    (
        plain(subject=HE, verb=CALL, direct=ANNA),
        "er ruft anna an .",
        "he calls anna .",
    ),
    (
        finish(subordinate(Clause(HE, CALL, direct=ANNA), WEIL)),
        "weil er anna anruft .",
        "because he calls anna .",
    ),
    (
        plain(subject=HE, verb=CALL, tense=PERFECT, direct=ME),
        "er hat mich angerufen .",
        "he has called me .",
    ),
    (
        plain(subject=SHE, verb=verb("abholen"), direct=HE),
        "sie holt ihn ab .",
        "she picks him up .",
    ),
    (
        plain(subject=THEY, verb=verb("abholen"), tense=PAST, direct=np("gast")),
        "sie holten den gast ab .",
        "they picked up the guest .",
    ),
    (
        plain(subject=WE, verb=GET_UP, tense=PERFECT),
        "wir sind aufgestanden .",
        "we have gotten up .",
    ),
    (
        plain(subject=YOU, verb=GO, tense=PERFECT, oblique=INTO_THE_HOUSE),
        "du bist ins haus gegangen .",
        "you have gone into the house .",
    ),
    (
        finish(
            subordinate(
                Clause(ANNA, GO, tense=PERFECT, oblique=INTO_THE_HOUSE),
                Pair("obwohl", "although"),
            )
        ),
        "obwohl anna ins haus gegangen ist .",
        "although anna has gone into the house .",
    ),
    (
        plain(subject=who("mann", Clause(gap(), SLEEP), "nom"), verb=verb("lachen")),
        "der mann , der schläft , lacht .",
        "the man who sleeps laughs .",
    ),
    (
        plain(subject=HE, verb=SEE, direct=who("hund", Clause(SHE, SEE), "acc")),
        "er sieht den hund , den sie sieht .",
        "he sees the dog that she sees .",
    ),
    (
        plain(
            subject=who("kind", Clause(ANNA, HELP, PAST), "dat", many=True),
            verb=verb("lachen"),
        ),
        "die kinder , denen anna half , lachen .",
        "the children whom anna helped laugh .",
    ),
    (
        plain(
            subject=who("frau", Clause(HE, verb("wohnen")), "dat", Pair("bei", "with")),
            verb=verb("kochen"),
        ),
        "die frau , bei der er wohnt , kocht .",
        "the woman with whom he lives cooks .",
    ),
    (
        finish(statement(Clause(np("bär"), SLEEP, PAST), YESTERDAY)),
        "gestern schlief der bär .",
        "yesterday the bear slept .",
    ),
    (
        finish(
            statement(
                Clause(np("koch"), verb("einkaufen"), FUTURE),
                Pair("morgen", "tomorrow"),
            )
        ),
        "morgen wird der koch einkaufen .",
        "tomorrow the cook will go shopping .",
    ),
    (
        finish(
            Pair(
                german(Clause(np("frau"), verb("kaufen")), "second", "den hut"),
                english(Clause(np("frau"), verb("kaufen"), direct=np("hut"))),
            )
        ),
        "den hut kauft die frau .",
        "the woman buys the hat .",
    ),
    (
        plain(subject=ME, verb=verb("kaufen"), direct=np("ei", "kein")),
        "ich kaufe kein ei .",
        "i do not buy an egg .",
    ),
    (
        plain(subject=np("igel", "kein"), verb=SLEEP),
        "kein igel schläft .",
        "no hedgehog sleeps .",
    ),
    (
        plain(subject=SHE, verb=GO, modal=modal("können"), negated=True),
        "sie kann nicht gehen .",
        "she cannot go .",
    ),
    (
        plain(subject=HE, verb=GO, modal=modal("müssen"), negated=True),
        "er muss nicht gehen .",
        "he does not have to go .",
    ),
    (
        plain(subject=THEY, verb=GO, tense=PAST, modal=modal("dürfen")),
        "sie durften gehen .",
        "they were allowed to go .",
    ),
    (
        finish(question(Clause(np("vater"), SLEEP, modal=modal("wollen"))), "?"),
        "will der vater schlafen ?",
        "does the father want to sleep ?",
    ),
    (
        finish(question(Clause(SHE, SEE, PAST), Pair("wen", "whom")), "?"),
        "wen sah sie ?",
        "whom did she see ?",
    ),
    (
        finish(statement(Clause(Fixed("wer", "who"), SLEEP, negated=True)), "?"),
        "wer schläft nicht ?",
        "who does not sleep ?",
    ),
    (
        plain(
            subject=Both(np("könig"), ANNA),
            verb=verb("wissen"),
            link=Pair("dass", "that"),
            content=Clause(np("maus", "der", plural=True), GET_UP),
        ),
        "der könig und anna wissen , dass die mäuse aufstehen .",
        "the king and anna know that the mice get up .",
    ),
    (
        plain(
            subject=np("hund", "der", modifier=Pair("des lehrers", "of the teacher")),
            verb=verb("sein"),
            tense=PAST,
            frequency=Pair("oft", "often"),
            place=Pair("müde", "tired"),
        ),
        "der hund des lehrers war oft müde .",
        "the dog of the teacher was often tired .",
    ),
    (
        plain(
            subject=np("lehrer"),
            verb=verb("zurückgeben"),
            indirect=ME,
            direct=np("buch"),
            time=Pair("heute", "today"),
        ),
        "der lehrer gibt mir heute das buch zurück .",
        "the teacher returns the book to me today .",
    ),
]


@pytest.mark.parametrize(("pair", "de", "en"), EXAMPLES, ids=[e[1] for e in EXAMPLES])
def test_the_grammar_says_it_as_a_speaker_would(pair, de, en):
    assert pair == (de, en)


@pytest.mark.parametrize(
    ("number", "de", "en"),
    [
        (2, "zwei", "two"),
        (16, "sechzehn", "sixteen"),
        (21, "einundzwanzig", "twenty-one"),
        (37, "siebenunddreißig", "thirty-seven"),
        (66, "sechsundsechzig", "sixty-six"),
        (100, "hundert", "one hundred"),
    ],
)
def test_numbers_are_written_as_words(number, de, en):
    assert number_words(number) == (de, en)


@pytest.mark.parametrize(
    ("preposition", "case", "head", "expected"),
    [
        ("zu", "dat", "schule", "zur schule"),
        ("zu", "dat", "bahnhof", "zum bahnhof"),
        ("von", "dat", "berg", "vom berg"),
        ("an", "dat", "see", "am see"),
        ("in", "acc", "garten", "in den garten"),
        ("in", "dat", "küche", "in der küche"),
        ("bei", "dat", "nachbar", "beim nachbarn"),
    ],
)
def test_prepositions_contract_with_the_article(preposition, case, head, expected):
    assert prepositional(preposition, case, "", np(head)).de == expected


def test_the_command_writes_six_files_and_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, str(DEMO / "grammar.py"), str(tmp_path / "out")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.count("\n") == 1
    assert "20000 train" in done.stdout
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == [
        f"{n}.{s}" for n in ("test", "train", "valid") for s in ("de", "en")
    ]
    text = (tmp_path / "out" / "train.de").read_bytes().decode("utf-8")
    assert text.endswith(" .\n") or text.endswith(" ?\n")
    assert len(text.splitlines()) == 20000
