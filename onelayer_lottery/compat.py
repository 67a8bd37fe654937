"""What differs between versions of fairseq and torch, in this one place."""

from __future__ import annotations

import argparse
import ctypes
import inspect
import logging
import os
import sys
from importlib import metadata
from typing import Any, Set

import numpy as np
import torch
from torch import nn

from onelayer_lottery.checkpoint_types import CHECKPOINT_TYPES

# On import fairseq recommends a package for speech to everybody.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

try:
    from fairseq.data import data_utils, language_pair_dataset, token_block_dataset
    from fairseq.distributed import utils as distributed_utils
except ModuleNotFoundError as error:
    if error.name != "fairseq":
        raise
    raise ModuleNotFoundError(
        "onelayer_lottery needs fairseq: pip install fairseq (Python 3.8 to 3.10) or"
        " fairseq-fixed (3.11 and later); its README says how",
        name="fairseq",
    ) from None

logger = logging.getLogger(__name__)


def trust_checkpoint_types() -> None:
    """Let torch.load read fairseq's own checkpoints with its safety check left on.

    From 2.6 on torch.load refuses every type that is not on its list.
    """
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([*CHECKPOINT_TYPES.values()])


def mend_numpy_names() -> None:
    """Give fairseq the name np.compat.long, which was removed in NumPy 2.

    Without it ``--sample-break-mode eos`` of masked_lm and bucketed lengths fail. Only
    fairseq's two modules see it, NumPy itself stays as it is.
    """
    if not hasattr(np, "compat"):
        for module in (token_block_dataset, language_pair_dataset):
            module.np = _NumpyWithCompat()


def mend_broadcast() -> None:
    """Let the processes of a training receive what the first of them loaded.

    fairseq sends it through torch.save and torch.load, which from torch 2.6 on refuses
    its configuration: no training on several processes could be resumed. The bytes come
    from another process of the same job, not from a file.
    """
    if hasattr(torch.serialization, "add_safe_globals"):
        distributed_utils.torch = _TorchThatLoads()


class _TorchThatLoads:
    @staticmethod
    def load(buffer: Any, **options: Any) -> Any:
        return torch.load(buffer, weights_only=False, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _NumpyWithCompat:
    compat = argparse.Namespace(long=int)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def plain_namespace(args: Any) -> argparse.Namespace:
    """The arguments of an architecture as a namespace that misses what was not given.

    From a YAML file they are a config, and that of OmegaConf 2.0 has None in its place.
    """
    values = vars(args) if isinstance(args, argparse.Namespace) else dict(args)
    return argparse.Namespace(**values)


def all_arguments(args: Any) -> argparse.Namespace:
    """The arguments of a model with those of its run, as the command line gives them.

    From a YAML file a model gets its own section only; the others hang on its parent.
    """
    merged = vars(plain_namespace(args))
    parent = args._get_parent() if hasattr(args, "_get_parent") else None
    sections = ("dataset", "distributed_training", "optimization")
    for section in sections if parent else ():
        if parent.get(section):
            merged = {**vars(plain_namespace(parent[section])), **merged}
    return argparse.Namespace(**merged)


def place_memory(*, lasting: bool) -> None:
    """Tell glibc whether what is allocated from now on will last, or come and go.

    What lasts (masked weights, the optimizer's state) is then taken from the system
    block by block: between blocks that come and go it would leave holes, too small for
    what comes next. What comes and goes stays in the heap when it is freed: by default
    glibc gives it back time and again, and the faults of touching new memory took up
    to a tenth of a step of few tokens. Settings that the user gave win; other
    allocators do not have these.
    """
    given = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    if sys.platform != "linux" or any(name in os.environ for name in given):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        trim_threshold, mmap_threshold = -1, -3  # names in malloc.h
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 64 << 10 if lasting else 32 << 20)  # 32 MB at most


def fairseq_version() -> str:
    """The version of whichever distribution provides fairseq here."""
    for distribution in ("fairseq", "fairseq-fixed"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def remove_fast_path(model: nn.Module) -> None:
    """Take the BetterTransformer path out of a fairseq 0.12.2 model's encoder layers.

    It keeps copies of the stock weights, demands them when a checkpoint is loaded, and
    would run them instead of the masked ones. Other versions do not have it.
    """
    for layer in model.modules():
        if not hasattr(layer, "load_to_BT"):
            continue
        for name in _FAST_PATH:
            delattr(layer, name)
        layer.can_use_fastpath = False
        layer.__class__ = _without_fast_path(type(layer))


def fast_path_names(model: nn.Module) -> Set[str]:
    """Names of the copies that a fairseq 0.12.2 model makes for itself when loaded."""
    return {
        f"{prefix}.{name}"
        for prefix, layer in model.named_modules()
        if hasattr(layer, "load_to_BT")
        for name in _FAST_PATH
    }


def warn_of_dropped_data(multiple: int) -> None:
    """Warn when fairseq would leave the last partial batch out without a word."""
    if multiple > 1 and _drops_partial_batches():
        logger.warning(
            "--required-batch-size-multiple %s: this fairseq (%s) leaves out the last"
            " batch of train, valid and test data when its size is not a multiple of"
            " %s; pass --required-batch-size-multiple 1 to use all sentences",
            multiple,
            fairseq_version(),
            multiple,
        )


def _drops_partial_batches() -> bool:
    return "b[:-1]" in inspect.getsource(data_utils.batch_by_size)


def _without_fast_path(layer_type: type) -> type:
    if layer_type not in _PLAIN_TYPES:
        methods = {"_load_from_state_dict": nn.Module._load_from_state_dict}
        _PLAIN_TYPES[layer_type] = type(layer_type.__name__, (layer_type,), methods)
    return _PLAIN_TYPES[layer_type]


_PLAIN_TYPES: dict = {}
_FAST_PATH = [
    f"{layer}_{key}"
    for layer in ("in_proj", "out_proj", "fc1", "fc2")
    for key in ("weight", "bias")
]
