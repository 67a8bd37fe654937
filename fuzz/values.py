"""Values that a file should not have, and changes of nested JSON."""

from __future__ import annotations

import copy
import re
from argparse import ArgumentParser
from dataclasses import fields, is_dataclass
from inspect import getsource
from random import Random
from typing import Any, Iterator, List, Set, Tuple

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models import transformer as _transformer
from fairseq.models.roberta import model as _roberta
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

from fuzz.child import CANARY, MARKER, SECRET

CODE = [
    f"[__import__('os').system('touch {MARKER}')]",
    f"__import__('os').system('touch {MARKER}')",
    f"['{MARKER}'][0]",
    f"{MARKER}",
    f"[({MARKER}, 3)] * 2",
]
PATHS = [
    CANARY,
    f"./{CANARY}",
    f"{CANARY}:{CANARY}",
    "../../../../../../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "/nonexistent/folder",
    "model.ticket",
    ".",
    "https://localhost:1/x",
]
NUMBERS: List[Any] = [
    *(0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 33, 255, 1000, -1, -2, -8, -(10**9)),
    *(10**6, 10**7, 10**9, 2**31 - 1, 2**31, 2**32, 10**12, 2**62, 2**63, 10**18),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 1e-9, 5e-324, 1e18, 1e308, -1e308),
]
TEXTS = [
    *("", " ", "0", "1", "-1", "1e9", "nan", "inf", "None", "True", "[]", "{}", "a.b"),
    *("1,2", "1.5,2", "(", "[1, 2", "[(8, 3)] * 2", "relu", "gelu", "linear", "fp16"),
    *("encoder:0", "encoder:0,1/decoder:0", "alternating", "norm,bias", "head", "row"),
    *(
        "ü\u2028",
        "\x1b[31mred",
        "a\nb",
        "a\tb",
        "\x00",
        "\ud83d\ude00",
        "%s%n",
        "é" * 50,
    ),
    "a" * 5000,
    "9" * 400,
    "(" * 300,
    "${oc.env:" + SECRET + "}",
    "${model.arch}",
    "???",
    *("translation", "masked_lm", "sentence_prediction", "language_modeling"),
    *("transformer", "ffn", "cnn", "bigru", "signed", "topk", "layers", "none", "all"),
    *("sentencepiece", "fastbpe", "subword_nmt", "gpt2", "bits", "ans", "kept", "full"),
]
NESTED: List[Any] = [
    *([], {}, [0], [1, 2], [None], [[1]], ["0"], [-1], [10**9, 10**9], [0.5, 1.5]),
    *({"a": 1}, {"_name": "translation"}, {"": {}}, [[[[]]]], [{}]),
    list(range(200)),
]
NASTY: List[Any] = [*CODE, *PATHS, *NUMBERS, *TEXTS, *NESTED, None, True, False]


def nasty(chance: Random) -> Any:
    """One of the values, each type as often as the others."""
    table = chance.choice(
        (CODE, PATHS, NUMBERS, NUMBERS, TEXTS, NESTED, [None], [True, False])
    )
    return copy.deepcopy(chance.choice(table))


def near(chance: Random, value: Any) -> Any:
    """A value of the same type, which gets past checks of types."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((value + 1, value - 1, value * 2, -value, value // 2, 0))
    if isinstance(value, float):
        return chance.choice((value * 2, -value, value / 3, 0.0, 1.0, 1e30))
    if isinstance(value, str):
        place = chance.randrange(len(value) + 1)
        other = chance.choice(TEXTS)
        return chance.choice((value[:place] + other + value[place:], value[:place]))
    if isinstance(value, list) and value:
        return chance.choice((value * 2, value[1:], value[::-1], [*value, value[0]]))
    return nasty(chance)


def mutate_json(chance: Random, value: Any) -> str:
    """Change one place of nested lists and dictionaries; return what was changed."""
    everywhere = list(places(value))
    if not everywhere:
        return "nothing"
    path = chance.choice(everywhere)
    *above, key = path
    holder = value
    for step in above:
        holder = holder[step]
    shown = ".".join(map(str, path))
    action = chance.random()
    if action < 0.4:
        holder[key] = nasty(chance)
    elif action < 0.65:
        holder[key] = near(chance, holder[key])
    elif action < 0.75:
        del holder[key]
        return f"{shown} deleted"
    elif action < 0.9:
        other = value
        for step in chance.choice(everywhere):
            other = other[step]
        holder[key] = copy.deepcopy(other)
    elif isinstance(holder, dict):
        names = [str(step) for other in everywhere for step in other]
        name = chance.choice((chance.choice(names), chance.choice(TEXTS)))
        holder[name] = holder.pop(key)
        return f"{shown} renamed {name[:60]!r}"
    else:
        holder.append(nasty(chance))
        return f"{shown} followed by {holder[-1]!r}"[:200]
    return f"{shown} = {holder[key]!r}"[:200]


def places(value: Any, path: Tuple = ()) -> Iterator[Tuple]:
    """All paths into nested lists and dictionaries."""
    if isinstance(value, (dict, list)):
        for key, inner in (
            value.items() if isinstance(value, dict) else enumerate(value)
        ):
            yield (*path, key)
            yield from places(inner, (*path, key))


def model_flags() -> List[str]:
    """The names of all flags that fairseq's or our models of these types read."""
    names: Set[str] = set()
    for arch, model in ARCH_MODEL_REGISTRY.items():
        if re.search("transformer|roberta|lm|bart", arch):
            names |= _parsed_names(model)
    for module in (_transformer, _roberta):
        names |= _read_names(module)
    for name in dir(_transformer):
        part = getattr(_transformer, name)
        if hasattr(part, "__path__") or hasattr(part, "__file__"):
            names |= _read_names(part)
    for configure in set(ARCH_CONFIG_REGISTRY.values()):
        names |= _read_names(configure)
    return sorted(names)


def task_flags() -> List[str]:
    """The names of all flags of all tasks."""
    names: Set[str] = {"_name"}
    for name, task in TASK_REGISTRY.items():
        names |= _parsed_names(task)
        dataclass = TASK_DATACLASS_REGISTRY.get(name)
        if dataclass and is_dataclass(dataclass):
            names |= {field.name for field in fields(dataclass)}
    return sorted(names)


def _parsed_names(owner: Any) -> Set[str]:
    parser = ArgumentParser(allow_abbrev=False, conflict_handler="resolve")
    try:
        owner.add_args(parser)
    except (AttributeError, NotImplementedError):
        return set()
    return {action.dest for action in parser._actions} - {"help"}


def _read_names(module: Any) -> Set[str]:
    """Names that code reads from its arguments, flags or not."""
    found = re.findall(
        r'(?:args|cfg)\.(\w+)|getattr\((?:args|cfg), "(\w+)"', getsource(module)
    )
    return {name for pair in found for name in pair if name and name[0] != "_"}
