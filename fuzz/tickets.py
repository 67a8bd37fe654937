"""Changes of tickets whose digests are right again afterwards."""

from __future__ import annotations

import io
import json
import re
from random import Random
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
from fairseq.models import ARCH_MODEL_REGISTRY

from fuzz.corpus import subword_models
from fuzz.texts import mutate_bytes, mutate_dictionary
from fuzz.values import NUMBERS, model_flags, mutate_json, nasty, near, task_flags
from onelayer_lottery.ticket.container import (
    Container,
    encode_container,
    parse_container,
)

_MODEL_FLAGS, _TASK_FLAGS = model_flags(), task_flags()
_SUBWORDS = subword_models()
_SIZE = re.compile("dim|layers|heads|positions|cutoff|path|factor|num_classes")


def mutate_ticket(chance: Random, content: bytes) -> Tuple[bytes, str]:
    """Change a ticket in one to three places."""
    if chance.random() < 0.07:
        return mutate_bytes(chance, content)
    if chance.random() < 0.05:
        return _mutate_header(chance, content)
    container = parse_container(io.BytesIO(content), len(content))
    notes = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        change = chance.choices(list(_CHANGES), list(_CHANGES.values()))[0]
        notes.append(change(chance, container))
    tables = {k: v for k, v in container.tables.items() if k != "payloads"}
    return encode_container(tables, container.payloads), "; ".join(notes)


def _change_table(chance: Random, container: Container) -> str:
    name = chance.choice(("settings", "frozen", "masks", "tied", "config", "bpe"))
    table = container.tables[name]
    if not isinstance(table, dict) or chance.random() < 0.03:
        container.tables[name] = nasty(chance)
        return f"{name} = {container.tables[name]!r}"[:200]
    return f"{name}.{mutate_json(chance, table)}"


def _change_config(chance: Random, container: Container) -> str:
    return f"config.{mutate_json(chance, _config(container))}"


def _add_flag(chance: Random, container: Container) -> str:
    part, names = chance.choice(
        (("model", _MODEL_FLAGS), ("model", _MODEL_FLAGS), ("task", _TASK_FLAGS))
    )
    flags = _config(container).get(part)
    sizes = [name for name in names if _SIZE.search(name)]
    name = chance.choice(sizes if chance.random() < 0.4 else names)
    if not isinstance(flags, dict):
        return "nothing"
    old = flags.get(name)
    if chance.random() < 0.3:
        flags[name] = near(chance, old)
    elif _SIZE.search(name) and chance.random() < 0.5:
        flags[name] = chance.choice(NUMBERS)
    else:
        flags[name] = nasty(chance)
    return f"config.{part}.{name} = {flags[name]!r}"[:200]


def _change_architecture(chance: Random, container: Container) -> str:
    arch = chance.choice(sorted(ARCH_MODEL_REGISTRY))
    _config(container)["arch"] = arch
    return f"config.arch = {arch}"


def _change_payload(chance: Random, container: Container) -> str:
    payloads = container.payloads
    name = chance.choice(sorted(payloads))
    array = payloads[name]
    action = chance.choice(list(_ARRAYS))
    payloads[name] = _ARRAYS[action](chance, array)
    return f"{name}: {action}, now {payloads[name].dtype} {payloads[name].shape}"


def _rename_payload(chance: Random, container: Container) -> str:
    payloads = container.payloads
    name, other = (chance.choice(sorted(payloads)) for _ in range(2))
    action = chance.choice(("drop", "copy", "swap", "rename"))
    if action == "drop":
        del payloads[name]
    elif action == "copy":
        payloads[other] = payloads[name]
    elif action == "swap":
        payloads[name], payloads[other] = payloads[other], payloads[name]
    else:
        start = chance.choice(
            ("dense/", "mask/", "signs/", "values/", "dictionary/", "")
        )
        other = start + chance.choice((other.partition("/")[2], "", "../x", "a" * 300))
        payloads[other] = payloads.pop(name)
    return f"{name}: {action} {other[:80]}"


