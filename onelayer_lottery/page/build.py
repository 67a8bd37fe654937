"""Put a ticket and the program that computes it into one file of HTML.

The modules of the worker are joined into one script: their imports are left out, and so
are indentation and lines that are comments. The ticket and the worker are in base64 of
gzip: small, and nothing of them is read as markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

FOLDER = Path(__file__).parent

# Of the worker, each after those that it imports.
MODULES = """
    refusal json container bits configuration memory ticket frozen parameters weights
    model search dictionary sentencepiece subwords moses pipeline translator worker
""".split()

_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_COMMENT = re.compile(r"^ *//.*\n", re.MULTILINE)
_INDENT = re.compile(r"^ +", re.MULTILINE)


def page(
    ticket: bytes,
    *,
    title: str,
    examples: Sequence[str] = (),
    tables: Optional[Dict[str, Any]] = None,
) -> str:
    """Return the text of a page that translates with this ticket.

    Tables are those of ``moses.py``, for a ticket that takes Moses' tokens.
    """
    app, style = _plain(_read("app.mjs")), _INDENT.sub("", _read("page.css"))
    parts = {
        "policy": _policy(app, style),
        "title": html.escape(title),
        "style": style,
        "ticket": _packed(ticket),
        "kernels": _packed((FOLDER / "kernels.wasm").read_bytes()),
        "tables": _packed(json.dumps(tables).encode()),
        # Inside a script, "<" could end it; in JSON it may be written so.
        "examples": json.dumps(list(examples)).replace("<", "\\u003c"),
        "engine": _packed(engine().encode()),
        "app": app,
    }
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], _read("page.html"))


def engine() -> str:
    """Return the script of the worker."""
    return "".join(_plain(_read(f"{name}.mjs")) for name in MODULES)


def _policy(app: str, style: str) -> str:
    """What the page may do: run its own script, and ask nobody for anything."""
    rules: List[str] = [
        "default-src 'none'",
        f"script-src '{_digest(app)}' 'wasm-unsafe-eval'",
        f"style-src '{_digest(style)}'",
        "worker-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


def _plain(text: str) -> str:
    return _INDENT.sub("", _COMMENT.sub("", _EXPORT.sub("", _IMPORT.sub("", text))))


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _packed(content: bytes) -> str:
    return _base64(gzip.compress(content, mtime=0))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _digest(text: str) -> str:
    return f"sha256-{_base64(hashlib.sha256(text.encode()).digest())}"
