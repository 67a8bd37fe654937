"""A small German-English parallel corpus, written by a grammar of our own.

The grammar draws a clause, and says it in both languages.  Each German sentence has
one English translation: every German tense has one English tense, every adverb has
one place, and what German leaves open (the possessive "ihr", the accusative "sie",
an object before its subject where no ending tells them apart) is left out.  "Du"
stands with auxiliary and modal verbs only, which keeps the vocabulary small.

    python grammar.py OUT_DIR [--seed 1]
"""

from __future__ import annotations

import argparse
import os
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

import lexicon

PRESENT, PAST, PERFECT, FUTURE = "rpef"
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)  # the columns of the endings

DEFINITE = {
    "nom": ("der", "die", "das", "die"),
    "acc": ("den", "die", "das", "die"),
    "dat": ("dem", "der", "dem", "den"),
    "gen": ("des", "der", "des", "der"),
}
STRONG = {
    "nom": ("er", "e", "es", "e"),
    "acc": ("en", "e", "es", "e"),
    "dat": ("em", "er", "em", "en"),
    "gen": ("es", "er", "es", "er"),
}
WEAK = {
    "nom": ("e", "e", "e", "en"),
    "acc": ("en", "e", "e", "en"),
    "dat": ("en", "en", "en", "en"),
    "gen": ("en", "en", "en", "en"),
}
BARE = (("nom", MASCULINE), ("nom", NEUTER), ("acc", NEUTER))  # "ein" has no ending
EIN_WORDS = ("ein", "kein", "mein", "dein", "sein", "unser")
POSSESSIVES = ("mein", "dein", "sein", "unser")
DEFINITE_DETERMINERS = ("der", "dies", *POSSESSIVES)
CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "an das": "ans",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
    "bei dem": "beim",
}
# "Meine frau" is my wife, not my woman: these nouns have no owner here.
SPOUSES = ("mann", "frau")
INSEPARABLE = ("be", "ver", "er", "ent", "ge", "zer")
VOWELS = "aeiouäöüy"
LONGEST = 25  # tokens on either side of a sentence
PATIENCE = 1000  # sentences refused in a row before a corpus is given up


class Pair(NamedTuple):
    """A German string and its English translation."""

    de: str
    en: str


NONE = Pair("", "")


def join(*words: str) -> str:
    """Join the words that are not empty with blanks."""
    return " ".join(word for word in words if word)


def rows(table: str) -> list[list[str]]:
    """Split a table of the lexicon into its cells."""
    return [line.split() for line in table.strip().splitlines()]


def pairs(table: str) -> list[tuple[Pair, str]]:
    """Read a table of German, English and, where there is one, a third column."""
    return [
        (Pair(spaced(row[0]), spaced(row[1])), (row[2:] or [""])[0])
        for row in rows(table)
    ]


def spaced(cell: str) -> str:
    """Write the blanks of a cell, which the tables write as underscores."""
    return cell.replace("_", " ")


# ---------------------------------------------------------------------- words


class Noun(NamedTuple):
    """A noun; the locative is the pair of prepositions that say one is there."""

    german: str
    gender: int
    weak: bool
    german_plural: str
    english: str
    english_plural: str
    classes: tuple[str, ...]
    locative: Pair = NONE

    @property
    def mass(self) -> bool:
        """Whether the noun cannot be counted."""
        return self.german_plural == "-"

    def form(self, case: str, plural: bool) -> str:
        """Decline the noun."""
        if plural:
            bare = case != "dat" or self.german_plural[-1] in "ns"
            return self.german_plural + ("" if bare else "n")
        if self.weak and case != "nom":
            return self.german_plural
        if case == "gen" and self.gender != FEMININE:
            # Right for persons, who are the only owners here.
            return self.german + ("es" if count_syllables(self.german) == 1 else "s")
        return self.german


class Adjective(NamedTuple):
    """An adjective, with the stem that takes its endings."""

    german: str
    stem: str
    english: str
    classes: tuple[str, ...]


class Verb(NamedTuple):
    """A German verb with its English counterpart."""

    infinitive: str
    prefix: str
    first: str
    third: str
    plural: str
    past: str
    participle: str
    auxiliary: str
    english: str
    english_past: str
    english_participle: str
    particle: str
    rest: str
    frames: tuple[str, ...]
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    manner: str

    @property
    def state(self) -> bool:
        """Whether the verb names a state, which takes no adverbs."""
        return self.manner == "!"


class Modal(NamedTuple):
    """A modal verb; its English is one per tense, and "-" where it has no past."""

    german: str
    english: dict[str, str]


def count_syllables(word: str) -> int:
    """Count the groups of vowels in a word."""
    return sum(
        here in VOWELS and before not in VOWELS
        for before, here in zip(" " + word, word)
    )


def classes_of(cell: str) -> tuple[str, ...]:
    """Split a cell that lists alternatives."""
    return () if cell == "-" else tuple(cell.split(","))


def english_s(word: str) -> str:
    """Add the English ending -s of a plural or of the third person."""
    if word.endswith(("s", "x", "z", "ch", "sh", "o")):
        return word + "es"
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def english_ed(word: str) -> str:
    """Add the English ending -ed of a regular past."""
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ied"
    return word + "ed"


def read_noun(row: Sequence[str]) -> Noun:
    """Read a row of the nouns or of the places."""
    german, gender, plural, english, english_plural, classes = row[:6]
    if english_plural == "=":
        english_plural = english_s(english)
    locative = Pair(*row[6:]) if row[6:] else NONE
    return Noun(
        german,
        "mfn".index(gender[0]),
        gender == "mw",
        plural,
        english,
        english_plural,
        classes_of(classes),
        locative,
    )


def read_adjective(row: Sequence[str]) -> Adjective:
    """Read a row of the adjectives."""
    german, _, stem = row[0].partition("/")
    if not stem:
        stem = german[:-1] if german.endswith("e") else german
    return Adjective(german, stem, row[1], classes_of(row[2]))


def german_parts(infinitive: str, cell: str) -> tuple[str, str, str, str]:
    """Give the first and third person, the past and the participle of a verb."""
    ending = 2 if infinitive.endswith("en") else 1
    stem = infinitive[:-ending]
    linked = stem.endswith(("d", "t")) or (
        stem[-1] in "mn"
        and stem[-2] not in VOWELS + "lrmn"
        and (stem[-2] != "h" or stem.endswith("chn"))
    )
    stem_e = stem + "e" if linked else stem
    third, past, participle = [*cell.split("/"), "=", "="][:3]
    if third == "=":
        third = stem_e + "t"
    if past == "=":
        past = stem_e + "te"
    if participle == "=":
        plain = stem.startswith(INSEPARABLE) or infinitive.endswith("ieren")
        participle = ("" if plain else "ge") + stem_e + "t"
    first = stem[:-2] + "le" if infinitive.endswith("eln") else stem + "e"
    if not third.endswith("t"):
        first = third
    return first, third, past, participle


