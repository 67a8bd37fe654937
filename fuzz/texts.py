"""Changes of plain files: raw bytes, dictionaries, grids, vectors and results."""

from __future__ import annotations

import json
from random import Random
from typing import Callable, Dict, List, Tuple

import yaml

from fuzz.values import CODE, NASTY, mutate_json, nasty

Change = Tuple[bytes, str]  # the new content, and what was changed

_ODD_BYTES = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n", b"\t"),
    *(b" ", b"\x1b[2J", b"\xe2\x80\xa8", b"\x85", b"9" * 30, b"-1", b"1e999", b"nan"),
    *(b"{", b"[" * 2000, b'{"a":' * 2000, b"A" * 20000, b"\xf0\x9f\x98\x80"),
]
_LINES = [
    *("der 3", "der 3 #fairseq:overwrite", "<unk> 3", "<pad> 1", "<mask> 1", "w"),
    *("w 0", "w -1", "w 1.5", "w nan", f"w {10**30}", "w " + "9" * 5000, " 3", "3"),
    *("w  3", "w\t3", "a b 3", "\x1b[31m 3", "\u2028 3", "\x00 1", "\x85 1", "\r 1"),
    *("#fairseq:overwrite", "madeupword0000 0", "ü 3", "e\u0301 3", "w 3 #fairseq:"),
]
_YAML = [
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n"
    "c: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\n"
    "title: [*d,*d,*d,*d,*d,*d,*d,*d]\n",
    f"title: !!python/object/apply:os.system ['touch {'PWNED'}']\n",
    f"title: !!python/object/new:os.system [{CODE[1]!r}]\n",
    *("title: &x [*x]\n", "title: &x {a: *x}\n", "? [a, b]\n: 1\n", "? {a: b}\n: 1\n"),
    *("title: 2001-99-99\n", "title: 2001-01-01\n", "title: 0x\n", "title: !!int x\n"),
    *("title: !!binary x\n", "title: !!float []\n", "title: !!set {a, b}\n", "<<: 5\n"),
    *("<<: [{a: 1}]\n", "title: 190:20:30:99:99\n", "figure: .inf\n", "gpus: .nan\n"),
    *("--- a\n--- b\n", "%YAML 9.9\n---\n", "!<tag:x> a\n", "title: *missing\n"),
    *("null: 1\n", "1: 1\n", "seeds: [" + "[" * 800, "title: " + "9" * 5000 + "\n"),
    *("a: {" * 600, "\ttitle: x\n", "title: 'open\n", "=: 1\n", "title: =\n"),
    "base: &b {<<: *b}\n",
    f"seeds: {list(range(300))}\nvariants: {{a: {{mask-keep: {list(range(300))}}}}}\n",
]


def mutate_bytes(chance: Random, content: bytes) -> Change:
    """Flip bits, cut, splice or repeat; no digest is mended."""
    data = bytearray(content)
    place = chance.randrange(len(data) + 1)
    end = min(len(data), place + chance.choice((1, 2, 8, 64, 1000)))
    action = chance.choice(("flip", "flip", "cut", "odd", "delete", "repeat", "splice"))
    if action == "flip" and data:
        for _ in range(chance.choice((1, 1, 2, 8, 50))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif action == "cut":
        del data[place:]
    elif action == "odd":
        data[place:end] = chance.choice(_ODD_BYTES)
    elif action == "delete":
        del data[place:end]
    elif action == "repeat":
        data[place:place] = data[place:end] * chance.choice((1, 2, 100))
    else:
        other = chance.randrange(len(data) + 1)
        data[place:end] = data[other : other + end - place]
    return bytes(data), f"{action} at byte {place}"


def mutate_dictionary(chance: Random, content: bytes) -> Change:
    """Change the lines of a fairseq dictionary."""
    lines = content.split(b"\n")
    place = chance.randrange(len(lines))
    action = chance.choice(
        ("line", "line", "insert", "twice", "drop", "bytes", "empty")
    )
    new = chance.choice(_LINES).encode()
    if action == "line":
        lines[place] = new
    elif action == "insert":
        lines.insert(place, new)
    elif action == "twice":
        lines.insert(place, chance.choice(lines))
    elif action == "drop":
        del lines[place]
    elif action == "bytes":
        return mutate_bytes(chance, content)
    else:
        lines = []
    return b"\n".join(lines), f"dictionary line {place}: {action} {new[:40]!r}"


def mutate_lines(chance: Random, content: bytes) -> Change:
    """Change lines of numbers: vectors as text."""
    lines = content.split(b"\n")
    place = chance.choice((0, chance.randrange(len(lines))))
    words = lines[place].split(b" ")
    word = chance.randrange(len(words))
    words[word] = chance.choice(
        [
            str(chance.choice(NASTY)).encode("utf-8", "replace"),
            chance.choice(_ODD_BYTES),
        ]
    )
    lines[place] = b" ".join(words)
    if chance.random() < 0.2:
        lines.insert(place, chance.choice(lines))
    return b"\n".join(lines), f"line {place}, word {word}: {words[word][:60]!r}"


def mutate_grid(chance: Random, content: bytes) -> Change:
    """Change a grid as a tree, or with YAML's own odd syntax."""
    if chance.random() < 0.3:
        line = chance.choice(_YAML)
        head = chance.random() < 0.7
        text = content.decode("utf-8", "replace")
        return (line + text if head else text + line).encode(), f"{line[:60]!r}"
    tree = yaml.safe_load(content)
    note = mutate_json(chance, tree)
    return yaml.dump(tree, allow_unicode=True).encode("utf-8", "replace"), note


def mutate_results(chance: Random, content: bytes) -> Change:
    """Change a line of JSON, or a whole file of it."""
    lines: List[bytes] = content.splitlines() or [b"{}"]
    place = chance.randrange(len(lines))
    tree = [json.loads(lines[place])]
    note = mutate_json(chance, tree)
    if chance.random() < 0.05:
        tree = [nasty(chance)]
    lines[place] = json.dumps(tree[0] if tree else None).encode()
    return b"\n".join(lines) + b"\n", f"line {place}: {note}"


def mutate_safetensors(chance: Random, content: bytes) -> Change:
    """Change the header of a safetensors file, whose data stay as they are."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    note = mutate_json(chance, header)
    text = json.dumps(header).encode()
    if chance.random() < 0.1:
        length = chance.choice(
            (0, len(text) - 1, len(text) + 1, 1 << 40, (1 << 64) - 1)
        )
        return length.to_bytes(8, "little") + text + content[8:], f"header of {length}"
    return len(text).to_bytes(8, "little") + text + content[8 + length :], note


TEXT_MUTATORS: Dict[str, Callable[[Random, bytes], Change]] = {
    ".txt": mutate_dictionary,
    ".yaml": mutate_grid,
    ".jsonl": mutate_results,
    ".json": mutate_results,
    ".safetensors": mutate_safetensors,
}
