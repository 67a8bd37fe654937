"""Bringing trained tensors into a model: from a file, or with its checkpoint."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from onelayer_lottery.checkpoint import load_checkpoint
from onelayer_lottery.config import MaskConfig
from onelayer_lottery.embeddings import (
    SIDES,
    align,
    checkpoint_symbols,
    read_positions,
    read_vectors,
)
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.roles import random_weight, set_first_value

logger = logging.getLogger(__name__)


class EmbeddingRequest(NamedTuple):
    """What a user asks for: a file for an embedding of the model."""

    flag: str  # --encoder-embed-path or --decoder-embed-path
    path: str
    side: str
    layer: nn.Module  # the stock embedding
    symbols: List[str]  # of the task's dictionary


def import_embeddings(
    requests: Dict[str, EmbeddingRequest], config: MaskConfig, args: Any
) -> Dict[str, Tensor]:
    """Read the matrix of each request, by the name of its layer.

    A matrix that comes with the checkpoint of the model is not read: the file may have
    been moved or deleted since.
    """
    return {
        name: (
            torch.zeros(request.layer.weight.shape)
            if _comes_with_checkpoint(request.path, args)
            else _read(name, request, config)
        )
        for name, request in requests.items()
    }


def import_positions(
    request: EmbeddingRequest, config: MaskConfig, args: Any, *, name: str
) -> Tensor:
    """The positions of the checkpoint that token embeddings come from.

    A file without learned positions leaves them random.
    """
    layer = request.layer
    first = layer.weight.detach().clone()
    set_first_value(
        first,
        kind="positions",
        module=layer,
        name=f"{name}.weight",
        seed=config.mask_seed,
    )
    if _comes_with_checkpoint(request.path, args):
        return first
    try:
        found = read_positions(Path(request.path), trust=config.trust_checkpoint)
    except LotteryError as error:
        raise LotteryError(f"{request.flag}: {error}") from None
    if found is None:
        logger.info("%s: no learned positions found; they are random", request.path)
        return first
    theirs, ours = tuple(found.shape), tuple(first.shape)
    if theirs[0] < ours[0] or theirs[1] != ours[1]:
        raise LotteryError(
            f"{request.flag}: {request.path} has {theirs[0]} positions of dimension"
            f" {theirs[1]}, the model needs {ours[0]} of {ours[1]}; lower"
            " --max-positions, or give a checkpoint of this width that reads as much"
        )
    logger.info("%s: found %s of %s positions", request.path, ours[0], theirs[0])
    return found[: ours[0]].clone()


def read_start(path: str, model: nn.Module, task: Any, args: Any) -> Dict[str, Tensor]:
    """Read a trained dense model that has the tensors of the stock ``model``."""
    if getattr(args, "start_inside", False) or _comes_with_checkpoint(path, args):
        return {}
    try:
        state = load_checkpoint(path)
        _check_fit(state["model"], model)
        check_symbols(path, state, model, task)
    except LotteryError as error:
        raise LotteryError(f"--mask-start: {error}") from None
    args.start_inside = True  # with the arguments, into every checkpoint
    return state["model"]


def check_symbols(
    path: str, state: Dict[str, Any], model: nn.Module, task: Any
) -> None:
    """Refuse the checkpoint of a ``model`` with other dictionaries than the task's."""
    for side, ours in zip(SIDES, (task.source_dictionary, task.target_dictionary)):
        if not hasattr(model, side):
            continue
        try:
            theirs = checkpoint_symbols(Path(path), state, side)
        except LotteryError:  # it does not say which of several is its own
            theirs = None
        if theirs is None:
            logger.warning(
                "%s: no dictionary of its %s found; its order of symbols is trusted",
                path,
                side,
            )
        # RoBERTa's tasks add a symbol to what is in the file.
        elif theirs != ours.symbols[: len(theirs)]:
            raise LotteryError(
                f"{path} was trained with another dictionary of the {side}; give a"
                " model that was trained with these dictionaries"
            )


def _check_fit(found: Dict[str, Tensor], model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name not in found:
            raise LotteryError(
                f"the checkpoint has no {name}; give one of a dense model with the"
                " --arch shape and flags of this one"
            )
        theirs, ours = tuple(found[name].shape), tuple(parameter.shape)
        if theirs != ours:
            raise LotteryError(
                f"the checkpoint's {name} has the shape {theirs}, this model's {ours};"
                " give one of a dense model of this shape and these dictionaries"
            )


def _comes_with_checkpoint(path: str, args: Any) -> bool:
    """Whether the arguments are out of a checkpoint, or a training is resumed."""
    if getattr(args, "embeddings_inside", False):
        return True
    restore = getattr(args, "restore_file", None) or ""
    places = [
        restore if os.path.dirname(restore) else "",
        os.path.join(getattr(args, "save_dir", None) or "", restore),
        getattr(args, "finetune_from_model", None) or "",
    ]
    return not os.path.exists(path) and any(map(os.path.isfile, places))


def _read(name: str, request: EmbeddingRequest, config: MaskConfig) -> Tensor:
    own = config.embed_path_side == "own"
    side = request.side if own else str(config.embed_path_side)
    path = Path(request.path)
    try:
        vectors = read_vectors(
            path,
            side,
            dictionary=_dictionary(config.embed_dict, request.side),
            trust=config.trust_checkpoint,
        )
        # What is missing gets the scale of the others together with them.
        missing = random_weight(name, request.layer, config, keep=1.0)
        matrix = align(
            vectors,
            request.symbols,
            path=path,
            dimension=request.layer.embedding_dim,
            missing=missing,
            allowed=config.embed_missing,
        )
    except LotteryError as error:
        raise LotteryError(f"{request.flag}: {error}") from None
    if request.layer.padding_idx is not None:
        matrix[request.layer.padding_idx] = 0
    return matrix


def _dictionary(given: str, side: str) -> Optional[Path]:
    paths = given.split(",") if given else []
    if len(paths) == 2:
        return Path(paths[0] if side == "encoder" else paths[1])
    return Path(given) if given else None
