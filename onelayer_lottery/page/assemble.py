"""Make kernels.wasm of kernels.wat: python -m onelayer_lottery.page.assemble [OUT].

Needs wat2wasm of wabt, https://github.com/WebAssembly/wabt.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def assemble(out: Path) -> None:
    """Translate the text of the kernels to bytes, the same on every machine."""
    text = FOLDER / "kernels.wat"
    subprocess.run(["wat2wasm", str(text), "-o", str(out)], check=True)


if __name__ == "__main__":
    assemble(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "kernels.wasm")
