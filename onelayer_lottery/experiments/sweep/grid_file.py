"""Read the YAML of a grid file, and check it before aliases are expanded."""

from __future__ import annotations

import math
import reprlib
import unicodedata
from pathlib import Path
from typing import Any, Dict, Iterable, Tuple

from onelayer_lottery.errors import LotteryError

_MAX_BYTES = 128 << 10  # of the file
_MAX_EXPANDED = 1_000_000  # characters, with every alias expanded
_MAX_DEPTH = 20  # of nested lists and mappings
_MAX_KEY = 200  # characters of a name
_MAX_DIGITS = 40  # the time to parse an integer is quadratic
_YAML = "tag:yaml.org,2002:"
_SCALARS = ("str", "int", "float", "bool", "null")


def read_yaml(path: Path) -> Dict[str, Any]:
    """Read a mapping from a YAML file; keys stay the text that was typed."""
    import yaml

    text = _read_text(path)
    try:
        _check_depth(yaml.parse(text, yaml.SafeLoader))
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _check_node(node, loader, {})
        content = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        said = getattr(error, "problem", None) or getattr(error, "reason", None)
        raise LotteryError(f"{path}{line}: {said or 'it is not YAML'}") from None
    if not isinstance(content, dict) or not content:
        raise LotteryError(f"{path} holds no mapping: give data, base and variants")
    return content


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise LotteryError(f"cannot read {path}: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise LotteryError(
            f"{path} is larger than {_MAX_BYTES:,} bytes, more than a grid needs; split"
            " it into several"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise LotteryError(f"{path} is not text in UTF-8") from None


def _check_depth(events: Iterable[Any]) -> None:
    """Limit the depth before nodes are composed, which is recursive."""
    from yaml.events import CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent)
        depth -= isinstance(event, CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise _problem(event, _TOO_DEEP)


_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} deep; give flags as NAME: VALUE"


def _check_node(node: Any, loader: Any, known: Dict[int, Any]) -> Tuple[int, int]:
    """Check a node and all below it; return size and depth with aliases expanded.

    An alias is the same node as its anchor, and each node is visited once.
    """
    from yaml.nodes import MappingNode, ScalarNode

    if id(node) in known:
        if known[id(node)] is None:
            raise _problem(node, "it contains itself; leave out the alias")
        return known[id(node)]
    known[id(node)] = None
    tag = node.tag[len(_YAML) :] if node.tag.startswith(_YAML) else node.tag
    if isinstance(node, ScalarNode):
        _check_scalar(node, tag, loader)
        size, depth = 1 + len(node.value), 0
    else:
        mapping = isinstance(node, MappingNode)
        if tag != ("map" if mapping else "seq"):
            what = "mapping" if mapping else "list"
            raise _problem(node, f"a {what} is read as a {tag}; leave out its tag")
        if mapping:
            node.value = _with_text_keys(node.value)
        inner = [item[1] if mapping else item for item in node.value]
        measured = [_check_node(child, loader, known) for child in inner]
        keys = sum(len(item[0].value) for item in node.value) if mapping else 0
        size = 1 + keys + sum(size for size, _ in measured)
        depth = 1 + max((depth for _, depth in measured), default=0)
    if size > _MAX_EXPANDED:
        raise _problem(
            node,
            f"its aliases stand for more than {_MAX_EXPANDED:,} characters; use fewer",
        )
    if depth > _MAX_DEPTH:
        raise _problem(node, _TOO_DEEP)
    known[id(node)] = (size, depth)
    return size, depth


def _with_text_keys(pairs: Any) -> Any:
    """Return pairs with text as keys, where YAML may have 1, True or None."""
    from yaml.nodes import ScalarNode

    named, seen = [], set()
    for key, value in pairs:
        if not isinstance(key, ScalarNode):
            raise _problem(key, "a key is a list or a mapping; give a name")
        if len(key.value) > _MAX_KEY:
            length = f"{len(key.value):,} characters"
            raise _problem(key, f"a name has {length}; give at most {_MAX_KEY}")
        if key.value in seen:  # YAML would use the last one
            raise _problem(key, f"{key.value} comes twice in one mapping")
        seen.add(key.value)
        _check_characters(key)
        tag = key.tag if key.tag == f"{_YAML}merge" else f"{_YAML}str"
        named.append((ScalarNode(tag, key.value, key.start_mark, key.end_mark), value))
    return named


def _check_scalar(node: Any, tag: str, loader: Any) -> None:
    shown = reprlib.repr(node.value)[1:-1]
    if tag not in _SCALARS:
        raise _problem(
            node, f"{shown} is read as a {tag}; put it in quotes to give it as text"
        )
    if tag == "int" and len(node.value) > _MAX_DIGITS:
        raise _problem(node, f"a number has {len(node.value):,} digits; give fewer")
    try:
        value = loader.construct_object(node)
    except (ArithmeticError, LookupError, ValueError):  # from an explicit tag
        raise _problem(node, f"{shown} is not a value of the type {tag}") from None
    if isinstance(value, float) and math.isnan(value):
        raise _problem(node, f"{shown} is not a number; give one")
    _check_characters(node)


def _check_characters(node: Any) -> None:
    # The newline at the end of a text block is harmless.
    for character in node.value.rstrip("\n"):
        if unicodedata.category(character) in ("Cc", "Cs"):
            shown = reprlib.repr(node.value)
            raise _problem(
                node, f"{shown} has a control character, which no flag can take"
            )


def _problem(place: Any, sentence: str) -> Exception:
    """Return an error with the line of a node or event."""
    from yaml.constructor import ConstructorError

    return ConstructorError(None, None, sentence, place.start_mark)
