"""One random Transformer layer, many learned masks: a plugin for fairseq.

Importing this package imports neither torch nor fairseq, so that a ticket can be read
without them. Loaded by ``--user-dir onelayer_lottery``, it registers its architectures;
in a program that does not use --user-dir, ``import onelayer_lottery.plugin`` does.
"""

import logging
import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public names and the modules that they are imported from when first used.
_PUBLIC = {
    "MaskedEmbedding": "core.modules",
    "MaskedLinear": "core.modules",
    "MaskedWeight": "core.modules",
    "frozen_weight": "core.frozen",
    "kept_count": "core.mask",
    "load_classifier": "inference.engines",
    "load_language_model": "inference.engines",
    "load_ticket": "inference.engines",
    "masked_weight": "core.modules",
    "plant": "planting.plant",
    "top_k_mask": "core.mask",
}

__all__ = list(_PUBLIC)

# On import, fairseq recommends a package for speech.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# With --user-dir fairseq imports this package and models/, nothing else of it.
if sys.modules.get("fairseq"):
    import_module(f"{__name__}.plugin")
