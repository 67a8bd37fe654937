"""Put trained tensors into a new model: embeddings, positions, a dense model."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from onelayer_lottery.checkpoint.reading import load_checkpoint
from onelayer_lottery.embeddings.checkpoint_file import (
    SIDES,
    checkpoint_symbols,
    read_positions,
)
from onelayer_lottery.embeddings.reading import read_vectors
from onelayer_lottery.embeddings.vectors import align
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.planting.config import MaskConfig
from onelayer_lottery.planting.roles import random_weight, set_first_value

logger = logging.getLogger(__name__)


class PendingCheckpoint(NamedTuple):
    """What the checkpoint holds that fairseq loads once the model is built.

    This is not read from the file that a flag names, which may have been moved or
    deleted since.
    """

    embeddings: bool  # according to its arguments, it holds imported embeddings
    start: bool  # according to its arguments, --mask-start was already used
    exists: bool  # the file exists: the training is resumed

    def brings(self, path: str) -> bool:
        """Whether the checkpoint holds what was read from the file."""
        return self.embeddings or (self.exists and not os.path.exists(path))


def pending_checkpoint(args: Any) -> PendingCheckpoint:
    """Return what the arguments of a model say about its checkpoint."""
    restore = getattr(args, "restore_file", None) or ""
    candidates = [
        restore if os.path.dirname(restore) else "",
        os.path.join(getattr(args, "save_dir", None) or "", restore),
        getattr(args, "finetune_from_model", None) or "",
    ]
    return PendingCheckpoint(
        embeddings=getattr(args, "embeddings_inside", False),
        start=getattr(args, "start_inside", False),
        exists=any(map(os.path.isfile, candidates)),
    )


class EmbeddingRequest(NamedTuple):
    """A file that the user gives for an embedding of the model."""

    flag: str  # --encoder-embed-path or --decoder-embed-path
    path: str
    side: str
    layer: nn.Module  # the stock embedding
    symbols: List[str]  # of the task's dictionary


def import_embeddings(
    requests: Dict[str, EmbeddingRequest],
    config: MaskConfig,
    pending: PendingCheckpoint,
) -> Dict[str, Tensor]:
    """Read the matrix of each request, by the name of its layer.

    A matrix that the checkpoint holds is zero until that is loaded.
    """
    return {
        name: (
            torch.zeros(request.layer.weight.shape)
            if pending.brings(request.path)
            else _read(name, request, config)
        )
        for name, request in requests.items()
    }


def import_positions(
    request: EmbeddingRequest,
    config: MaskConfig,
    pending: PendingCheckpoint,
    *,
    name: str,
) -> Tensor:
    """Read the positions of the checkpoint that token embeddings come from.

    They stay random if the file has no learned positions.
    """
    layer = request.layer
    first = layer.weight.detach().clone()
    set_first_value(
        first,
        group="positions",
        module=layer,
        name=f"{name}.weight",
        seed=config.mask_seed,
    )
    if pending.brings(request.path):
        return first
    try:
        positions = read_positions(Path(request.path), trust=config.trust_checkpoint)
    except LotteryError as error:
        raise LotteryError(f"{request.flag}: {error}") from None
    if positions is None:
        logger.info("%s: no learned positions found; they are random", request.path)
        return first
    theirs, ours = tuple(positions.shape), tuple(first.shape)
    if theirs[0] < ours[0] or theirs[1] != ours[1]:
        raise LotteryError(
            f"{request.flag}: {request.path} has {theirs[0]} positions of dimension"
            f" {theirs[1]}, the model needs {ours[0]} of {ours[1]}; lower"
            " --max-positions, or give a checkpoint of this width that reads as much"
        )
    logger.info("%s: found %s of %s positions", request.path, ours[0], theirs[0])
    return positions[: ours[0]].clone()


def read_start(
    path: str, model: nn.Module, task: Any, pending: PendingCheckpoint
) -> Dict[str, Tensor]:
    """Read the tensors of a trained dense model with the shape of the stock ``model``.

    Return nothing if the checkpoint holds what was learned from it.
    """
    if pending.start or pending.brings(path):
        return {}
    try:
        state = load_checkpoint(path)
        _check_fit(state["model"], model)
        check_symbols(path, state, model, task)
    except LotteryError as error:
        raise LotteryError(f"--mask-start: {error}") from None
    return state["model"]


def check_symbols(
    path: str, state: Dict[str, Any], model: nn.Module, task: Any
) -> None:
    """Refuse a checkpoint whose dictionaries are not the task's."""
    for side, ours in zip(SIDES, (task.source_dictionary, task.target_dictionary)):
        if not hasattr(model, side):
            continue
        try:
            theirs = checkpoint_symbols(Path(path), state, side)
        except LotteryError:  # several, and it does not say which is its own
            theirs = None
        if theirs is None:
            logger.warning(
                "%s: no dictionary of its %s found; its rows are taken in the"
                " task's order",
                path,
                side,
            )
        # RoBERTa's tasks add a symbol to those in the file.
        elif theirs != ours.symbols[: len(theirs)]:
            raise LotteryError(
                f"{path} was trained with another dictionary of the {side}; give a"
                " model that was trained with these dictionaries"
            )


def _check_fit(tensors: Dict[str, Tensor], model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name not in tensors:
            raise LotteryError(
                f"the checkpoint has no {name}; give one of a dense model with the"
                " --arch shape and flags of this one"
            )
        theirs, ours = tuple(tensors[name].shape), tuple(parameter.shape)
        if theirs != ours:
            raise LotteryError(
                f"the checkpoint's {name} has the shape {theirs}, this model's {ours};"
                " give one of a dense model of this shape and these dictionaries"
            )


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
        # keep=1: the missing rows are scaled later, together with the others.
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
