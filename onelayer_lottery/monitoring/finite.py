"""Detect a NaN or infinity in what is trained; a mask would hide it from the loss."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import nn

from onelayer_lottery.core.selection import on_accelerator

INTERVAL = 100  # updates between checks on an accelerator, which has to synchronise


def nonfinite(model: nn.Module, num_updates: int) -> Optional[str]:
    """Return a message that names a trained tensor with a NaN or infinity, or None.

    The loss does not show it, because a mask is finite where its score is not. On a CPU
    every update is checked: summing a tensor takes less than a hundredth of a step.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if on_accelerator(parameter) and num_updates % INTERVAL:
            return None
        # In half precision the sum would overflow.
        if not math.isfinite(parameter.detach().sum(dtype=_wide(parameter)).item()):
            return (
                f"{name} has a NaN or infinity at update {num_updates}: the training"
                " broke down; continue from an earlier checkpoint with a lower --lr, or"
                " with --clip-norm"
            )
    return None


def _wide(parameter: nn.Parameter) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
