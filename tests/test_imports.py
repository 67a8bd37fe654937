"""The rooms of the package: who may import whom, and what each needs installed."""

import ast
import subprocess
import sys

import pytest
from conftest import ROOT

PACKAGE = ROOT / "onelayer_lottery"

# A room imports itself and those before it in this list.
ROOMS = """
    errors files frozen identity ticket page text runtime exports core checkpoint
    compat planting monitoring embeddings models conversion criterions plugin inference
    experiments cli
""".split()
WITHOUT_TORCH = {
    *("errors", "files", "frozen", "identity", "ticket", "page"),
    *("text", "runtime", "exports"),
}
WITHOUT_FAIRSEQ = {*WITHOUT_TORCH, "core"}
# Needed by some commands only, and so imported inside functions, where torch and
# fairseq are too by the command line.
LATE = {"matplotlib", "yaml", "submitit", "sacrebleu"}
LATE_IN_CLI = {*LATE, "torch", "fairseq"}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield pytest.param(path, id=name)


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", modules())
def test_a_room_imports_only_rooms_before_it(path):
    if room_of(path) == "__init__":
        return
    allowed = {*ROOMS[: ROOMS.index(room_of(path)) + 1], "__version__"}
    names = [n.split(".") for n in imported(ast.walk(tree(path)))]
    rooms = {n[1] for n in names if n[0] == "onelayer_lottery" and len(n) > 1}
    assert rooms <= allowed


@pytest.mark.parametrize("path", modules())
def test_a_room_imports_only_libraries_that_it_may_need(path):
    tops = {name.split(".")[0] for name in imported(ast.walk(tree(path)))}
    if room_of(path) in WITHOUT_TORCH:
        assert "torch" not in tops
    if room_of(path) in WITHOUT_FAIRSEQ:
        assert "fairseq" not in tops
    if path.name != "figures.py":
        late = LATE_IN_CLI if room_of(path) == "cli" else LATE
        assert not late & {n.split(".")[0] for n in imported(tree(path).body)}


def test_tickets_are_read_without_torch_and_fairseq():
    golden = next((ROOT / "tests" / "golden").rglob("*.ticket"))
    program = f"""
import sys
sys.modules.update(torch=None, fairseq=None)
from onelayer_lottery.cli import main
from onelayer_lottery.ticket import read_ticket
assert read_ticket({str(golden)!r}).masks
sys.exit(main(["inspect", {str(golden)!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "signature" in done.stdout or "seed:" in done.stdout
