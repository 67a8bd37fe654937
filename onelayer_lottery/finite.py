"""Notice a training that broke down: behind a mask a NaN would train on silently."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import nn

INTERVAL = 100  # updates from one look to the next on an accelerator, which must wait


def nonfinite(model: nn.Module, num_updates: int) -> Optional[str]:
    """Say which trained tensor has a NaN or infinity after an update, if one has.

    A mask has no NaN where its score has one, so no loss tells. On a CPU every update
    is looked at: the sum of a tensor takes less than a hundredth of a step.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.device.type != "cpu" and num_updates % INTERVAL:
            return None
        # Half precision would overflow.
        if not math.isfinite(parameter.detach().sum(dtype=_wide(parameter)).item()):
            return (
                f"{name} has a NaN or infinity at update {num_updates}: the training"
                " broke down; go on from an earlier checkpoint with a lower --lr, or"
                " with --clip-norm"
            )
    return None


def _wide(parameter: nn.Parameter) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
