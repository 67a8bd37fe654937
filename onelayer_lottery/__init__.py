"""One random Transformer layer, many learned masks: a plugin for fairseq.

Loaded by ``--user-dir onelayer_lottery``: importing it registers the architectures.
"""

from onelayer_lottery.compat import (
    mend_broadcast,
    mend_numpy_names,
    trust_checkpoint_types,
)
from onelayer_lottery.distillation import DistillationCriterion as _  # noqa: F401
from onelayer_lottery.frozen import frozen_weight
from onelayer_lottery.mask import kept_count, top_k_mask
from onelayer_lottery.models import reservoir as _reservoir  # noqa: F401
from onelayer_lottery.models import roberta as _roberta  # noqa: F401
from onelayer_lottery.models import transformer as _transformer  # noqa: F401
from onelayer_lottery.modules import (
    MaskedEmbedding,
    MaskedLinear,
    MaskedWeight,
    masked_weight,
)
from onelayer_lottery.planting import plant
from onelayer_lottery.resuming import watch_resuming

__version__ = "0.1.0"

__all__ = [
    "MaskedEmbedding",
    "MaskedLinear",
    "MaskedWeight",
    "frozen_weight",
    "kept_count",
    "load_classifier",
    "load_ticket",
    "masked_weight",
    "plant",
    "top_k_mask",
]


def __getattr__(name: str):
    # Only who translates or classifies pays for the import of it.
    if name == "load_ticket":
        from onelayer_lottery.translate import load_ticket

        return load_ticket
    if name == "load_classifier":
        from onelayer_lottery.classify import load_classifier

        return load_classifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# fairseq loads a checkpoint long after the import, without another hook before it.
trust_checkpoint_types()
mend_numpy_names()
mend_broadcast()
watch_resuming()
