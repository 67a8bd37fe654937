"""Bringing embeddings into a model: from a file, or with the model's checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from onelayer_lottery.config import MaskConfig
from onelayer_lottery.embeddings import align, read_vectors
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.planting import random_weight


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