def _change_dictionary(chance: Random, container: Container) -> str:
    names = sorted(n for n in container.payloads if n.startswith("dictionary/"))
    if not names:
        return "nothing"
    name = chance.choice(names)
    content, note = mutate_dictionary(chance, container.payloads[name].tobytes())
    container.payloads[name] = np.frombuffer(content, np.uint8)
    return f"{name}: {note}"


def _change_subwords(chance: Random, container: Container) -> str:
    kind = chance.choice(sorted(_SUBWORDS))
    content = _SUBWORDS[chance.choice((kind, kind, kind, *_SUBWORDS))]
    action = chance.random()
    if action < 0.2:
        content = chance.getrandbits(8 * 200).to_bytes(200, "little")
    elif action < 0.4:
        content, _ = mutate_dictionary(chance, content)
    else:
        for _ in range(chance.choice((1, 1, 3))):
            content, _ = mutate_bytes(chance, content)
    container.tables["bpe"] = kind
    container.payloads["bpe"] = np.frombuffer(content, np.uint8)
    return f"bpe: {kind} of {len(content)} bytes"


def _nothing(chance: Random, container: Container) -> str:
    """As it is: what a command does with a valid ticket of another task counts too."""
    return "nothing"


_CHANGES: Dict[Callable[[Random, Container], str], int] = {
    _change_table: 3,
    _change_config: 5,
    _add_flag: 6,
    _change_architecture: 1,
    _change_payload: 3,
    _rename_payload: 1,
    _change_dictionary: 2,
    _change_subwords: 2,
    _nothing: 1,
}


def _config(container: Container) -> Dict[str, Any]:
    config = container.tables["config"]
    return config if isinstance(config, dict) else {}


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)


def _reshape(chance: Random, array: np.ndarray) -> np.ndarray:
    shapes: List[Tuple[int, ...]] = [(-1,), (1, -1), (-1, 1), (1, -1, 1)]
    return array.reshape(chance.choice(shapes)) if array.size else array


def _with_value(chance: Random, array: np.ndarray) -> np.ndarray:
    array = array.copy()
    extreme = {"u1": [0, 1, 255], "f2": [6e4, -6e4], "f4": [3e38, -3e38, 1e-45]}
    odd = [float("nan"), float("inf")] if array.dtype.kind == "f" else [10, 32]
    if array.size:
        place = chance.randrange(array.size)
        _flat(array)[place] = chance.choice([*extreme[array.dtype.str[1:]], *odd])
    return array


def _random_bytes(chance: Random, array: np.ndarray) -> np.ndarray:
    content = chance.getrandbits(8 * array.nbytes + 1).to_bytes(array.nbytes + 1, "big")
    return np.frombuffer(content[1:], array.dtype).reshape(array.shape)


_ARRAYS: Dict[str, Callable[[Random, np.ndarray], np.ndarray]] = {
    "transpose": lambda chance, array: np.ascontiguousarray(array.T),
    "reshape": _reshape,
    "shorten": lambda chance, array: _flat(array)[: chance.randrange(array.size + 1)],
    "lengthen": lambda chance, array: np.concatenate([_flat(array)] * 2),
    "half": lambda chance, array: array.astype(np.float16),
    "single": lambda chance, array: array.astype(np.float32),
    "bytes": lambda chance, array: _flat(np.ascontiguousarray(array)).view(np.uint8),
    "empty": lambda chance, array: array.reshape(-1)[:0],
    "value": _with_value,
    "random": _random_bytes,
    "zero": lambda chance, array: np.zeros_like(array),
    "fewer rows": lambda chance, array: array[:-1] if array.ndim else array,
}


def _mutate_header(chance: Random, content: bytes) -> Tuple[bytes, str]:
    """Change the header's own JSON; its checks come before those of digests."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    note = mutate_json(chance, header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :], note
