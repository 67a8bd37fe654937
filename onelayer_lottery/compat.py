"""Differences between versions of fairseq, torch and NumPy, all in this file."""

from __future__ import annotations

import argparse
import functools
import inspect
import logging
from importlib import metadata
from typing import Any, Dict, Iterable, List, Set

import numpy as np
import torch
from torch import nn

from onelayer_lottery.checkpoint.reading import UNSET

try:
    from fairseq import utils
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


def restore_numpy_compat() -> None:
    """Give fairseq the name np.compat.long, which was removed in NumPy 2.

    Without it ``--sample-break-mode eos`` of masked_lm and bucketed lengths fail. Only
    two modules of fairseq see it; NumPy itself does not change.
    """
    if not hasattr(np, "compat"):
        for module in (token_block_dataset, language_pair_dataset):
            module.np = _NumpyWithCompat()


def allow_broadcast() -> None:
    """Let a training on several processes resume with torch 2.6 and later.

    The first process sends what it loaded through torch.save and torch.load, which
    refuses fairseq's configuration. The bytes come from a process of the same job, not
    from a file, and are trusted.
    """
    if hasattr(torch.serialization, "add_safe_globals"):
        distributed_utils.torch = _TorchThatLoads()


def take_norms_by_type() -> None:
    """Let apex take the norm of gradients of one type at a time.

    It reads all as if they had the type of the first. In half precision ours are of two
    types: the gradients of scores are fp32.
    """
    norm_of = utils.multi_tensor_total_norm
    if hasattr(norm_of, "__wrapped__"):
        return

    @functools.wraps(norm_of)
    def by_type(grads: Iterable[torch.Tensor], *arguments: Any) -> torch.Tensor:
        groups: Dict[torch.dtype, List[torch.Tensor]] = {}
        for grad in grads:
            groups.setdefault(grad.dtype, []).append(grad)
        norms = [norm_of(group, *arguments) for group in groups.values()]
        return torch.norm(torch.stack(norms))

    utils.multi_tensor_total_norm = by_type


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


def as_namespace(args: Any) -> argparse.Namespace:
    """Return arguments as a namespace without those that were not given.

    From a YAML file they are a config, in which OmegaConf 2.0 has None for these.
    """
    values = vars(args) if isinstance(args, argparse.Namespace) else dict(args)
    return argparse.Namespace(**values)


def all_arguments(args: Any) -> argparse.Namespace:
    """Return the arguments of a model with those of its training.

    On the command line these are together. From a YAML file a model gets only its own
    section; the others are in its parent.
    """
    merged = vars(as_namespace(args))
    parent = args._get_parent() if hasattr(args, "_get_parent") else None
    sections = ("dataset", "distributed_training", "optimization")
    for section in sections:
        if parent and parent.get(section):
            merged = {**vars(as_namespace(parent[section])), **merged}
    return argparse.Namespace(**merged)


def fairseq_version() -> str:
    """Return the version of the distribution that provides fairseq."""
    for distribution in ("fairseq", "fairseq-fixed"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def remove_fast_path(model: nn.Module) -> None:
    """Remove the BetterTransformer path from encoder layers of fairseq 0.12.2.

    It copies the stock weights, requires the copies when a checkpoint is loaded, and
    would run them instead of the masked weights. Other versions do not have it.
    """
    for layer in model.modules():
        if not hasattr(layer, "load_to_BT"):
            continue
        for name in _FAST_PATH:
            delattr(layer, name)
        layer.can_use_fastpath = False
        layer.__class__ = _without_fast_path(type(layer))


def zero_unset_buffers(model: nn.Module) -> None:
    """Zero a buffer that fairseq 0.12.2 allocates and never sets.

    It only tells a device and type, but is in every checkpoint, where its content would
    differ from run to run and might be NaN.
    """
    for name, buffer in model.named_buffers():
        if name.endswith(UNSET):
            buffer.zero_()


def fast_path_names(model: nn.Module) -> Set[str]:
    """Return the names of the copies that fairseq 0.12.2 makes for that path."""
    return {
        f"{prefix}.{name}"
        for prefix, layer in model.named_modules()
        if hasattr(layer, "load_to_BT")
        for name in _FAST_PATH
    }


def warn_of_dropped_data(multiple: int) -> None:
    """Warn when fairseq would silently drop the last partial batch."""
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
    if layer_type not in _STRIPPED_TYPES:
        methods = {"_load_from_state_dict": nn.Module._load_from_state_dict}
        _STRIPPED_TYPES[layer_type] = type(layer_type.__name__, (layer_type,), methods)
    return _STRIPPED_TYPES[layer_type]


_STRIPPED_TYPES: dict = {}
_FAST_PATH = [
    f"{layer}_{key}"
    for layer in ("in_proj", "out_proj", "fc1", "fc2")
    for key in ("weight", "bias")
]
