"""The house: imports point one way, and heavy libraries stay where they belong."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "onelayer_lottery"

# Each room may import the rooms named here, and no other.
ALLOWED = {
    "mask": set(),
    "frozen": set(),
    "errors": set(),
    "compat": set(),
    "modules": {"mask", "frozen"},
    "config": {"frozen"},
    "planting": {"modules", "config", "frozen", "mask", "compat", "errors"},
    "models": set(),
    "models.planted": {"compat", "config", "errors", "planting"},
    "models.transformer": {
        *("compat", "config", "embeddings", "importing", "models.planted"),
    },
    "checkpoint": {"compat", "errors", "files"},
    "average": {"checkpoint", "errors"},
    "files": set(),
    "embeddings": {"checkpoint", "errors", "files"},
    "importing": {"config", "embeddings", "errors", "planting"},
    "bits": set(),
    "container": {"files"},
    "ticket": {"bits", "container", "errors", "frozen"},
    "export": {
        *("checkpoint", "config", "errors", "frozen", "mask"),
        *("models.planted", "modules", "planting", "ticket"),
    },
    "convert": {
        *("checkpoint", "compat", "config", "export", "frozen"),
        *("models.planted", "planting", "ticket"),
    },
    "inspection": {"ticket"},
    "translate": {"convert", "errors", "ticket"},
    "cli": {
        *("average", "checkpoint", "convert", "embeddings", "errors", "export"),
        *("inspection", "ticket", "translate"),
    },
}
WITHOUT_FAIRSEQ = {
    *("mask", "frozen", "modules", "errors", "checkpoint", "average"),
    *("bits", "container", "files", "ticket", "inspection"),
}


def rooms():
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield name.replace(".__init__", ""), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize(("room", "tree"), [r for r in rooms() if r[0] != "__init__"])
def test_a_room_imports_only_the_rooms_below_it(room, tree):
    prefix = "onelayer_lottery."
    own = {name[len(prefix) :] for name in imported(tree) if name.startswith(prefix)}
    assert own <= ALLOWED[room]


@pytest.mark.parametrize(
    ("room", "tree"), [r for r in rooms() if r[0] in WITHOUT_FAIRSEQ]
)
def test_what_is_not_about_fairseq_does_not_import_it(room, tree):
    assert not any(name.startswith("fairseq") for name in imported(tree))
