"""The house: imports point one way, and heavy libraries stay where they belong."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "onelayer_lottery"

# Each room may import the rooms named here, and no other.
ALLOWED = {
    "parallel": set(),
    "kernels": {"parallel", "_kernels"},
    "holders": set(),
    "mask": {"holders", "kernels"},
    "frozen": {"parallel"},
    "errors": set(),
    "compat": {"checkpoint_types"},
    "modules": {"mask", "frozen"},
    "gains": set(),
    "config": {"frozen", "gains", "modules"},
    "fitting": {"mask", "modules"},
    "lm_head": {"modules"},
    "reservoir": set(),
    "reservoir_config": {"config", "frozen"},
    "roles": {"config", "frozen", "gains"},
    "planting": {
        *("modules", "config", "fitting", "frozen", "mask", "compat", "errors"),
        *("lm_head", "reservoir", "reservoir_config", "roles"),
    },
    "flips": {"planting"},
    "finite": set(),
    "progress": set(),
    "branches": {"modules"},
    "models": set(),
    "models.planted": {
        *("branches", "compat", "config", "errors", "finite", "flips", "importing"),
        *("planting", "progress", "roles"),
    },
    "models.shapes": {"compat", "config"},
    "models.transformer": {
        *("embeddings", "importing", "models.planted", "models.shapes"),
    },
    "models.roberta": {
        *("config", "importing", "models.planted", "models.shapes", "roles"),
    },
    "models.reservoir": {
        *("config", "configuration", "frozen", "models", "models.planted"),
        "models.shapes",
        *("planting", "reservoir_config"),
    },
    "checkpoint": {"checkpoint_types", "container", "errors", "files"},
    "checkpoint_types": set(),
    "torn": {"checkpoint", "errors", "files"},
    "resuming": {"torn"},
    "average": {"checkpoint", "container", "errors"},
    "distillation": {
        *("checkpoint", "configuration", "declared", "errors", "export"),
        *("importing", "models.planted"),
    },
    "files": set(),
    "embeddings": {"checkpoint", "errors", "files"},
    "importing": {"checkpoint", "config", "embeddings", "errors", "roles"},
    "bits": set(),
    "container": {"files"},
    "configuration": {"container", "gains"},
    "ticket": {"bits", "configuration", "container", "errors", "frozen"},
    "declared": {"errors"},
    "export": {
        *("checkpoint", "config", "configuration", "container", "errors", "frozen"),
        *("gains", "mask"),
        *("models.planted", "modules", "roles", "tasks", "ticket"),
    },
    "framing": {"checkpoint", "configuration", "tasks", "ticket"},
    "convert": {
        *("checkpoint", "compat", "configuration", "container", "declared"),
        *("errors", "export", "framing", "frozen"),
        *("models.planted", "modules", "roles", "tasks", "ticket"),
    },
    "tasks": {"configuration", "container", "embeddings", "errors"},
    "inspection": {"ticket"},
    "subwords": {"container", "errors", "ticket"},
    "lines": set(),
    "translate": {
        "container",
        "convert",
        "errors",
        "framing",
        "subwords",
        "tasks",
        "ticket",
    },
    "classify": {
        "container",
        "convert",
        "errors",
        "framing",
        "subwords",
        "tasks",
        "ticket",
    },
    "plugin_cli": {"config", "errors"},
    "text_cli": {"classify", "errors", "lines", "translate"},
    "experiments": set(),
    "experiments.results": {"container", "errors", "files"},
    "experiments.panels": {"errors", "experiments.results"},
    "experiments.table1": {"errors", "experiments.panels"},
    "experiments.figures": {"experiments.panels"},
    "experiments.report": {
        *("errors", "files", "experiments.figures", "experiments.panels"),
        "experiments.table1",
    },
    "experiments.grid": {
        *("errors", "experiments.grid_file", "experiments.table1"),
    },
    "experiments.grid_file": {"errors"},
    "experiments.flags": {"errors", "experiments.grid", "models.planted"},
    "experiments.commands": {"experiments.flags", "experiments.grid"},
    "experiments.score": {"errors"},
    "experiments.size": {
        *("checkpoint", "errors", "export", "inspection"),
        *("models.planted", "ticket"),
    },
    "experiments.run": {
        *("checkpoint", "compat", "errors", "files"),
        *("experiments.orphans", "experiments.score", "experiments.size", "torn"),
    },
    "experiments.orphans": set(),
    "experiments.launch": {"errors", "experiments.orphans"},
    "experiments.sweep": {
        *("errors", "files", "experiments.commands", "experiments.flags"),
        *("experiments.grid", "experiments.results", "experiments.run"),
    },
    "experiments.cli": {
        *("errors", "experiments.commands", "experiments.flags", "experiments.grid"),
        *("experiments.launch", "experiments.report", "experiments.sweep"),
    },
    "cli": {
        *("average", "checkpoint", "convert", "embeddings", "errors", "export"),
        *("experiments.cli", "inspection", "plugin_cli", "subwords", "text_cli"),
        "ticket",
    },
}
WITHOUT_FAIRSEQ = {
    *("mask", "frozen", "modules", "errors", "checkpoint", "average"),
    *(
        "parallel",
        "holders",
        "kernels",
        "fitting",
        "bits",
        "checkpoint_types",
        "configuration",
        "container",
        "declared",
        "files",
        "gains",
        "ticket",
        "inspection",
        "lines",
    ),
    *("experiments.results", "experiments.panels", "experiments.table1"),
    *("experiments.figures", "experiments.report", "experiments.grid"),
    *("experiments.grid_file", "experiments.score", "experiments.launch"),
}
# Read by --help too, where they may not be installed.
LATE = {"matplotlib", "yaml", "submitit", "sacrebleu"}
NEEDS_MATPLOTLIB = {"experiments.figures"}


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


@pytest.mark.parametrize(("room", "tree"), list(rooms()))
def test_libraries_of_the_experiments_are_imported_where_they_are_used(room, tree):
    if room in NEEDS_MATPLOTLIB:
        return
    tops = {
        name.split(".")[0]
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in imported(ast.Module(body=[node], type_ignores=[]))
    }
    assert not tops & LATE
