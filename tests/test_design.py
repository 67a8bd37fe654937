"""docs/design.md: its map, import graph and walks are those of the code.

``python tests/test_design.py`` writes the map and the graph anew.
"""

import ast
import importlib
import operator
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "onelayer_lottery"
DESIGN = ROOT / "docs" / "design.md"


def rooms():
    """The order of tests/test_imports.py, without importing its fixtures."""
    text = (ROOT / "tests" / "test_imports.py").read_text(encoding="utf-8")
    return re.search(r'ROOMS = """(.*?)"""', text, re.DOTALL)[1].split()


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def first_line(path):
    return (ast.get_docstring(parsed(path)) or "").split("\n")[0]


def package_map():
    """One line for each folder and file, in the order in which rooms may import."""
    lines = []
    for room in rooms():
        if (PACKAGE / f"{room}.py").is_file():
            lines.append((f"{room}.py", first_line(PACKAGE / f"{room}.py")))
            continue
        folders = [PACKAGE / room, *sorted(p for p in (PACKAGE / room).iterdir())]
        for folder in folders:
            if not (folder / "__init__.py").is_file():
                continue
            name = f"{folder.relative_to(PACKAGE)}/"
            lines.append((name, first_line(folder / "__init__.py")))
            for path in sorted(folder.glob("*.py")):
                if not path.name.startswith("__"):
                    lines.append((f"  {path.name}", first_line(path)))
    return "".join(f"{name:<26}{text}".rstrip() + "\n" for name, text in lines)


def import_graph():
    """The rooms that each room imports."""
    lines = []
    for room in rooms():
        files = [PACKAGE / f"{room}.py", *sorted((PACKAGE / room).rglob("*.py"))]
        names = {
            node.module.split(".")[1]
            for path in files
            if path.is_file()
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.ImportFrom) and node.module
            if node.module.startswith("onelayer_lottery.")
        }
        ordered = [name for name in rooms() if name in names - {room}]
        lines.append(f"{room:<12}{' '.join(ordered)}".rstrip() + "\n")
    return "".join(lines)


GENERATED = {"map": package_map, "graph": import_graph}


def section(name):
    return re.compile(rf"(<!-- {name} -->\n```\n)(.*?)(```\n)", re.DOTALL)


@pytest.mark.parametrize("name", GENERATED)
def test_the_design_shows_the_code_as_it_is(name):
    shown = section(name).search(DESIGN.read_text(encoding="utf-8"))[2]
    assert shown == GENERATED[name](), "run python tests/test_design.py"


def walked():
    text = DESIGN.read_text(encoding="utf-8")
    return sorted(set(re.findall(rf"`((?:{'|'.join(rooms())})\.[\w.]+)`", text)))


@pytest.mark.parametrize("name", walked())
def test_what_a_walk_names_exists(name):
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:end])
        if path.with_suffix(".py").is_file():
            break
    module = importlib.import_module(".".join(["onelayer_lottery", *parts[:end]]))
    assert operator.attrgetter(".".join(parts[end:]) or "__name__")(module)


def main():
    text = DESIGN.read_text(encoding="utf-8")
    for name, make in GENERATED.items():
        text = section(name).sub(lambda m, make=make: m[1] + make() + m[3], text)
    DESIGN.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