def read_verb(row: Sequence[str]) -> Verb:
    """Read a row of the verbs."""
    german, parts, auxiliary, english, english_parts, frames, subjects = row[:7]
    prefix, _, base = german.rpartition("|")
    first, third, past, participle = german_parts(base, parts)
    head, _, particle = english.partition("+")
    head, _, rest = head.partition("_")
    regular = english_ed(head)
    if english_parts == "=":
        english_parts = regular + "/" + regular
    english_past, english_participle = english_parts.split("/")
    return Verb(
        prefix + base,
        prefix,
        first,
        third,
        base,
        past,
        prefix + participle,
        {"h": "haben", "s": "sein"}[auxiliary],
        head,
        english_past,
        english_participle,
        particle,
        spaced(rest),
        classes_of(frames),
        classes_of(subjects),
        classes_of(row[7]),
        row[8],
    )


def read_forms() -> dict[str, dict[str, dict[str, str]]]:
    """Read the finite forms of the auxiliaries and modals, by tense and person."""
    forms = {}
    for row in rows(lexicon.AUXILIARIES) + rows(lexicon.MODALS):
        forms[row[0]] = {
            tense: dict(zip(("1s", "2s", "3s", "1p", "3p"), cells + cells[-1:]))
            for tense, cells in zip("rp", (row[1].split("/"), row[2].split("/")))
        }
    return forms


NOUNS = [read_noun(row) for row in rows(lexicon.NOUNS) + rows(lexicon.PLACES)]
ADJECTIVES = [read_adjective(row) for row in rows(lexicon.ADJECTIVES)]
VERBS = [read_verb(row) for row in rows(lexicon.VERBS)]
MODALS = [
    Modal(row[0], {PRESENT: spaced(row[3]), PAST: spaced(row[4])})
    for row in rows(lexicon.MODALS)
]
FORMS = read_forms()
DETERMINERS = {row[0]: (row[1], row[2]) for row in rows(lexicon.DETERMINERS)}
NUMBERS = {int(row[0]): Pair(row[1], spaced(row[2])) for row in rows(lexicon.NUMBERS)}
TIMES = pairs(lexicon.TIMES)
FREQUENCIES = pairs(lexicon.FREQUENCIES)
MANNERS = pairs(lexicon.MANNERS)
PLACE_ADVERBS = [pair for pair, _ in pairs(lexicon.PLACE_ADVERBS)]
SUBORDINATORS = pairs(lexicon.SUBORDINATORS)
COORDINATORS = [pair for pair, _ in pairs(lexicon.COORDINATORS)]
NAMES = lexicon.NAMES.split()


def noun(german: str) -> Noun:
    """Find a noun."""
    return next(entry for entry in NOUNS if entry.german == german)


def adjective(german: str) -> Adjective:
    """Find an adjective."""
    return next(entry for entry in ADJECTIVES if entry.german == german)


def verb(infinitive: str) -> Verb:
    """Find a verb."""
    return next(entry for entry in VERBS if entry.infinitive == infinitive)


def modal(german: str) -> Modal:
    """Find a modal verb."""
    return next(entry for entry in MODALS if entry.german == german)


def lexeme_count() -> int:
    """Count the lexemes: the distinct headwords of each kind of table."""
    tables = {
        "noun": [lexicon.NOUNS, lexicon.PLACES],
        "verb": [lexicon.VERBS, lexicon.AUXILIARIES, lexicon.MODALS],
        "adjective": [lexicon.ADJECTIVES],
        "adverb": [
            lexicon.TIMES,
            lexicon.FREQUENCIES,
            lexicon.MANNERS,
            lexicon.PLACE_ADVERBS,
        ],
        "preposition": [lexicon.POSITIONS, lexicon.DIRECTIONS, lexicon.COMPANIONS],
        "pronoun": [lexicon.PRONOUNS],
        "determiner": [lexicon.DETERMINERS],
        "conjunction": [lexicon.SUBORDINATORS, lexicon.COORDINATORS],
        "question": [lexicon.QUESTION_WORDS],
    }
    heads = {
        (kind, row[0])
        for kind, members in tables.items()
        for table in members
        for row in rows(table)
    }
    return len(heads) + len(NAMES) + len(NUMBERS)


def number_words(number: int) -> Pair:
    """Write a number from two to a hundred."""
    if number in NUMBERS:
        return NUMBERS[number]
    tens, unit = NUMBERS[number // 10 * 10], number % 10
    one = NUMBERS.get(unit, Pair("ein", "one"))
    return Pair(one.de + "und" + tens.de, tens.en + "-" + one.en)


# -------------------------------------------------------------------- phrases


class Phrase(ABC):
    """Something that can be a subject or an object.

    It has an agreement, which is a person and "s" or "p"; it is distinct if its
    German nominative differs from its accusative, and definite if "nicht" negates
    it rather than "kein".
    """

    agreement: str
    distinct = False
    definite = True

    @abstractmethod
    def german(self, case: str) -> str:
        """Say the phrase in German."""

    @abstractmethod
    def english(self, case: str) -> str:
        """Say the phrase in English."""


@dataclass(frozen=True)
class Fixed(Phrase):
    """A phrase without cases: a name, "es", "wer", or a gap."""

    de: str = ""
    en: str = ""
    agreement: str = "3s"

    def german(self, case: str) -> str:
        """Say the phrase in German."""
        return self.de

    def english(self, case: str) -> str:
        """Say the phrase in English."""
        return self.en


@dataclass(frozen=True)
class Pronoun(Phrase):
    """A personal pronoun, with its oblique forms."""

    de: str
    accusative: str
    dative: str
    agreement: str
    en: str
    english_object: str

    def german(self, case: str) -> str:
        """Say the pronoun in German."""
        return {"nom": self.de, "acc": self.accusative, "dat": self.dative}[case]

    def english(self, case: str) -> str:
        """Say the pronoun in English."""
        return self.en if case == "nom" else self.english_object

    @property
    def distinct(self) -> bool:
        """Whether the nominative differs from the accusative."""
        return self.de != "sie"


PRONOUNS = [Pronoun(*row) for row in rows(lexicon.PRONOUNS)]


def pronoun(english: str) -> Pronoun:
    """Find a personal pronoun by its English subject form."""
    return next(entry for entry in PRONOUNS if entry.en == english)


@dataclass(frozen=True)
class NounPhrase(Phrase):
    """A noun with its determiner, number, adjective and one modifier behind it."""

    noun: Noun
    determiner: str = ""
    adjective: Adjective | None = None
    plural: bool = False
    number: int = 0
    modifier: Pair = NONE

    def german(self, case: str) -> str:
        """Decline the phrase."""
        column = PLURAL if self.plural else self.noun.gender
        article = german_determiner(self.determiner, case, column)
        described = ""
        if self.adjective:
            bare = article == self.determiner and article != "der"
            strong = bare or self.determiner in ("viel", "einig")
            ending = (STRONG if strong else WEAK)[case][column]
            described = self.adjective.stem + ending
        count = number_words(self.number).de if self.number else ""
        head = self.noun.form(case, self.plural)
        return join(article, count, described, head, self.modifier.de)

    def english(self, case: str) -> str:
        """Say the phrase in English."""
        count = number_words(self.number).en if self.number else ""
        described = self.adjective.english if self.adjective else ""
        head = self.noun.english_plural if self.plural else self.noun.english
        words = join(count, described, head, self.modifier.en)
        return join(english_determiner(self, case, words), words)

    @property
    def agreement(self) -> str:
        """The person and number that the verb agrees with."""
        return "3p" if self.plural else "3s"

    @property
    def distinct(self) -> bool:
        """Whether the nominative differs from the accusative."""
        return self.noun.gender == MASCULINE and not self.plural

    @property
    def definite(self) -> bool:
        """Whether the phrase is negated by "nicht" rather than by "kein"."""
        return self.determiner in DEFINITE_DETERMINERS


@dataclass(frozen=True)
class Both(Phrase):
    """Two phrases joined by "und"."""

    first: Phrase
    second: Phrase
    agreement: str = "3p"

    def german(self, case: str) -> str:
        """Say both phrases in German."""
        return join(self.first.german(case), "und", self.second.german(case))

    def english(self, case: str) -> str:
        """Say both phrases in English."""
        return join(self.first.english(case), "and", self.second.english(case))


def german_determiner(determiner: str, case: str, column: int) -> str:
    """Decline a determiner for a gender, or for the plural."""
    if determiner == "der":
        return DEFINITE[case][column]
    if determiner in EIN_WORDS:
        bare = (case, column) in BARE
        return determiner + ("" if bare else STRONG[case][column])
    if determiner in ("", "wie viele"):
        return determiner
    return determiner + STRONG[case][column]


def english_determiner(phrase: NounPhrase, case: str, following: str) -> str:
    """Give the English determiner that stands before the following words."""
    determiner = phrase.determiner
    if determiner == "wie viele":
        return "how many"
    negated_object = determiner == "kein" and case != "nom"
    if negated_object and (phrase.plural or phrase.noun.mass):
        return "any"
    if determiner == "ein" or negated_object:
        return "an" if following[0] in "aeiou" else "a"
    return DETERMINERS[determiner][phrase.plural] if determiner else ""


def np(german: str, determiner: str = "der", described: str = "", **more) -> NounPhrase:
    """Build a noun phrase from German headwords; `more` holds its other fields."""
    chosen = adjective(described) if described else None
    return NounPhrase(
        noun=noun(german), determiner=determiner, adjective=chosen, **more
    )


def prepositional(german: str, case: str, english: str, phrase: Phrase) -> Pair:
    """Put a phrase behind a preposition, which may swallow its article."""
    words = phrase.german(case)
    first, _, others = words.partition(" ")
    short = CONTRACTIONS.get(german + " " + first)
    return Pair(
        join(short, others) if short else join(german, words),
        join(english, phrase.english(case)),
    )


# -------------------------------------------------------------------- clauses


@dataclass(frozen=True)
class Clause:
    """What a clause says, before either language orders it."""

    subject: Phrase
    verb: Verb
    tense: str = PRESENT
    modal: Modal | None = None
    negated: bool = False
    direct: Phrase | None = None
    indirect: Phrase | None = None
    oblique: Pair = NONE
    time: Pair = NONE
    frequency: Pair = NONE
    manner: Pair = NONE
    place: Pair = NONE
    link: Pair = NONE
    content: Clause | None = None

    @property
    def denied(self) -> bool:
        """Whether the English clause needs a "not"."""
        direct = self.direct
        return self.negated or (
            isinstance(direct, NounPhrase) and direct.determiner == "kein"
        )


def german_finite(entry: Verb, tense: str, agreement: str) -> str:
    """Conjugate a verb, without its separable prefix."""
    if entry.infinitive in FORMS:
        return FORMS[entry.infinitive][tense][agreement]
    if tense == PRESENT:
        singular = {"1s": entry.first, "3s": entry.third}
        return entry.plural if agreement[1] == "p" else singular[agreement]
    if agreement[1] == "s":
        return entry.past
    return entry.past + ("n" if entry.past.endswith("e") else "en")


def german_verb(clause: Clause) -> tuple[str, str]:
    """Give the finite verb, and what ends a main clause."""
    agreement, entry = clause.subject.agreement, clause.verb
    if clause.modal:
        finite = FORMS[clause.modal.german][clause.tense][agreement]
        return finite, entry.infinitive
    if clause.tense == PERFECT:
        return FORMS[entry.auxiliary][PRESENT][agreement], entry.participle
    if clause.tense == FUTURE:
        return FORMS["werden"][PRESENT][agreement], entry.infinitive
    return german_finite(entry, clause.tense, agreement), entry.prefix


def german_middle(clause: Clause) -> str:
    """Order what stands between the two parts of the German verb."""
    indirect = clause.indirect.german("dat") if clause.indirect else ""
    direct = clause.direct.german("acc") if clause.direct else ""
    early_indirect = isinstance(clause.indirect, Pronoun)
    early_direct = isinstance(clause.direct, Pronoun)
    return join(
        direct if early_direct else "",
        indirect if early_indirect else "",
        clause.time.de,
        clause.frequency.de,
        "" if early_indirect else indirect,
        "" if early_direct else direct,
        "nicht" if clause.negated else "",
        clause.manner.de,
        clause.place.de,
        clause.oblique.de,
    )


def german(clause: Clause, order: str = "second", front: str = "") -> str:
    """Say a clause in German, with the finite verb first, second or last."""
    finite, end = german_verb(clause)
    subject, middle = clause.subject.german("nom"), german_middle(clause)
    compound = clause.modal or clause.tense in (PERFECT, FUTURE)
    if order == "last":
        words = join(subject, middle, end, finite)
        if not compound:
            words = join(subject, middle, end + finite)
    elif order == "first" or front:
        words = join(front, finite, subject, middle, end)
    else:
        words = join(subject, finite, middle, end)
    if clause.content:
        words = join(words, ",", clause.link.de, german(clause.content, "last"), ",")
    return words


def english_finite(head: str, past: str, tense: str, agreement: str) -> str:
    """Conjugate an English verb."""
    if head == "be":
        present = {"1s": "am", "3s": "is"}.get(agreement, "are")
        singular = agreement in ("1s", "3s")
        return present if tense == PRESENT else ("was" if singular else "were")
    if tense == PAST:
        return past
    if agreement != "3s":
        return head
    return "has" if head == "have" else english_s(head)


def english_verb(clause: Clause, support: bool) -> tuple[str, str, bool]:
    """Give the finite verb, the other verbs, and whether the finite one is "main"."""
    entry, tense, agreement = clause.verb, clause.tense, clause.subject.agreement
    head, past, others = entry.english, entry.english_past, ""
    if tense == FUTURE:
        return "will", head, False
    if tense == PERFECT:
        has = english_finite("have", "had", PRESENT, agreement)
        return has, entry.english_participle, False
    if clause.modal:
        auxiliary, _, more = clause.modal.english[tense].partition(" ")
        others = join(more, head)
        if auxiliary not in ("have", "want", "be"):
            return auxiliary, others, False
        head, past = auxiliary, {"have": "had"}.get(auxiliary, "wanted")
    if head == "be":
        return english_finite("be", "", tense, agreement), others, False
    if support:
        return english_finite("do", "did", tense, agreement), join(head, others), False
    return english_finite(head, past, tense, agreement), others, True


def english_objects(clause: Clause) -> str:
    """Order the English objects behind the verb."""
    entry = clause.verb
    direct = clause.direct.english("acc") if clause.direct else ""
    indirect = clause.indirect.english("dat") if clause.indirect else ""
    if isinstance(clause.direct, Pronoun):
        return join(entry.rest, direct, entry.particle)
    if "k" in entry.frames and indirect:
        return join(direct, "to", indirect)
    return join(entry.rest, entry.particle, indirect, direct)


def english(clause: Clause, inverted: bool = False, front: str = "") -> str:
    """Say a clause in English, as a statement or with the verb before the subject."""
    subject = clause.subject.english("nom")
    finite, others, main = english_verb(clause, clause.denied or inverted)
    negation = "not" if clause.denied else ""
    if main:
        words = join(subject, clause.frequency.en, finite, others)
    elif inverted:
        words = join(finite, subject, negation, clause.frequency.en, others)
    else:
        first = join(finite, negation).replace("can not", "cannot")
        words = join(subject, first, clause.frequency.en, others)
    words = join(
        front,
        words,
        english_objects(clause),
        clause.oblique.en,
        clause.manner.en,
        clause.place.en,
        clause.time.en,
    )
    if clause.content:
        words = join(words, clause.link.en, english(clause.content))
    return words


def relative(head: Noun, plural: bool, clause: Clause, case: str, by: Pair) -> Pair:
    """Turn a clause with a gap into a relative clause about a noun.

    The case is the one of the gap; `by` is the preposition that moves with it.
    """
    column = PLURAL if plural else head.gender
    pronoun_de = DEFINITE[case][column]
    if case == "dat" and plural:
        pronoun_de = "denen"
    person = "person" in head.classes
    if by.en:
        pronoun_en = "whom" if person else "which"
    elif person:
        pronoun_en = "who" if case == "nom" else "whom"
    else:
        pronoun_en = "that"
    return Pair(
        join(",", by.de, pronoun_de, german(clause, "last"), ","),
        join(by.en, pronoun_en, english(clause)),
    )


def finish(pair: Pair, mark: str = ".") -> Pair:
    """End a sentence, and drop the commas that its end makes superfluous."""
    de = join(pair.de, mark).replace(", ,", ",").replace(", " + mark, mark)
    return Pair(de, join(pair.en, mark))


def statement(clause: Clause, front: Pair = NONE) -> Pair:
    """Say a clause as a main clause, behind what is put in front of it."""
    return Pair(german(clause, "second", front.de), english(clause, False, front.en))


def question(clause: Clause, front: Pair = NONE) -> Pair:
    """Say a clause as a question, behind its question word where it has one."""
    return Pair(german(clause, "first", front.de), english(clause, True, front.en))


def subordinate(clause: Clause, link: Pair) -> Pair:
    """Say a clause behind a conjunction that sends the German verb to the end."""
    return Pair(join(link.de, german(clause, "last")), join(link.en, english(clause)))


# ------------------------------------------------------------------- sampling


@lru_cache(maxsize=None)
def nouns_of(classes: tuple[str, ...]) -> list[Noun]:
    """List the nouns of any of these classes."""
    return [entry for entry in NOUNS if overlap(entry.classes, classes)]


@lru_cache(maxsize=None)
def verbs_of(frame: str) -> list[Verb]:
    """List the verbs of a frame."""
    return [entry for entry in VERBS if frame in entry.frames]


def overlap(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether two lists of classes share one."""
    return any(name in right for name in left)


class Sampler:
    """Draws sentences; the same seed gives the same ones on every machine."""

    def __init__(self, seed: int) -> None:
        """Start a stream of sentences."""
        self.random = random.Random(seed).random
        self.used: list[str] = []
        self.tense = PRESENT

    # `Random.choice` changed between Python versions; `random` did not.
    def pick(self, items: Sequence):
        """Draw one of the items."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Say yes with this probability."""
        return self.random() < probability

    def weigh(self, weights: Sequence[tuple]):
        """Draw an item from pairs of an item and its weight."""
        left = self.random() * sum(weight for _, weight in weights)
        for item, weight in weights:
            left -= weight
            if left < 0:
                return item
        return weights[-1][0]

    def fresh(self, entries: Sequence):
        """Draw a lexicon entry that the sentence has not used, if there is one."""
        unused = [entry for entry in entries if entry[0] not in self.used]
        chosen = self.pick(unused or entries)
        self.used.append(chosen[0])
        return chosen

    # ---------------------------------------------------------- noun phrases

    def noun(self, classes: Sequence[str]) -> Noun:
        """Draw a noun of one of these classes that the sentence has not used."""
        return self.fresh(nouns_of(tuple(classes)))

    def describe(self, chosen: Noun, probability: float) -> Adjective | None:
        """Draw an adjective that fits a noun, or none."""
        fitting = [
            entry for entry in ADJECTIVES if overlap(entry.classes, chosen.classes)
        ]
        return self.fresh(fitting) if fitting and self.chance(probability) else None

    def number(self) -> int:
        """Draw a number from two to a hundred, small ones more often."""
        if self.chance(0.6):
            return 2 + int(self.random() * 11)
        return 13 + int(self.random() * 88)

    def simple(self, classes: Sequence[str], described: float = 0.25) -> NounPhrase:
        """Draw a definite singular noun phrase."""
        chosen = self.noun(classes)
        determiner = self.weigh([("der", 6), ("mein", 1), ("sein", 1), ("unser", 1)])
        if chosen.german in SPOUSES:
            determiner = "der"
        return NounPhrase(
            noun=chosen,
            determiner=determiner,
            adjective=self.describe(chosen, described),
        )

    def noun_phrase(
        self, classes: Sequence[str], depth: int = 0, subject: bool = False
    ) -> NounPhrase:
        """Draw a noun phrase, with a modifier only outside embedded clauses."""
        chosen = self.noun(classes)
        plural = not chosen.mass and self.chance(0.33)
        number = 0
        if chosen.mass:
            determiner = self.weigh([("", 6), ("der", 3), ("mein", 1)])
        elif plural:
            determiner = self.weigh(PLURAL_SUBJECTS if subject else PLURAL_OBJECTS)
            if determiner.endswith("number"):
                determiner = determiner[: -len("number")]
                number = self.number()
        else:
            determiner = self.weigh(SINGULAR_SUBJECTS if subject else SINGULAR_OBJECTS)
        if chosen.german in SPOUSES and determiner in POSSESSIVES:
            determiner = "der"
        described = self.describe(chosen, 0.3)
        modifier = NONE
        if depth == 0 and determiner in ("der", "ein", "dies"):
            modifier = self.modifier(chosen, plural, determiner)
        return NounPhrase(
            noun=chosen,
            determiner=determiner,
            adjective=described,
            plural=plural,
            number=number,
            modifier=modifier,
        )

    def modifier(self, chosen: Noun, plural: bool, determiner: str) -> Pair:
        """Draw a relative clause, a genitive or a "mit" phrase, or nothing."""
        kind = self.weigh([("relative", 20), ("genitive", 12), ("mit", 5), ("", 63)])
        if kind == "relative":
            return self.relative(chosen, plural)
        owned = determiner == "der" and chosen.german not in SPOUSES
        if kind == "genitive" and owned:
            owner = self.simple(["person"], 0.1)
            # The genitive "der königin" could be a dative object instead.
            if owner.noun.gender == FEMININE:
                return NONE
            return Pair(owner.german("gen"), join("of", owner.english("gen")))
        if kind == "mit" and "person" in chosen.classes and not plural:
            worn = self.noun(["clothing"])
            described = self.describe(worn, 1.0)
            phrase = NounPhrase(noun=worn, determiner="der", adjective=described)
            return prepositional("mit", "dat", "with", phrase)
        return NONE

    def relative(self, head: Noun, plural: bool) -> Pair:
        """Draw a relative clause about a noun, or nothing where none fits."""
        outer = self.tense
        self.tense = PAST if outer == PAST else self.pick((PRESENT, PERFECT, PAST))
        kinds = [(self.about_subject, 5), (self.about_object, 5)]
        if head.locative.de:
            kinds.append((self.about_place, 20))
        if "person" in head.classes:
            kinds.append((self.about_oblique, 2))
        found = self.weigh(kinds)(head, plural)
        self.tense = outer
        return relative(head, plural, *found) if found else NONE

    def about_subject(self, head: Noun, plural: bool) -> tuple[Clause, str, Pair]:
        """Draw a clause whose gap is its subject."""
        fitting = [
            (frame, entry)
            for frame in "iitvb"
            for entry in verbs_of(frame)
            if overlap(entry.subjects, head.classes)
        ]
        frame, entry = self.pick(fitting or [("b", verb("sein"))])
        if self.chance(0.1):
            frame, entry = "b", verb("sein")
        gap = Fixed(agreement="3p" if plural else "3s")
        clause = self.clause(
            frame, entry=entry, subject=gap, classes=head.classes, depth=1, bare=True
        )
        return clause, "nom", NONE

    def about_object(self, head: Noun, plural: bool):
        """Draw a clause whose gap is its object, if German can tell the two apart."""
        fitting = [
            (frame, entry)
            for frame in "ttv"
            for entry in verbs_of(frame)
            if overlap(entry.objects, head.classes)
        ]
        if not fitting:
            return None
        frame, entry = self.pick(fitting)
        clause = self.clause(frame, entry=entry, depth=1, bare=True, gap=True)
        marked = head.gender == MASCULINE and not plural
        if frame == "t" and not (marked or clause.subject.distinct):
            return None
        return clause, "dat" if frame == "v" else "acc", NONE

    def about_place(self, head: Noun, plural: bool) -> tuple[Clause, str, Pair]:
        """Draw a clause whose gap is where it happens."""
        clause = self.clause(self.pick("ip"), depth=1, bare=True, gap=True)
        return clause, "dat", head.locative

    def about_oblique(self, head: Noun, plural: bool) -> tuple[Clause, str, Pair]:
        """Draw a clause whose gap is behind the preposition of its verb."""
        row = self.pick([row for row in OBLIQUES if "person" in row[4]])
        entry = verb(row[0])
        clause = self.clause("i", entry=entry, depth=1, bare=True, gap=True)
        return clause, row[2], Pair(row[1], row[3])

    def subject(self, classes: Sequence[str], informal: bool, depth: int) -> Phrase:
        """Draw a subject of these classes; only an informal one may be "du"."""
        if "person" in classes:
            kind = self.weigh([("pronoun", 24), ("name", 9), ("both", 5), ("", 62)])
            if kind == "pronoun":
                return self.pick([p for p in PRONOUNS if informal or p.en != "you"])
            if kind == "name":
                return self.name()
            if kind == "both":
                return Both(first=self.person(), second=self.person())
        return self.noun_phrase(classes, depth, subject=True)

    def person(self) -> Phrase:
        """Draw a name or a simple phrase about a person."""
        return self.name() if self.chance(0.3) else self.simple(["person"], 0.1)

    def name(self) -> Phrase:
        """Draw a name that the sentence has not used."""
        chosen = self.pick([name for name in NAMES if name not in self.used])
        self.used.append(chosen)
        return Fixed(chosen, chosen)

    def object(
        self, classes: Sequence[str], case: str, clause: Clause, depth: int
    ) -> Phrase:
        """Draw an object for a clause; one under a negation is definite."""
        if "person" in classes:
            kind = self.weigh([("pronoun", 22), ("name", 10), ("", 68)])
            if kind == "pronoun":
                return self.pick(other_pronouns(clause.subject, case))
            if kind == "name":
                return self.name()
        if clause.negated:
            return self.simple(classes)
        return self.noun_phrase(classes, depth)

    # --------------------------------------------------------------- clauses

    def draw_tense(self) -> None:
        """Draw the tense of the next clauses."""
        self.tense = self.weigh(
            [(PRESENT, 36), (PAST, 28), (PERFECT, 20), (FUTURE, 16)]
        )

    def clause(
        self,
        frame: str = "",
        *,
        entry: Verb | None = None,
        subject: Phrase | None = None,
        classes: Sequence[str] = (),
        depth: int = 0,
        bare: bool = False,
        gap: bool = False,
    ) -> Clause:
        """Draw a clause in the tense of the sampler.

        A bare clause has no adverbs and no negation; a clause with a gap lacks the
        object, or the place, that its frame asks for.
        """
        frame = frame or self.weigh(FRAMES)
        row = self.pick(OBLIQUES) if frame == "o" else None
        entry = entry or (verb(row[0]) if row else self.fresh(verbs_of(frame)))
        auxiliary = None
        if frame not in "bw" and not entry.state and self.chance(0.16):
            auxiliary = self.modal()
        if frame == "w":
            subject = Fixed("es", "it")
        elif subject is None:
            informal = bool(
                auxiliary or self.tense in (PERFECT, FUTURE) or frame == "b"
            )
            subject = self.subject(entry.subjects, informal, depth)
        quantified = determiner_of(subject) in ("kein", "jed", "all")
        negated = not (bare or quantified) and self.chance(0.13)
        if frame == "q" and entry.infinitive == "wissen":
            negated = True
        clause = Clause(subject, entry, self.tense, auxiliary, negated)
        if not gap:
            kind = classes or classes_of_phrase(subject)
            clause = self.complete(clause, frame, row, kind, depth)
        if bare or quantified or entry.state or long_object(clause):
            return clause
        return self.adverbs(clause, frame)

    def modal(self) -> Modal | None:
        """Draw a modal verb that has the tense of the sampler, if there is one."""
        fitting = [m for m in MODALS if m.english.get(self.tense, "-") != "-"]
        return self.pick(fitting) if fitting else None

    def complete(
        self,
        clause: Clause,
        frame: str,
        row: Sequence[str] | None,
        kind: Sequence[str],
        depth: int,
    ) -> Clause:
        """Give a clause the complements that its frame asks for."""
        classes = clause.verb.objects
        if row:
            phrase = self.object(row[4].split(","), row[2], clause, depth + 1)
            return replace(clause, oblique=prepositional(*row[1:4], phrase))
        if frame == "b":
            return replace(clause, place=self.predicate(kind))
        if frame == "p":
            return replace(clause, place=self.location())
        if frame == "d":
            return replace(clause, oblique=self.direction(classes))
        if frame == "v":
            return replace(clause, indirect=self.object(classes, "dat", clause, depth))
        if frame in ("c", "q"):
            return self.content(clause, frame)
        if frame in ("g", "k"):
            receiver = self.object(["person"], "dat", clause, depth + 1)
            clause = replace(clause, indirect=receiver)
        if frame in ("t", "g", "k"):
            return self.with_direct(clause, depth)
        return clause

    def with_direct(self, clause: Clause, depth: int) -> Clause:
        """Give a clause its accusative object, which may carry the negation."""
        classes = clause.verb.objects
        if clause.negated and self.chance(0.5):
            phrase = self.noun_phrase(classes, 1)
            phrase = replace(phrase, determiner="kein", number=0)
            return replace(clause, direct=phrase, negated=False)
        return replace(clause, direct=self.object(classes, "acc", clause, depth))

    def content(self, clause: Clause, frame: str) -> Clause:
        """Give a clause the "dass" or "ob" clause that it talks about."""
        outer = self.tense
        if outer == FUTURE:
            self.tense = PRESENT
        elif outer != PAST:
            self.tense = self.pick((PRESENT, PRESENT, PAST, PERFECT, FUTURE))
        said = self.clause(self.weigh(INNER_FRAMES), depth=1)
        self.tense = outer
        link = Pair("dass", "that") if frame == "c" else Pair("ob", "whether")
        return replace(clause, link=link, content=said)

    def predicate(self, kind: Sequence[str]) -> Pair:
        """Draw what something is said to be: an adjective, or a place."""
        fitting = [entry for entry in ADJECTIVES if overlap(entry.classes, kind)]
        chosen = self.fresh(fitting)
        way = self.weigh([("adjective", 6), ("place", 3), ("as", 1.5)])
        if way == "place" and overlap(kind, ("person", "animal", "thing")):
            return self.location()
        if way == "as":
            other = self.simple(kind, 0.0)
            return Pair(
                join("so", chosen.german, "wie", other.german("nom")),
                join("as", chosen.english, "as", other.english("nom")),
            )
        return Pair(chosen.german, chosen.english)

    # --------------------------------------------------------------- adverbs

    def adverbs(self, clause: Clause, frame: str) -> Clause:
        """Add adverbs to a clause where they fit."""
        denied = clause.denied
        if not denied and frame not in "cqb" and self.chance(0.22):
            clause = replace(clause, time=self.time())
        elif not denied and frame != "w" and self.chance(0.2):
            clause = replace(clause, frequency=self.frequency())
        if frame in "cqbw":
            return clause
        definite = clause.direct is None or clause.direct.definite
        fitting = [
            pair
            for pair, group in MANNERS
            if group in clause.verb.manner and not (clause.modal and group == "g")
        ]
        if definite and fitting and self.chance(0.22):
            return replace(clause, manner=self.pick(fitting))
        if frame == "i" and self.chance(0.5):
            return replace(clause, place=self.surroundings(clause))
        if frame == "t" and definite and self.chance(0.15):
            return replace(clause, place=self.surroundings(clause))
        return clause

    def time(self) -> Pair:
        """Draw a time that fits the tense of the sampler."""
        if self.tense in (PAST, FUTURE) and self.chance(0.12):
            count = number_words(2 + int(self.random() * 11))
            german_unit, english_unit = self.pick(UNITS)
            if self.tense == FUTURE:
                return Pair(
                    join("in", count.de, german_unit),
                    join("in", count.en, english_unit),
                )
            return Pair(
                join("vor", count.de, german_unit), join(count.en, english_unit, "ago")
            )
        if self.tense != PERFECT and self.chance(0.08):
            hour = number_words(2 + int(self.random() * 11))
            return Pair(join("um", hour.de, "uhr"), join("at", hour.en, "o'clock"))
        return self.pick([pair for pair, tenses in TIMES if self.tense in tenses])

    def frequency(self) -> Pair:
        """Draw an adverb of frequency that fits the tense of the sampler."""
        return self.pick([pair for pair, tenses in FREQUENCIES if self.tense in tenses])

    def location(self) -> Pair:
        """Draw where something is."""
        if self.chance(0.15):
            return self.pick(PLACE_ADVERBS)
        if self.chance(0.2):
            german_word, case, english_word, classes = self.pick(POSITIONS)
            phrase = self.simple(classes.split(","))
            return prepositional(german_word, case, spaced(english_word), phrase)
        phrase = self.simple(PLACE_CLASSES)
        here = phrase.noun.locative
        return prepositional(here.de, "dat", here.en, phrase)

    def direction(self, classes: Sequence[str]) -> Pair:
        """Draw where someone goes, among the places of these classes."""
        target = self.simple(classes)
        fitting = [
            row for row in DIRECTIONS if overlap(target.noun.classes, row[3].split(","))
        ]
        german_word, case, english_word, _ = self.pick(fitting)
        return prepositional(german_word, case, spaced(english_word), target)

    def surroundings(self, clause: Clause) -> Pair:
        """Draw where, or in whose company, something is done."""
        if clause.verb.infinitive in SOLITARY or self.chance(0.7):
            return self.location()
        german_word, case, english_word = self.pick(COMPANIONS)
        pronouns = other_pronouns(clause.subject, case)
        phrase = self.pick(pronouns) if self.chance(0.2) else self.person()
        return prepositional(german_word, case, english_word, phrase)

    # ------------------------------------------------------------- sentences

    def sentence(self) -> Pair:
        """Draw a sentence of an acceptable length."""
        while True:
            self.used = []
            self.draw_tense()
            pair = self.weigh(
                [
                    (self.plain, 32),
                    (self.fronted_time, 14),
                    (self.fronted_object, 3),
                    (self.yes_no_question, 8),
                    (self.word_question, 8),
                    (self.reported, 10),
                    (self.complex, 14),
                    (self.compound, 7),
                    (self.existential, 4),
                ]
            )()
            if pair and all(4 <= len(side.split()) <= LONGEST for side in pair):
                return pair

    def plain(self) -> Pair:
        """Draw a main clause that starts with its subject."""
        return finish(statement(self.clause()))

    def fronted_time(self) -> Pair | None:
        """Draw a main clause that starts with its time, unless it names a state."""
        clause = self.clause()
        if clause.verb.state and "w" not in clause.verb.frames:
            return None
        if clause.time == NONE:
            clause = replace(clause, time=self.time())
        return finish(statement(replace(clause, time=NONE), clause.time))

    def fronted_object(self) -> Pair | None:
        """Draw a main clause that starts with an unmistakable accusative."""
        clause = self.clause("t")
        direct = clause.direct
        if not (isinstance(direct, NounPhrase) and direct.distinct and direct.definite):
            return None
        rest = german(replace(clause, direct=None), "second", direct.german("acc"))
        return finish(Pair(rest, english(clause)))

    def yes_no_question(self) -> Pair | None:
        """Draw a question that starts with its verb."""
        clause = self.clause()
        if determiner_of(clause.subject) == "kein":
            return None
        return finish(question(clause), "?")

    def word_question(self) -> Pair | None:
        """Draw a question that starts with a question word."""
        kind = self.pick((self.ask_adverb, self.ask_subject, self.ask_object))
        return kind()

    def ask_adverb(self) -> Pair | None:
        """Draw a question about a place, a time or a reason."""
        word = self.pick(QUESTION_ADVERBS)
        clause = self.clause("" if word.de == "warum" else self.pick("iitv"))
        if word.de == "wo":
            clause = replace(clause, place=NONE)
        if word.de == "wann":
            clause = replace(clause, time=NONE, frequency=NONE)
        denied = clause.denied and word.de != "warum"
        untimely = word.de == "wann" and clause.tense == PERFECT
        if denied or untimely or determiner_of(clause.subject) == "kein":
            return None
        return finish(question(clause, word), "?")

    def ask_subject(self) -> Pair:
        """Draw a question about who does something."""
        frame = self.pick("iptvgd")
        entry = self.pick(verbs_of(frame))
        asked = Fixed("wer", "who")
        if "person" not in entry.subjects or self.chance(0.5):
            plural = self.chance(0.4)
            asked = NounPhrase(
                noun=self.noun(entry.subjects),
                determiner="wie viele" if plural else "welch",
                plural=plural,
            )
        return finish(statement(self.clause(frame, entry=entry, subject=asked)), "?")

    def ask_object(self) -> Pair | None:
        """Draw a question about an object that German tells from the subject."""
        if self.chance(0.25):
            clause = self.clause("v", depth=1, bare=True, gap=True)
            return finish(question(clause, Pair("wem", "whom")), "?")
        entry = self.pick(verbs_of("t"))
        if self.chance(0.5):
            person = "person" in entry.objects
            asked = Pair("wen", "whom") if person else Pair("was", "what")
            clause = self.clause("t", entry=entry, depth=1, bare=True, gap=True)
            return finish(question(clause, asked), "?")
        head = self.noun(entry.objects)
        plural = not head.mass and self.chance(0.4)
        phrase = NounPhrase(
            noun=head, determiner="wie viele" if plural else "welch", plural=plural
        )
        clause = self.clause("t", entry=entry, depth=1, bare=True, gap=True)
        if not (phrase.distinct or clause.subject.distinct):
            return None
        front = Pair(phrase.german("acc"), phrase.english("acc"))
        return finish(question(clause, front), "?")

    def reported(self) -> Pair:
        """Draw a sentence with a "dass" or an "ob" clause."""
        return finish(statement(self.clause(self.weigh([("c", 5), ("q", 1)]))))

    def complex(self) -> Pair | None:
        """Draw a main clause with an adverbial clause behind or before it."""
        link, tenses = self.pick(SUBORDINATORS)
        main_tense, self.tense = self.pick(tenses.split(","))
        inner = self.clause(self.weigh(INNER_FRAMES), depth=1)
        if inner.denied and link.de not in ("weil", "obwohl", "wenn"):
            return None
        side = subordinate(inner, link)
        self.tense = main_tense
        main = self.clause(self.weigh(INNER_FRAMES), depth=1)
        if self.chance(0.35):
            return finish(statement(main, Pair(side.de + " ,", side.en + " ,")))
        first = statement(main)
        return finish(Pair(first.de + " , " + side.de, first.en + " " + side.en))

    def compound(self) -> Pair:
        """Draw two main clauses joined by a conjunction."""
        link = self.pick(COORDINATORS)
        first = statement(self.clause(self.weigh(INNER_FRAMES), depth=1))
        clause = self.clause(self.weigh(INNER_FRAMES), depth=1)
        if link.de == ", deshalb":
            second = statement(clause, link)
        else:
            plain = statement(clause)
            second = Pair(join(link.de, plain.de), join(link.en, plain.en))
        return finish(Pair(join(first.de, second.de), join(first.en, second.en)))

    def existential(self) -> Pair | None:
        """Draw a sentence that says what there is at a place."""
        chosen = self.noun(["person", "animal", "thing"])
        plural = self.chance(0.5)
        determiner = self.weigh(
            [("viel", 2), ("einig", 2), ("kein", 1), ("", 4)]
            if plural
            else [("ein", 5), ("kein", 1)]
        )
        phrase = NounPhrase(
            noun=chosen,
            determiner=determiner,
            adjective=self.describe(chosen, 0.4),
            plural=plural,
            number=0 if determiner else self.number(),
        )
        past = self.chance(0.5)
        gives = "gab" if past else "gibt"
        tense = PAST if past else PRESENT
        there = "there " + english_finite("be", "", tense, phrase.agreement)
        place = self.location()
        if place.en == "there":
            return None
        what = Pair(phrase.german("acc"), phrase.english("nom"))
        if self.chance(0.5):
            return finish(
                Pair(
                    join("es", gives, what.de, place.de),
                    join(there, what.en, place.en),
                )
            )
        return finish(
            Pair(join(place.de, gives, "es", what.de), join(place.en, there, what.en))
        )


# The weights of the frames of a main clause, and of a clause inside a sentence.
FRAMES = [
    *(("i", 20), ("p", 8), ("d", 10), ("t", 32), ("v", 8), ("g", 9), ("k", 2)),
    *(("o", 8), ("b", 12), ("w", 1)),
]
INNER_FRAMES = [
    *(("i", 26), ("p", 6), ("d", 10), ("t", 28), ("v", 7), ("g", 5), ("o", 6)),
    *(("b", 10), ("w", 3)),
]
SINGULAR_OBJECTS = [
    *(("der", 42), ("ein", 22), ("dies", 10), ("mein", 6), ("dein", 4), ("sein", 5)),
    *(("unser", 5), ("jed", 5)),
]
SINGULAR_SUBJECTS = [*SINGULAR_OBJECTS, ("kein", 2)]
PLURALS = [
    *(("der", 30), ("dies", 10), ("mein", 5), ("dein", 4), ("sein", 5), ("unser", 5)),
    *(("viel", 8), ("einig", 7), ("all", 6), ("number", 20), ("dernumber", 5)),
]
PLURAL_SUBJECTS = [*PLURALS, ("kein", 4)]
PLURAL_OBJECTS = [*PLURALS, ("", 10)]
OBLIQUES = rows(lexicon.PREPOSITIONAL_OBJECTS)
POSITIONS = rows(lexicon.POSITIONS)
DIRECTIONS = rows(lexicon.DIRECTIONS)
COMPANIONS = rows(lexicon.COMPANIONS)
QUESTION_ADVERBS = [pair for pair, _ in pairs(lexicon.QUESTION_WORDS)][:3]
SOLITARY = ("schlafen", "einschlafen", "aufwachen")  # done in nobody's company
PLACE_CLASSES = ("room", "yard", "house", "site")
UNITS = (("tagen", "days"), ("wochen", "weeks"), ("monaten", "months"))


def determiner_of(phrase: Phrase) -> str:
    """Give the determiner of a phrase, or nothing."""
    return phrase.determiner if isinstance(phrase, NounPhrase) else ""


def classes_of_phrase(phrase: Phrase) -> tuple[str, ...]:
    """Give the classes of what a phrase is about."""
    return phrase.noun.classes if isinstance(phrase, NounPhrase) else ("person",)


def other_pronouns(subject: Phrase, case: str) -> list[Pronoun]:
    """List the pronouns that can be an object without being reflexive."""
    return [
        entry
        for entry in PRONOUNS
        if (entry.agreement[0] == "3" or entry.agreement[0] != subject.agreement[0])
        and entry.german(case) != "-"
    ]


def long_object(clause: Clause) -> bool:
    """Whether an object has a relative clause, after which adverbs are far away."""
    objects = (clause.direct, clause.indirect)
    return any(
        isinstance(phrase, NounPhrase) and "," in phrase.modifier.de
        for phrase in objects
    )


# --------------------------------------------------------------------- corpus


def distinct_pairs(seed: int) -> Iterator[tuple[str, str]]:
    """Draw pairs without end, none of which shares a side with an earlier one."""
    sampler = Sampler(seed)
    seen_de, seen_en = set(), set()
    while True:
        de, en = sampler.sentence()
        if de not in seen_de and en not in seen_en:
            seen_de.add(de)
            seen_en.add(en)
            yield de, en


def sentence_pairs(count: int, *, seed: int) -> list[tuple[str, str]]:
    """Draw this many sentence pairs, distinct on either side."""
    return list(islice(distinct_pairs(seed), count))


def vocabulary(sentences: Sequence[tuple[str, str]], side: int) -> set[str]:
    """Collect the word types of one side, German 0 or English 1."""
    return {word for pair in sentences for word in pair[side].split()}


def corpus(
    *, seed: int = 1, train: int = 20000, valid: int = 1000, test: int = 1000
) -> dict[str, list[tuple[str, str]]]:
    """Draw three sets that share no sentence, on neither side.

    The validation and test sets hold only words that the training set holds; a
    training set too small for that is refused with a ValueError.
    """
    stream = distinct_pairs(seed)
    sets = {"train": list(islice(stream, train)), "valid": [], "test": []}
    known = [vocabulary(sets["train"], side) for side in (0, 1)]
    for name, size in (("valid", valid), ("test", test)):
        refused = 0
        while len(sets[name]) < size:
            pair = next(stream)
            if all(known[side].issuperset(pair[side].split()) for side in (0, 1)):
                sets[name].append(pair)
                refused = 0
            else:
                refused += 1
            if refused == PATIENCE:
                raise ValueError(f"{train} training sentences are too few")
    return sets


def write_corpus(
    folder: Path,
    *,
    seed: int = 1,
    train: int = 20000,
    valid: int = 1000,
    test: int = 1000,
) -> dict[str, list[tuple[str, str]]]:
    """Write train, valid and test as one file per language, and return the sets."""
    sets = corpus(seed=seed, train=train, valid=valid, test=test)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, sentences in sets.items():
        for side, language in enumerate(("de", "en")):
            target = folder / f"{name}.{language}"
            partial = folder / f".{name}.{language}.{os.getpid()}.partial"
            text = "".join(pair[side] + "\n" for pair in sentences)
            partial.write_bytes(text.encode("utf-8"))
            os.replace(partial, target)
    return sets


def main() -> None:
    """Write the corpus into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Write the demo corpus.")
    parser.add_argument("folder", type=Path, metavar="OUT_DIR")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sets = write_corpus(options.folder, seed=options.seed)
    sizes = ", ".join(f"{len(sets[name])} {name}" for name in sets)
    everything = [pair for sentences in sets.values() for pair in sentences]
    german_types, english_types = (len(vocabulary(everything, s)) for s in (0, 1))
    print(
        f"wrote {sizes} sentences to {options.folder} ({german_types} German and "
        f"{english_types} English word types, {lexeme_count()} lexemes)"
    )


if __name__ == "__main__":
    main()
